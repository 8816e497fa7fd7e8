"""One call of a language model: the role's LM, its sampling settings, its usage, and our own errors."""

from __future__ import annotations

import inspect
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import dspy

from rb_dspy.backbones.answers import reading
from rb_dspy.backbones.errors import translate
from rb_dspy.backbones.roles import active
from rb_dspy.backbones.usage import Ledger, budgets, metered, report
from rb_dspy.concurrency import check_cancelled
from rb_dspy.errors import UnparseableOutput

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
        with dspy.context(lm=lm, adapter=reading(lm, length)), dspy.track_usage() as tracker:
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
        report(role, lm, tracker, time.perf_counter() - started)
    return prediction


@contextmanager
def lent(role: str, *, temperature: float, rollout: int) -> Iterator[Ledger]:
    """Lend the language model of ``role`` to code that calls dspy itself, as its configured one; count what it uses.

    Without a language model nothing changes: the code may have a client of its own. Arguments: see ``call``.
    """
    lm = active().own.get(role) or dspy.settings.lm
    if lm is not None:
        for each in budgets():
            each.check(str(lm.model))
        sampling = _config(lm, lm.kwargs, temperature, 0, rollout)
        sampling.pop("max_tokens", None)  # the code sets the length of its answers
        lm = lm.copy(**sampling) if sampling else lm
    started = time.perf_counter()
    with metered() as ledger, dspy.track_usage() as tracker, dspy.context(lm=lm):
        try:
            yield ledger
        finally:
            if tracker.usage_data:
                report(role, lm, tracker, time.perf_counter() - started)


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
