"""Gains of test-time scaling, by ground truth: pass@k, the selected rollout, and the gap to an oracle."""

from __future__ import annotations

from collections.abc import Sequence
from math import comb
from typing import TYPE_CHECKING

import pydantic

from rb_dspy.steps import Selection

if TYPE_CHECKING:
    from rb_dspy.stream.report import TaskResult


class PassAt(pydantic.BaseModel):
    """The chance that ``j`` randomly drawn rollouts of a task contain a success; the mean over ``tasks``."""

    j: int
    rate: float
    tasks: int
    """Tasks with at least ``j`` scored rollouts."""


class Passes(pydantic.BaseModel):
    """Sequential scaling: how many of ``tasks`` with ground truth were solved after the first and the last pass."""

    tasks: int
    after_first: int
    after_last: int


class Scaling(pydantic.BaseModel):
    """Test-time scaling in numbers. ``passes`` is for mode sequential, ``pass_at`` to ``fallbacks`` for the others."""

    launched: int
    """Rollouts (sequential: passes) that were started for the tasks that were done in this run."""
    lost: int
    """Launched rollouts that failed."""
    mean_distinct: float
    """Number of different sequences of actions among a task's rollouts, as a mean over tasks."""
    pass_at: tuple[PassAt, ...] = ()
    """For j = 1 up to the most scored rollouts of a task. Lost rollouts are left out; they do not count as failures."""
    compared: int = 0
    """Tasks with ground truth of the selected rollout."""
    handed_in: int = 0
    """Compared tasks whose selected rollout succeeded."""
    solvable: int = 0
    """Compared tasks with a rollout that succeeded, which an oracle would select."""
    fallbacks: int = 0
    """Tasks for which no call of the selector gave a vote."""
    passes: Passes | None = None


def scaling(results: Sequence[TaskResult]) -> Scaling | None:
    """Return the scaled tasks among ``results`` in numbers; None if there are none."""
    scaled = [each for each in results if each.prediction is not None and "trajectories" in each.prediction]
    if not scaled:
        return None
    done = [each.prediction for each in scaled if each.prediction is not None and not each.resumed]
    parallel = [each for each in scaled if not each.passes]
    compared = [each for each in parallel if each.outcome is not None]
    selections = [each.prediction.get("selection") for each in scaled if each.prediction is not None]
    distinct = [len({tuple(step.action for step in rollout.steps) for rollout in each.rollouts}) for each in scaled]
    return Scaling(
        launched=sum(prediction.launched for prediction in done),
        lost=sum(len(prediction.lost) for prediction in done),
        mean_distinct=sum(distinct) / len(distinct),
        pass_at=_pass_at([[outcome.success for outcome in each.outcomes if outcome] for each in parallel]),
        compared=len(compared),
        handed_in=sum(bool(each.solved) for each in compared),
        solvable=sum(any(outcome.success for outcome in each.outcomes if outcome) for each in compared),
        fallbacks=sum(isinstance(selection, Selection) and selection.fallback for selection in selections),
        passes=_passes([each for each in scaled if each.passes and each.passes[0] and each.passes[-1]]),
    )


def pass_at(j: int, rollouts: int, successes: int) -> float:
    """The chance that ``j`` of ``rollouts``, drawn without replacement, contain one of the ``successes``.

    1 - C(n-c, j) / C(n, j), the unbiased estimate of Chen et al. 2021 (arXiv 2107.03374); ``1 <= j <= rollouts``.
    """
    return 1 - comb(rollouts - successes, j) / comb(rollouts, j)


def _pass_at(tasks: Sequence[Sequence[bool]]) -> tuple[PassAt, ...]:
    """Return pass@j for every ``j``, from the scored rollouts of each task."""
    rates = {
        j: [pass_at(j, len(scored), sum(scored)) for scored in tasks if len(scored) >= j]
        for j in range(1, max(map(len, tasks), default=0) + 1)
    }
    return tuple(PassAt(j=j, rate=sum(each) / len(each), tasks=len(each)) for j, each in rates.items())


def _passes(results: Sequence[TaskResult]) -> Passes | None:
    if not results:
        return None
    firsts, lasts = ([each.passes[place] for each in results] for place in (0, -1))
    after_first, after_last = (sum(bool(outcome and outcome.success) for outcome in each) for each in (firsts, lasts))
    return Passes(tasks=len(results), after_first=after_first, after_last=after_last)
