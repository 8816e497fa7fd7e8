"""What test-time scaling gained, by ground truth: pass@j, best of n, the oracle, and what was saved."""

from __future__ import annotations

from collections.abc import Sequence
from math import comb

import pydantic

from rb_dspy.stream.result import TaskResult


class PassAt(pydantic.BaseModel):
    """``rate``: the chance that ``j`` rollouts of a task, drawn from those it has, hold a success; mean over tasks."""

    j: int
    rate: float
    tasks: int
    """Those with ``j`` scored rollouts or more; with adaptive scaling, the ones on which rollouts did not agree."""


class Passes(pydantic.BaseModel):
    """Sequential scaling: tasks that stood solved after the first pass, after the last, and after any."""

    tasks: int
    """Those with ground truth after the first pass and after the last."""
    after_first: int
    after_last: int
    after_any: int


class Scaling(pydantic.BaseModel):
    """Test-time scaling in numbers. Rates are None where there is nothing to count.

    Rollouts side by side fill ``pass_at`` and ``compared`` to ``solvable``; passes over one trajectory fill ``passes``.
    """

    launched: int
    """Rollouts that were begun, of sequential scaling passes, over the tasks that came to their end in this run."""
    lost: int
    """Of the launched, those that broke."""
    saved: int
    """Rollouts, or passes, that agreement made needless."""
    mean_distinct: float
    """Different sequences of actions among the rollouts of a task, mean over tasks."""
    pass_at: tuple[PassAt, ...] = ()
    """For j = 1 up to the most scored rollouts that a task has."""
    compared: int = 0
    """Tasks with ground truth of the rollout that was handed in."""
    handed_in: int = 0
    """Of the compared, those where the rollout that was handed in succeeded."""
    solvable: int = 0
    """Of the compared, those where some rollout succeeded: what an oracle would hand in."""
    passes: Passes | None = None

    @pydantic.computed_field  # type: ignore[prop-decorator]
    @property
    def best_of_n(self) -> float | None:
        """Handed in of compared."""
        return self.handed_in / self.compared if self.compared else None

    @pydantic.computed_field  # type: ignore[prop-decorator]
    @property
    def oracle(self) -> float | None:
        """Solvable of compared."""
        return self.solvable / self.compared if self.compared else None

    @pydantic.computed_field  # type: ignore[prop-decorator]
    @property
    def selector_gap(self) -> float | None:
        """Oracle less best of n, on the same tasks: what a perfect selector would add."""
        return (self.solvable - self.handed_in) / self.compared if self.compared else None


def scaling(results: Sequence[TaskResult]) -> Scaling | None:
    """The scaled tasks among ``results`` in numbers; None where there is none."""
    scaled = [each for each in results if each.prediction is not None and "trajectories" in each.prediction]
    if not scaled:
        return None
    done = [each.prediction for each in scaled if each.prediction is not None and not each.resumed]
    side_by_side = [each for each in scaled if not each.passes]
    compared = [each for each in side_by_side if each.outcome is not None]
    distinct = [len({tuple(step.action for step in rollout.steps) for rollout in each.rollouts}) for each in scaled]
    return Scaling(
        launched=sum(prediction.launched for prediction in done),
        lost=sum(len(prediction.lost) for prediction in done),
        saved=sum(prediction.saved for prediction in done),
        mean_distinct=sum(distinct) / len(distinct),
        pass_at=_pass_at(side_by_side),
        compared=len(compared),
        handed_in=sum(each.outcome.success for each in compared if each.outcome is not None),
        solvable=sum(any(outcome.success for outcome in each.outcomes if outcome) for each in compared),
        passes=_passes([each for each in scaled if each.passes]),
    )


def pass_at(j: int, rollouts: int, successes: int) -> float:
    """The chance that ``j`` of ``rollouts``, drawn without putting back, hold at least one of the ``successes``.

    1 - C(n-c, j) / C(n, j), the unbiased estimate of Chen et al. 2021 (arXiv 2107.03374); ``1 <= j <= rollouts``.
    """
    return 1 - comb(rollouts - successes, j) / comb(rollouts, j)


def _pass_at(results: Sequence[TaskResult]) -> tuple[PassAt, ...]:
    scored = [[outcome.success for outcome in each.outcomes if outcome is not None] for each in results]
    most = max(map(len, scored), default=0)
    found = []
    for j in range(1, most + 1):
        rates = [pass_at(j, len(each), sum(each)) for each in scored if len(each) >= j]
        found.append(PassAt(j=j, rate=sum(rates) / len(rates), tasks=len(rates)))
    return tuple(found)


def _passes(results: Sequence[TaskResult]) -> Passes | None:
    if not results:
        return None
    known = [each.passes for each in results if each.passes[0] is not None and each.passes[-1] is not None]
    solved = [[outcome is not None and outcome.success for outcome in passes] for passes in known]
    return Passes(
        tasks=len(solved),
        after_first=sum(each[0] for each in solved),
        after_last=sum(each[-1] for each in solved),
        after_any=sum(any(each) for each in solved),
    )
