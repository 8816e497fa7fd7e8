"""Ground truth from a function: ``score(task, answer)`` in the place of an environment."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from numbers import Real
from typing import Any

from rb_dspy.concurrency import resolve
from rb_dspy.environments.single_turn import SingleTurn
from rb_dspy.protocols import Environment, EnvironmentFactory
from rb_dspy.schema import Outcome, Task

Score = bool | float | Outcome | None
"""Whether an answer is right, or its reward from 0 to 1 (1 is a success), or both; None if that is not known."""

ScoreFunction = Callable[[Task, str], Score | Awaitable[Score]]
"""Scores an answer by ground truth, which only it sees. It may be async."""


def scored_by(score: ScoreFunction) -> EnvironmentFactory:
    """Environments of one turn, in which the answer is all that the agent does.

    Without an answer the task is not solved, and ``score`` is not called. What ``score`` raises, or a result of another
    type, is an infrastructure error of the task.
    """

    def environment(task: Task, rollout_id: str) -> Environment:  # noqa: ARG001 (the call shape of a factory)
        return SingleTurn(lambda task: lambda answer: _outcome(resolve(score(task, answer))))

    return environment


def _outcome(scored: Any) -> Outcome | None:
    """The outcome that a score means. Raises ``TypeError`` for other values."""
    if scored is None or isinstance(scored, Outcome):
        return scored
    if hasattr(scored, "item"):  # of numpy, whose bools are no bools
        scored = scored.item()
    if not isinstance(scored, Real) or not 0 <= float(scored) <= 1:
        raise TypeError(f"score returned {scored!r:.60}; expected True, False, a number from 0 to 1, or an Outcome")
    return Outcome(reward=float(scored), success=float(scored) >= 1)
