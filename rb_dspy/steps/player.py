"""Who answers a call, and how it is sampled: what somebody has fixed wins over what is usual for a step."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Literal

import dspy

from rb_dspy.backbones import in_use, lm_of, stands_in
from rb_dspy.errors import BackboneError

_OWN = ("history", "callbacks", "kwargs", "_warned_zero_temp_rollout")
"""What a copy of an LM has for itself."""
_APART = 1_000_003
"""How far apart the samples are that begin at the number of a language model's own: no optimizer counts so far."""


def player(role: str, predict: Any) -> Any:
    """Who answers ``predict``: an LM that was pinned on it by other means than ours, else the role's.

    What ``dspy.BestOfN``, ``Refine`` and ``SIMBA`` pin, on every predictor, is no choice of a model but a request for
    another sample: a copy of the agent's LM, or of the configured one, with a ``rollout_id``. Each role's own LM draws
    it.
    """
    other = pinned(predict)
    return lm_of(role) if other is None or _drawn(other) is not None else other


def sampling(
    lm: Any, predict: Any, temperature: float, max_tokens: int, rollout: int = 0, *, role: str = ""
) -> dict[str, Any]:
    """What a call of ``predict`` asks of ``lm``: what is usual for its step, less what is configured in one of both.

    ``rollout``: which one of several samples, which are distinct to dspy's cache and, as a seed, to a local model; also
    from those of an LM, or of a request, that has a number of its own. An agent of temperature 0 has the temperature of
    who asks for another sample: it would have none.
    """
    own = {name: value for name, value in _configured(predict).items() if value is not None}
    fixed = {name: value for name, value in _of_model(lm, predict, role).items() if value is not None} | own
    config: dict[str, Any] = {}
    if "max_completion_tokens" not in lm.kwargs:  # else a reasoning model, which takes neither of the two
        config = {"temperature": temperature, "max_tokens": max_tokens}
    config = {name: value for name, value in config.items() if name not in fixed}
    other = pinned(predict)
    drawn = _drawn(other)
    if drawn is not None and role == "agent" and fixed.get("temperature", temperature) == 0:
        config["temperature"] = other.kwargs.get("temperature", 1.0)
    if {**fixed, **config}.get("temperature", temperature) != 0:
        base = fixed.get("rollout_id") if drawn is None else drawn
        if rollout:
            config["rollout_id"] = rollout if base is None else base + _APART * rollout
        elif drawn is not None:
            config["rollout_id"] = drawn
    elif fixed.get("temperature") != lm.kwargs.get("temperature") and "rollout_id" in fixed:
        config["rollout_id"] = None  # a number of the samples that the model draws in its own role
    return config


def heat(role: str, predict: Any, usual: float) -> tuple[float, Literal["predictor", "model", "step"]]:
    """The temperature of a call, and who decides it; ``usual``: the step's, where nobody else does."""
    own = _configured(predict).get("temperature")
    if own is not None:
        return own, "predictor"
    fixed = _of_model(player(role, predict), predict, role).get("temperature")
    return (usual, "step") if fixed is None else (fixed, "model")


def _of_model(lm: Any, predict: Any, role: str) -> dict[str, Any]:
    """What ``lm`` is configured with for ``role``.

    A temperature belongs to the role that the model was given for: an agent that is to vary must not make a judge that
    does. Where a reasoning model stands in, which takes but one, it stays.
    """
    other = pinned(predict)
    chosen = other is not None and _drawn(other) is None  # what only asks for another sample is no choice of a model
    if "max_completion_tokens" in lm.kwargs or chosen or not stands_in(role):
        return dict(lm.kwargs)
    return {name: value for name, value in lm.kwargs.items() if name != "temperature"}


def takes_more(predict: Any) -> bool:
    """Whether a call of ``predict`` takes, besides the inputs, the LM and what to ask of it."""
    return isinstance(predict, dspy.Predict | dspy.ChainOfThought)


def asks(predict: Any) -> Any:
    """The predictor that asks, where a module of dspy's stands around it."""
    return predict.predict if isinstance(predict, dspy.ChainOfThought) else predict


def _configured(predict: Any) -> dict[str, Any]:
    """What a predictor itself is configured with; nothing for a module in its place."""
    return getattr(asks(predict), "config", None) or {}


def pinned(predict: Any) -> Any:
    """The LM that somebody has set on a predictor; None on a module in its place."""
    return getattr(asks(predict), "lm", None)


def _drawn(other: Any) -> int | None:
    """The number of the sample, where ``other`` is a copy of an LM that the program has anyway."""
    number = None if other is None else other.kwargs.get("rollout_id")
    if not isinstance(number, int) or not in_use():
        return None
    known = [dspy.settings.lm]
    with suppress(BackboneError):
        known.append(lm_of("agent"))
    return number if any(_is_copy(other, lm) for lm in known if lm is not None) else None


def _is_copy(one: Any, of: Any) -> bool:
    """Whether ``one`` is what ``of.copy`` gives, which shares everything but what ``_OWN`` names."""
    return type(one) is type(of) and all(
        vars(one).get(name) is value for name, value in vars(of).items() if name not in _OWN
    )
