"""What test-time scaling gained, by ground truth: pass@j, best of n, the oracle, and what was saved."""

from __future__ import annotations

from collections.abc import Sequence
from math import comb

import dspy
import pydantic

from rb_dspy.schema import Outcome
from rb_dspy.steps import Selection
from rb_dspy.stream.result import TaskResult


class PassAt(pydantic.BaseModel):
    """``rate``: the chance that ``j`` rollouts of a task, drawn from those it has, hold a success; mean over tasks."""

    j: int
    rate: float
    tasks: int
    """Those with ``j`` rollouts or more that count (``Scaling.unconditional``)."""


class Passes(pydantic.BaseModel):
    """Sequential scaling: tasks that stood solved after the first pass, after the last, and after any."""

    tasks: int
    """Those with ground truth after the first pass, after the last, and of what was handed in."""
    after_first: int
    after_last: int
    """Of the last attempt, also where it could not be read and an earlier one was handed in."""
    after_any: int
    handed_in: int
    """By what was handed in, which is the last attempt but where that gave no answer, or could not be read."""


class Scaling(pydantic.BaseModel):
    """Test-time scaling in numbers. Rates are None where there is nothing to count.

    Rollouts side by side fill ``pass_at``, ``pass_at_with_lost`` and ``compared`` to ``solvable``; passes over one
    trajectory fill ``passes``.
    """

    launched: int
    """Rollouts that were begun, of sequential scaling passes, over the tasks that came to their end in this run."""
    lost: int
    """Of the launched, those that broke."""
    saved: int
    """Rollouts, or passes, that agreement made needless."""
    mean_distinct: float
    """Different sequences of actions among the rollouts of a task, mean over tasks."""
    unconditional: int | None = None
    """How many rollouts of a task count for pass@j, where that is not all: with adaptive scaling those of the first
    wave, which were launched whatever came of others. With the later ones, tasks on which the first agreed would count
    otherwise than those on which they did not, and the estimate were biased; so larger j are left out."""
    pass_at: tuple[PassAt, ...] = ()
    """Over what came to its end: for j = 1 up to the most scored rollouts that a task has. Where the rollouts of hard
    tasks break more often than others, it is too high."""
    pass_at_with_lost: tuple[PassAt, ...] = ()
    """The same with what was lost as failures: rollouts that broke, or whose scoring did, and tasks that broke as a
    whole, which fail for every j."""
    compared: int = 0
    """Tasks with ground truth of the rollout that was handed in."""
    handed_in: int = 0
    """Of the compared, those where the rollout that was handed in succeeded; of passes see ``Passes.handed_in``."""
    solvable: int = 0
    """Of the compared, those where some rollout succeeded: what an oracle would hand in."""
    fallbacks: int = 0
    """Tasks for which the selector chose nothing that counts, since it broke, could not be read or named no rollout:
    what was handed in is not its choice (``Selection.fallback``), though its gap counts it. Resumed ones among them."""
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
    partly = [made for made in done if _unconditional(made) < made.launched + made.saved]
    compared = [each for each in side_by_side if each.outcome is not None]
    distinct = [len({tuple(step.action for step in rollout.steps) for rollout in each.rollouts}) for each in scaled]
    return Scaling(
        launched=sum(prediction.launched for prediction in done),
        lost=sum(len(prediction.lost) for prediction in done),
        saved=sum(prediction.saved for prediction in done),
        mean_distinct=sum(distinct) / len(distinct),
        unconditional=max(map(_unconditional, partly), default=None),
        pass_at=_pass_at(list(map(_known, side_by_side))),
        pass_at_with_lost=_pass_at(
            [_known(each) + [False] * _lost(each) for each in side_by_side],
            sum(bool(each.error) and each.prediction is None and not each.resumed for each in results),
        ),
        compared=len(compared),
        handed_in=sum(each.outcome.success for each in compared if each.outcome is not None),
        solvable=sum(any(outcome.success for outcome in each.outcomes if outcome) for each in compared),
        fallbacks=sum(map(_fell_back, scaled)),
        passes=_passes([each for each in scaled if each.passes]),
    )


def pass_at(j: int, rollouts: int, successes: int) -> float:
    """The chance that ``j`` of ``rollouts``, drawn without putting back, hold at least one of the ``successes``.

    1 - C(n-c, j) / C(n, j), the unbiased estimate of Chen et al. 2021 (arXiv 2107.03374); ``1 <= j <= rollouts``.
    """
    return 1 - comb(rollouts - successes, j) / comb(rollouts, j)


def _fell_back(result: TaskResult) -> bool:
    """Whether the selector did not decide; a program of somebody's own may have anything for a selection."""
    selection = result.prediction.get("selection") if result.prediction is not None else None
    return isinstance(selection, Selection) and selection.fallback


def _unconditional(done: dspy.Prediction) -> int:
    """How many rollouts were launched whatever came of others: all, where nothing else is said."""
    said: int | None = done.get("unconditional")
    return done.launched + done.saved if said is None else said


def _counts(done: dspy.Prediction, rollout_id: str) -> bool:
    """Whether a rollout, whose id is its number, counts for pass@j."""
    first = _unconditional(done)
    return first >= done.launched or rollout_id in map(str, range(first))


def _sample(result: TaskResult) -> list[Outcome | None]:
    """What each rollout that counts for pass@j and came to its end reached; empty where it was resumed."""
    if result.prediction is None or not result.outcomes:
        return []
    reached = zip(result.rollouts, result.outcomes, strict=True)
    return [outcome for rollout, outcome in reached if _counts(result.prediction, rollout.rollout_id)]


def _known(result: TaskResult) -> list[bool]:
    """Of each rollout in the sample that was scored, whether it succeeded."""
    return [outcome.success for outcome in _sample(result) if outcome is not None]


def _lost(result: TaskResult) -> int:
    """Rollouts of which nobody will know the outcome since they, or their scoring, broke, of those that count. Where
    nothing is scored although nothing of the scoring broke, there is no ground truth, and nothing to lose."""
    done = result.prediction
    if done is None or not (any(result.outcomes) or result.error):
        return 0
    unscored = sum(outcome is None for outcome in _sample(result)) if result.error else 0
    return sum(_counts(done, lost.rollout_id) for lost in done.lost) + unscored


def _pass_at(rolled: Sequence[Sequence[bool]], broken: int = 0) -> tuple[PassAt, ...]:
    """Of the rollouts of each task; ``broken`` tasks besides have none but failures."""
    most = max(map(len, rolled), default=0)
    found = []
    for j in range(1, most + 1):
        rates = [pass_at(j, len(each), sum(each)) for each in rolled if len(each) >= j] + [0.0] * broken
        found.append(PassAt(j=j, rate=sum(rates) / len(rates), tasks=len(rates)))
    return tuple(found)


def _passes(results: Sequence[TaskResult]) -> Passes | None:
    if not results:
        return None
    known = [each for each in results if all((each.passes[0], each.passes[-1], each.outcome))]
    solved = [[outcome is not None and outcome.success for outcome in each.passes] for each in known]
    return Passes(
        tasks=len(solved),
        after_first=sum(each[0] for each in solved),
        after_last=sum(each[-1] for each in solved),
        after_any=sum(any(each) for each in solved),
        handed_in=sum(each.outcome.success for each in known if each.outcome is not None),
    )
