"""What came of a run, task by task and in numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import dspy
import pydantic

from rb_dspy.schema import RoleUsage, StopReason, Usage
from rb_dspy.steps.drafts import Unfit
from rb_dspy.steps.memory import Memory
from rb_dspy.stream.result import TaskResult
from rb_dspy.stream.scaling import Scaling, scaling
from rb_dspy.wording import counted


class Summary(pydantic.BaseModel):
    """A run in numbers. Rates are None where there is nothing to count.

    Of several rollouts of a task the one that was handed in counts, but for ``scaling`` and ``usage``.
    """

    tasks: int
    skipped: int = 0
    """Tasks that the run of this name, or its bank, had learned from before; they are not among these."""
    infrastructure_errors: int
    """Tasks in which something broke, also where it was only the scoring of a rollout, or pass, that was not handed in.
    """
    lost: int = 0
    """Of them, those that have no ground truth, but for the resumed, whose outcome nobody could know any more."""
    solved: int
    """By ground truth."""
    scored: int
    """Tasks that have ground truth of what was handed in."""
    judged: int
    """Of the scored, those with a verdict other than unknown."""
    agreements: int
    """Of the judged, those where the judge said what the environment says."""
    true_successes: int = 0
    """Of the judged, those that the judge called a success, and the environment too."""
    false_successes: int = 0
    """Those that only the judge called a success."""
    true_failures: int = 0
    """Those that both called a failure."""
    false_failures: int = 0
    """Those that only the judge called a failure."""
    abstentions: int = 0
    """Of the scored, those whose verdict is unknown; not those of which no judge was asked."""
    abstained_on_solved: int = 0
    """Of the abstentions, those on tasks that are solved."""
    unknown_verdicts: int
    """Of all tasks that came to their end, also of those that have no ground truth."""
    unreadable: int = 0
    """Rollouts that ended since what the agent said could not be read, those that were not handed in among them."""
    cut_off: dict[StopReason, int] = {}
    """``max_steps`` or ``context`` -> how many rollouts ended by it, likewise."""
    unreadable_answers: dict[str, int] = {}
    """Role -> how many of its answers could not be read, nor the repair of them. The agent's are those of its checks of
    its own work, too."""
    resumed: int = 0
    """Tasks whose rollouts had waited in the bank; nobody knows their outcome any more."""
    mean_steps: float | None
    """Over all tasks that came to their end. Low also where the agent gives up early."""
    mean_steps_solved: float | None = None
    """Over those of them that are solved."""
    shown: int = 0
    """Tasks that came to their end and had been shown a lesson, or several."""
    items: int
    known_items: int = 0
    """Of the items, those that the bank had from another experience: what was learned once more."""
    proposed_items: int = 0
    """Lessons that the distillers wrote, as many as could be read; those that were dropped among them."""
    dropped_items: dict[Unfit, int] = {}
    """Why -> how many of the proposed were dropped before the bank."""
    usage: Usage
    scaling: Scaling | None = None
    """Test-time scaling; None for a program that is not scaled."""

    @pydantic.computed_field  # type: ignore[prop-decorator]
    @property
    def success_rate(self) -> float | None:
        """Solved of scored."""
        return _rate(self.solved, self.scored)

    @pydantic.computed_field  # type: ignore[prop-decorator]
    @property
    def success_rate_with_lost(self) -> float | None:
        """Solved of scored and lost: tasks that broke count as failures. None where no task was scored."""
        return _rate(self.solved, self.scored + self.lost) if self.scored else None

    @pydantic.computed_field  # type: ignore[prop-decorator]
    @property
    def judge_agreement(self) -> float | None:
        """Agreements of judged; says little where ``judge_base_rate`` is near it, or ``abstentions`` are many."""
        return _rate(self.agreements, self.judged)

    @pydantic.computed_field  # type: ignore[prop-decorator]
    @property
    def judge_base_rate(self) -> float | None:
        """What ``judge_agreement`` would be if every judged task had the same verdict, the better one of the two."""
        solved = self.true_successes + self.false_failures
        return _rate(max(solved, self.judged - solved), self.judged)

    @pydantic.computed_field  # type: ignore[prop-decorator]
    @property
    def judge_precision(self) -> float | None:
        """Of the scored tasks that the judge called a success, how many are solved."""
        return _rate(self.true_successes, self.true_successes + self.false_successes)

    @pydantic.computed_field  # type: ignore[prop-decorator]
    @property
    def judge_recall(self) -> float | None:
        """Of the solved tasks that the judge was asked of, how many it called a success; abstaining is not that."""
        return _rate(self.true_successes, self.true_successes + self.false_failures + self.abstained_on_solved)

    @pydantic.computed_field  # type: ignore[prop-decorator]
    @property
    def judge_balanced(self) -> float | None:
        """The mean of ``judge_recall`` and of the same for failures: 0.5 for a judge that always says one of them."""
        missed = self.false_successes + self.abstentions - self.abstained_on_solved
        successes, failures = self.judge_recall, _rate(self.true_failures, self.true_failures + missed)
        return None if successes is None or failures is None else (successes + failures) / 2


@dataclass(repr=False)
class RunReport:
    """What came of a run so far."""

    run_id: str
    results: list[TaskResult] = field(default_factory=list)
    skipped: int = 0
    """Tasks that the run of this name, or its bank, had learned from before: they were not done again."""

    def __repr__(self) -> str:
        summary = self.summary()
        solved = f"solved {summary.solved} of {summary.scored} scored"
        return f"RunReport({self.run_id!r}: {counted(summary.tasks, 'task')}, {solved})"

    def rows(self) -> list[dict[str, Any]]:
        """The run task by task, as ``pandas.DataFrame`` takes it; see ``TaskResult.row``.

        Results that were made by hand, of no known run or place, get this run's name and their place here.
        """
        return [
            {**row, "run_id": row["run_id"] or self.run_id, "position": row["position"] or place}
            for place, row in enumerate((result.row() for result in self.results), 1)
        ]

    def summary(self) -> Summary:
        """The run in numbers."""
        done = [result.prediction for result in self.results if result.prediction is not None]
        scored = [
            (result.prediction, result.outcome, result.label)
            for result in self.results
            if result.prediction is not None and result.outcome is not None
        ]
        said = Counter((label, outcome.success) for _, outcome, label in scored)
        steps = [len(prediction.trajectory.steps) for prediction in done]
        ended = [rollout.stop_reason for result in self.results for rollout in result.rollouts]
        of_solved = [len(prediction.trajectory.steps) for prediction, outcome, _ in scored if outcome.success]
        return Summary(
            tasks=len(self.results),
            skipped=self.skipped,
            infrastructure_errors=sum(bool(result.error) for result in self.results),
            lost=sum(bool(each.error) and each.outcome is None and not each.resumed for each in self.results),
            solved=sum(outcome.success for _, outcome, _ in scored),
            scored=len(scored),
            judged=sum(label in ("success", "failure") for *_, label in scored),
            agreements=said["success", True] + said["failure", False],
            true_successes=said["success", True],
            false_successes=said["success", False],
            true_failures=said["failure", False],
            false_failures=said["failure", True],
            abstentions=said["unknown", True] + said["unknown", False],
            abstained_on_solved=said["unknown", True],
            unreadable=ended.count("unreadable"),
            cut_off=dict(Counter(why for why in ended if why in ("max_steps", "context"))),
            unreadable_answers=dict(sum((Counter(result.unreadable) for result in self.results), Counter())),
            resumed=sum(result.resumed for result in self.results),
            unknown_verdicts=sum(result.label == "unknown" for result in self.results),
            mean_steps=_rate(sum(steps), len(steps)),
            mean_steps_solved=_rate(sum(of_solved), len(of_solved)),
            shown=sum(map(_shown, done)),
            items=sum(len(prediction.memory_items) for prediction in done),
            known_items=sum(map(_known, done)),
            proposed_items=sum(result.proposed for result in self.results),
            dropped_items=dict(sum((Counter(result.dropped) for result in self.results), Counter())),
            usage=_total([result.usage for result in self.results]),
            scaling=scaling(self.results),
        )


def _rate(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def _known(done: dspy.Prediction) -> int:
    """How many of the items that a task gave another experience gave first."""
    return sum(item.provenance.experience_id != done.experience.id for item in done.memory_items)


def _shown(done: dspy.Prediction) -> bool:
    memory = done.get("memory")
    return isinstance(memory, Memory) and bool(memory.items)  # a program of somebody's own may have anything there


def _total(usages: Sequence[Usage]) -> Usage:
    total: Usage = {}
    for usage in usages:
        for role, used in usage.items():
            total[role] = total.get(role, RoleUsage()) + used
    return total
