"""The results of a run: task by task, and in numbers."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import dspy
import pydantic

from rb_dspy.backbones.usage import total_usage
from rb_dspy.redaction import redact
from rb_dspy.schema import Label, Outcome, Task, Trajectory, Usage
from rb_dspy.steps import Memory
from rb_dspy.stream.scaling import Scaling, scaling
from rb_dspy.stream.score import Score, numbers
from rb_dspy.text import counted


@dataclass(frozen=True)
class TaskResult:
    """One task of a run.

    A task with an ``error`` and no ``outcome`` broke, and counts as not solved. It has no ``prediction`` then, unless
    only its scoring failed.
    """

    task: Task
    prediction: dspy.Prediction | None = None
    """What the program returned."""
    outcome: Outcome | None = None
    """Ground truth of the submitted rollout, read after the program was done; None if there is none."""
    usage: Usage = field(default_factory=dict)
    """Usage of this run for the task; of a resumed task with its rollouts only if the run has a journal."""
    error: str = ""
    resumed: bool = False
    """Learned from a rollout that was in the bank already. Its outcome is unknown if the run has no journal."""
    outcomes: tuple[Outcome | None, ...] = ()
    """Ground truth of each of ``rollouts``; empty if resumed and unknown of all."""
    passes: tuple[Outcome | None, ...] = ()
    """Sequential scaling: ground truth after each pass, over all attempts."""
    run_id: str = ""
    position: int | None = None
    """Position in the stream, from 1; the same in every part of an interrupted run."""
    tries: int = 1
    seconds: float = 0.0

    @property
    def rollouts(self) -> tuple[Trajectory, ...]:
        """The finished rollouts; without scaling only one."""
        if self.prediction is None:
            return ()
        rollouts: tuple[Trajectory, ...] = self.prediction.get("trajectories") or (self.prediction.trajectory,)
        return rollouts

    @property
    def submitted(self) -> int | None:
        """Which of several rollouts was submitted, from 1; None for a single one."""
        several = self.prediction is not None and len(self.rollouts) > 1
        return self.rollouts.index(self.prediction.trajectory) + 1 if several and self.prediction else None

    @property
    def label(self) -> Label | None:
        """The judge's verdict on the submitted rollout; None if the judge was not asked."""
        verdict = self.prediction.verdict if self.prediction is not None else None
        return verdict.label if verdict is not None else None

    @property
    def broke(self) -> bool:
        """Whether the task broke, so that it counts as not solved."""
        return bool(self.error) and self.outcome is None

    @property
    def solved(self) -> bool | None:
        """Whether the task succeeded by ground truth; False if it broke; None if it was done without ground truth."""
        return self.outcome.success if self.outcome is not None else False if self.error else None

    @property
    def agreed(self) -> bool | None:
        """Whether the judge agrees with ground truth; None if either is unknown."""
        if self.outcome is None or self.label in (None, "unknown"):
            return None
        return (self.label == "success") == self.outcome.success

    def row(self) -> dict[str, Any]:
        """Return a flat row for JSON Lines, CSV or pandas, without keys and passwords; unknown values are None."""
        done = self.prediction
        memory = None if done is None else done.get("memory")
        memory = memory if isinstance(memory, Memory) else None
        shown = memory.items if memory is not None else ()
        answer = None if done is None else done.get("answer")
        return {
            "run_id": self.run_id,
            "position": self.position,
            "task": self.task.id,
            "instruction": redact(self.task.instruction),
            "env": self.task.env,
            "template": self.task.template,
            "solved": self.solved,
            "reward": None if self.outcome is None else self.outcome.reward,
            "verdict": self.label,
            "judge_agrees": self.agreed,
            "answer": redact(answer) if isinstance(answer, str) else None,
            "steps": None if done is None else len(done.trajectory.steps),
            "stop_reason": None if done is None else done.trajectory.stop_reason,
            "rollouts": len(self.rollouts),
            "submitted": self.submitted,
            "recalled": [item.title for item in shown],
            "recalled_content": [item.content for item in shown],
            "shown": [item.id for item in shown],
            "tokens_shown": None if memory is None or done is None else memory.tokens + done.trajectory.shown.tokens,
            "tokens_beyond": None if memory is None else memory.beyond,
            "memory_error": "" if memory is None else memory.problem,
            "learned": [] if done is None else [item.title for item in done.memory_items],
            "learned_content": [] if done is None else [item.content for item in done.memory_items],
            "tokens": sum(each.prompt_tokens + each.completion_tokens for each in self.usage.values()),
            "usage": {role: used.model_dump() for role, used in self.usage.items()},
            "seconds": self.seconds,
            "tries": self.tries,
            "resumed": self.resumed,
            "error": self.error,
        }


class Summary(pydantic.BaseModel):
    """A run in numbers. Rates are None if there is nothing to count.

    If a task has several rollouts, only the submitted one counts, except in ``truncated``, ``scaling`` and ``usage``.
    """

    tasks: int
    skipped: int
    """Tasks that the run had already learned from; they are not in ``tasks``."""
    resumed: int
    infrastructure_errors: int
    """Tasks with an ``error``, whether or not they were scored."""
    scored: int
    """Tasks with ground truth, and those that broke, which count as not solved."""
    solved: int
    judged: int
    """Scored tasks that the judge called a success or a failure."""
    agreements: int
    """Judged tasks on which the judge was right."""
    unknown_verdicts: int
    judge_base_rate: float | None
    """The best ``judge_agreement`` of a judge that always gives the same verdict."""
    truncated: int
    """Rollouts that ended at the step limit or because the context was full."""
    mean_steps: float | None
    shown: int
    """Tasks that were shown a lesson."""
    memory_errors: int = 0
    """Tasks that were done without memory, because the answer of a model that it asked could not be used."""
    items: int
    """Lessons learned, counted at each task that taught them."""
    usage: Usage
    scaling: Scaling | None = None
    success_rate: float | None
    """Share of the scored tasks that were solved."""
    judge_agreement: float | None
    """Share of the judged tasks on which the judge was right; compare it with ``judge_base_rate``."""


@dataclass(repr=False)
class RunReport:
    """The results of a run so far."""

    run_id: str
    results: list[TaskResult] = field(default_factory=list)
    skipped: int = 0
    """Tasks that the run had already learned from."""

    def __repr__(self) -> str:
        first = next((f"; the first error: {result.error}" for result in self.results if result.error), "")
        return f"RunReport({self.run_id!r}: {counted(len(self.results), 'task')}, {self.score()}{first})"

    def score(self) -> Score:
        """Return how many tasks were solved, of how many."""
        return Score.of((each.solved, each.broke) for each in self.results)

    def rows(self) -> list[dict[str, Any]]:
        """``TaskResult.row`` of each task: ``pandas.DataFrame(report.rows())``."""
        return [
            {**row, "run_id": row["run_id"] or self.run_id, "position": row["position"] or place}
            for place, row in enumerate((result.row() for result in self.results), 1)
        ]

    def summary(self) -> Summary:
        """Return the run in numbers."""
        found = numbers(self.rows())
        stops = Counter(rollout.stop_reason for result in self.results for rollout in result.rollouts)
        return Summary(
            **{name: value for name, value in found.items() if name in Summary.model_fields},
            skipped=self.skipped,
            infrastructure_errors=found["errors"],
            truncated=stops["max_steps"] + stops["context"],
            items=found["learned"],
            usage=total_usage([result.usage for result in self.results]),
            scaling=scaling(self.results),
        )
