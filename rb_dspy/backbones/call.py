"""One call of a language model: the role's LM, its sampling settings, its usage, and our own errors."""

from __future__ import annotations

import contextvars
import inspect
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import dspy
from dspy.utils.callback import BaseCallback
from dspy.utils.usage_tracker import UsageTracker

from rb_dspy.backbones.answers import reading
from rb_dspy.backbones.errors import translate
from rb_dspy.backbones.roles import active
from rb_dspy.backbones.usage import Ledger, budgets, entries_of, metered, report
from rb_dspy.concurrency import check_cancelled
from rb_dspy.errors import RBError, UnparseableOutput

ROLE = "rb_dspy_role"
"""The setting of dspy that says whose call this is."""

_ATTEMPTS_APART = 1_000
"""Distance between the rollout ids of two attempts of ``dspy.BestOfN``: more than a task has rollouts."""


def call(
    predict: Any, role: str, *, temperature: float, max_tokens: int, rollout: int = 0, **inputs: Any
) -> dspy.Prediction:
    """Call ``predict`` with the language model of ``role``.

    A temperature or ``max_tokens`` that is set on the LM or on ``predict`` takes precedence over the arguments.

    Args:
        predict: A ``dspy.Predict``, or a module with the same inputs and outputs.
        role: The role whose language model answers, unless ``predict`` has its own (``set_lm``).
        temperature: Sampling temperature of the step.
        max_tokens: Maximum length of the answer, in tokens.
        rollout: Number of the rollout or pass. From 1 on, unless the temperature is 0, it distinguishes otherwise equal
            calls: it is part of dspy's cache key and is added to the LM's seed, if it has one.
        **inputs: Input fields.

    Raises:
        BackboneError: This language model cannot be used at all.
        ContextOverflow: The prompt is too long.
        UnparseableOutput: The answer could not be parsed, and neither could that of dspy's JSON fallback.
        InfrastructureError: Any other error of the language model, after dspy's retries.
    """
    check_cancelled()
    lm = getattr(predict, "lm", None) or active().lm(role)
    for each in budgets():
        each.check(str(lm.model))
    started = time.perf_counter()
    tracker = None
    try:
        own = {**lm.kwargs, **getattr(predict, "config", {})}
        length = own.get("max_tokens") or own.get("max_completion_tokens") or max_tokens
        with dspy.context(lm=lm, adapter=reading(lm, length), **{ROLE: role}), dspy.track_usage() as tracker:
            if _takes_config(predict):
                inputs["config"] = _config(lm, own, temperature, max_tokens, rollout)
            prediction: dspy.Prediction = predict(**inputs)
    except Exception as exc:
        if tracker is not None and not tracker.usage_data:
            tracker = None  # the call failed: it was not answered from the cache
        error = translate(exc, role, lm)
        if error is exc:
            raise
        raise error from exc
    finally:
        entries = None if tracker is None else entries_of(tracker)
        report(role, str(lm.model), entries, time.perf_counter() - started)
    return prediction


@contextmanager
def lent(role: str, *, temperature: float, rollout: int) -> Iterator[Ledger]:
    """Lend the language model of ``role`` to code that calls dspy itself, as its configured one.

    Each of its calls of an LM of dspy is counted, and none begins after a budget is spent; what it pays with a client
    of its own is not seen. Without a language model nothing is lent. Arguments: see ``call``.

    Raises:
        BudgetSpent: At the first call after a limit is reached, even if the code catches every ``Exception``.
        ConfigError: As ``Budget.check``.
    """
    for each in budgets():
        each.check()
    lm = active().own.get(role) or dspy.settings.lm
    if lm is not None:
        sampling = _config(lm, lm.kwargs, temperature, 0, rollout)
        sampling.pop("max_tokens", None)  # the code sets the length of its answers
        lm = lm.copy(**sampling) if sampling else lm
    with metered() as ledger, dspy.track_usage() as total:
        gate = _Gate(role)
        try:
            callbacks = [gate, *dspy.settings.callbacks]
            with dspy.context(lm=lm, usage_tracker=gate.tracker, callbacks=callbacks, **{ROLE: role}):
                yield ledger
        except _Refused as exc:
            raise exc.error from None
        finally:
            gate.report()
            total.usage_data.update(gate.tracker.usage_data)


class _Refused(BaseException):
    """Takes an error through code that catches every ``Exception``: an agent's, and that of dspy around callbacks."""

    def __init__(self, error: RBError) -> None:
        super().__init__(str(error))
        self.error = error


class _Tracker(UsageTracker):
    """One for all threads: ``dspy.Parallel`` gives each a copy, which it drops."""

    def __deepcopy__(self, memo: dict[int, Any]) -> _Tracker:
        return self


class _Gate(BaseCallback):
    """Before each call of lent code, reports those before it and checks the budgets."""

    def __init__(self, role: str) -> None:
        self.tracker = _Tracker()
        self._role, self._lock, self._since = role, threading.Lock(), time.perf_counter()
        self._reported = Counter[str]()
        self._lender = contextvars.copy_context()  # whose ledgers count: those that the code opens are its own

    def on_lm_start(self, call_id: str, instance: Any, inputs: dict[str, Any]) -> None:
        self.report()
        try:
            for each in budgets():
                each.check(str(instance.model))
        except RBError as exc:
            raise _Refused(exc) from exc

    def report(self) -> None:
        with self._lock:
            for model, entries in list(self.tracker.usage_data.items()):
                if new := entries[self._reported[model] :]:
                    self._reported[model] += len(new)
                    since, self._since = self._since, time.perf_counter()
                    self._lender.run(report, self._role, model, new, self._since - since)


def value(prediction: dspy.Prediction, name: str, role: str) -> Any:
    """Return an output field of ``prediction``.

    Raises:
        UnparseableOutput: The module has no such output field, or left it empty.
    """
    result = prediction.get(name)
    if result is None:
        fields = ", ".join(map(str, prediction.keys())) or "nothing"
        raise UnparseableOutput(f"the {role}'s module returned no {name!r} (got: {fields}); add that output field")
    return result


def _config(lm: Any, own: Mapping[str, Any], temperature: float, max_tokens: int, rollout: int) -> dict[str, Any]:
    config: dict[str, Any] = {}
    if own.get("temperature") is None and not getattr(lm, "omit_temperature", False):
        config["temperature"] = temperature
    if own.get("max_tokens") is None and own.get("max_completion_tokens") is None:
        config["max_tokens"] = max_tokens
    if rollout and (own.get("temperature") if own.get("temperature") is not None else temperature):
        config["rollout_id"] = _ATTEMPTS_APART * (own.get("rollout_id") or 0) + rollout
        if own.get("seed") is not None:
            config["seed"] = own["seed"] + rollout
    return config


def _takes_config(predict: Any) -> bool:
    """Whether ``predict`` accepts ``config``, as dspy's own modules do; others use the LM's own settings."""
    parameters = inspect.signature(type(predict).forward).parameters.values()
    return any(each.kind is each.VAR_KEYWORD or each.name == "config" for each in parameters)
