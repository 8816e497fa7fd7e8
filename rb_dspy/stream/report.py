"""What came of a run, task by task and in numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import dspy
import pydantic

from rb_dspy.schema import RoleUsage, Usage
from rb_dspy.stream.result import TaskResult
from rb_dspy.stream.scaling import Scaling, scaling


class Summary(pydantic.BaseModel):
    """A run in numbers. Rates are None where there is nothing to count.

    Of several rollouts of a task the one that was handed in counts, but for ``scaling`` and ``usage``.
    """

    tasks: int
    skipped: int = 0
    """Tasks that the run of this name had learned from before; they are not among these."""
    infrastructure_errors: int
    solved: int
    """By ground truth."""
    scored: int
    """Tasks that have ground truth and no infrastructure error."""
    judged: int
    """Of the scored, those with a verdict other than unknown."""
    agreements: int
    """Of the judged, those where the judge said what the environment says."""
    unknown_verdicts: int
    unreadable: int = 0
    """Rollouts that ended since what the agent said could not be read, those that were not handed in among them."""
    unreadable_answers: dict[str, int] = {}
    """Role -> how many of its answers could not be read, nor the repair of them. The agent's are those of its checks of
    its own work, too."""
    resumed: int = 0
    """Tasks whose rollouts had waited in the bank; nobody knows their outcome any more."""
    mean_steps: float | None
    items: int
    known_items: int = 0
    """Of the items, those that the bank had from another experience: what was learned once more."""
    usage: Usage
    scaling: Scaling | None = None
    """Test-time scaling; None for a program that is not scaled."""

    @pydantic.computed_field  # type: ignore[prop-decorator]
    @property
    def success_rate(self) -> float | None:
        """Solved of scored."""
        return self.solved / self.scored if self.scored else None

    @pydantic.computed_field  # type: ignore[prop-decorator]
    @property
    def judge_agreement(self) -> float | None:
        """Agreements of judged."""
        return self.agreements / self.judged if self.judged else None


@dataclass
class RunReport:
    """What came of a run so far."""

    run_id: str
    results: list[TaskResult] = field(default_factory=list)
    skipped: int = 0
    """Tasks that the run of this name had learned from before: they were not done again, and are not among these."""

    def summary(self) -> Summary:
        """The run in numbers."""
        done = [result.prediction for result in self.results if result.prediction is not None]
        scored = [result for result in self.results if result.prediction is not None and result.outcome is not None]
        agreed = [result.agreed for result in scored if result.agreed is not None]
        steps = [len(prediction.trajectory.steps) for prediction in done]
        return Summary(
            tasks=len(self.results),
            skipped=self.skipped,
            infrastructure_errors=sum(bool(result.error) for result in self.results),
            solved=sum(result.outcome.success for result in scored if result.outcome is not None),
            scored=len(scored),
            judged=len(agreed),
            agreements=sum(agreed),
            unreadable=sum(each.stop_reason == "unreadable" for result in self.results for each in result.rollouts),
            unreadable_answers=dict(sum((Counter(result.unreadable) for result in self.results), Counter())),
            resumed=sum(result.resumed for result in self.results),
            unknown_verdicts=sum(result.label == "unknown" for result in self.results),
            mean_steps=sum(steps) / len(steps) if steps else None,
            items=sum(len(prediction.memory_items) for prediction in done),
            known_items=sum(map(_known, done)),
            usage=_total([result.usage for result in self.results]),
            scaling=scaling(self.results),
        )


def _known(done: dspy.Prediction) -> int:
    """How many of the items that a task gave another experience gave first."""
    return sum(item.provenance.experience_id != done.experience.id for item in done.memory_items)


def _total(usages: Sequence[Usage]) -> Usage:
    total: Usage = {}
    for usage in usages:
        for role, used in usage.items():
            total[role] = total.get(role, RoleUsage()) + used
    return total
