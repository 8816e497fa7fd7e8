"""As much of a transcript as fits the language model's context."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rb_dspy.steps.ask import Ask, ContextOverflow, Routine

_LEAST = 100
"""Tokens of a view below which there is nothing left to cut: then it is the rest of the prompt that does not fit."""


def fitted(ask: Callable[[int], Ask], tokens: int) -> Routine[Any]:
    """The answer to ``ask(tokens)``; where the prompt does not fit, with a view of half as many tokens, and so on.

    The budget is an estimate, and no configuration knows every model's context. Raises ``ContextOverflow`` where even a
    small view does not fit.
    """
    while True:
        try:
            return (yield ask(tokens))
        except ContextOverflow:
            if tokens // 2 < _LEAST:
                raise
            tokens //= 2
