"""Who answers a call, and how it is sampled: what somebody has fixed wins over what is usual for a step."""

from __future__ import annotations

from typing import Any, Literal

import dspy

from rb_dspy.backbones import lm_of

_APART = 1_000_003
"""How far apart the samples are that begin at the number of a language model's own: no optimizer counts so far."""


def player(role: str, predict: Any) -> Any:
    """Who answers ``predict``: an LM that was pinned on it by other means than ours, else the role's.

    What ``dspy.BestOfN``, ``Refine`` and ``SIMBA`` pin, on every predictor, is no choice of a model but a request for
    another sample: a copy of the agent's LM, or of the configured one, with a ``rollout_id``. Each role's own LM draws
    it.
    """
    pinned = _pinned(predict)
    return lm_of(role) if pinned is None or _drawn(pinned) is not None else pinned


def sampling(lm: Any, predict: Any, temperature: float, max_tokens: int, rollout: int = 0) -> dict[str, Any]:
    """What a call of ``predict`` asks of ``lm``: what is usual for its step, less what is configured in one of both.

    ``rollout``: which one of several samples, which are distinct to dspy's cache and, as a seed, to a local model; also
    from those of an LM, or of a request, that has a number of its own.
    """
    own = {name: value for name, value in (getattr(predict, "config", None) or {}).items() if value is not None}
    fixed = {name: value for name, value in lm.kwargs.items() if value is not None} | own
    config: dict[str, Any] = {}
    if "max_completion_tokens" not in lm.kwargs:  # else a reasoning model, which takes neither of the two
        config = {"temperature": temperature, "max_tokens": max_tokens}
    config = {name: value for name, value in config.items() if name not in fixed}
    if fixed.get("temperature", temperature) != 0:
        drawn = _drawn(_pinned(predict))
        base = fixed.get("rollout_id") if drawn is None else drawn
        if rollout:
            config["rollout_id"] = rollout if base is None else base + _APART * rollout
        elif drawn is not None:
            config["rollout_id"] = drawn
    return config


def heat(role: str, predict: Any, usual: float) -> tuple[float, Literal["predictor", "model", "step"]]:
    """The temperature of a call, and who decides it; ``usual``: the step's, where nobody else does."""
    own = (getattr(predict, "config", None) or {}).get("temperature")
    if own is not None:
        return own, "predictor"
    fixed = player(role, predict).kwargs.get("temperature")
    return (usual, "step") if fixed is None else (fixed, "model")


def _pinned(predict: Any) -> Any:
    """The LM that somebody has set on a predictor; None on a module in its place."""
    return getattr(predict, "lm", None)


def _drawn(pinned: Any) -> int | None:
    """The number of the sample, where ``pinned`` asks for one of the LM that the program has anyway."""
    number = None if pinned is None else pinned.kwargs.get("rollout_id")
    if not isinstance(number, int) or dspy.settings.get("rb_dspy_backbones", None) is None:
        return None
    known = {str(lm.model) for lm in (lm_of("agent"), dspy.settings.lm) if lm is not None}
    return number if str(pinned.model) in known else None
