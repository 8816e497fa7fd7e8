"""Ask a model about rollouts, with transcripts that are shortened until they fit its context window."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import dspy

from rb_dspy.backbones import call
from rb_dspy.config import CallConfig
from rb_dspy.errors import ContextOverflow

_SMALLEST = 100
"""Below this many tokens of transcript, shortening it does not help: the rest of the prompt is too long."""


def ask(
    predict: Any,
    role: str,
    config: CallConfig,
    inputs: Callable[[int], dict[str, Any]],
    *,
    rollouts: int = 1,
    rollout: int = 0,
) -> dspy.Prediction:
    """Call ``predict`` with ``inputs(max_tokens)``; while the prompt does not fit, retry with half as many tokens.

    The budget, ``config.view_tokens`` for each of ``rollouts``, is an estimate and can exceed the model's context
    window. Other arguments and errors are those of ``call``.

    Raises:
        ContextOverflow: Even a short transcript does not fit.
    """
    tokens, once = config.view_tokens * rollouts, partial(call, predict, role, rollout=rollout)
    while True:
        try:
            return once(temperature=config.temperature, max_tokens=config.max_tokens, **inputs(tokens))
        except ContextOverflow:
            tokens //= 2
            if tokens < _SMALLEST:
                raise
