"""What came of one task of a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import dspy

from rb_dspy.schema import Label, Outcome, Task, Trajectory, Usage
from rb_dspy.steps.drafts import Unfit


@dataclass(frozen=True)
class TaskResult:
    """One task of a run. ``outcome`` is ground truth, read after the program was done; None where there is none.

    ``error`` is set when infrastructure broke: the task is neither success nor failure. There is no ``prediction``
    then, unless only the scoring broke, after the work was done and learned from; and there is an ``outcome`` only
    where it was the scoring of another rollout than the one that was handed in, or of an earlier pass over it.
    """

    task: Task
    prediction: dspy.Prediction | None = None
    outcome: Outcome | None = None
    """Of the rollout that was handed in."""
    usage: Usage = field(default_factory=dict)
    """What all rollouts used together, those that broke too."""
    unreadable: Mapping[str, int] = field(default_factory=dict)
    """Role -> how many of its answers could not be read, nor the repair of them."""
    proposed: int = 0
    """Lessons that were written of it, as many as could be read."""
    dropped: Mapping[Unfit, int] = field(default_factory=dict)
    """Why -> how many of them were not fit for the bank."""
    error: str = ""
    resumed: bool = False
    """The rollout, or rollouts, waited in the bank, since who did the work ended before it was learned from; nobody
    knows the outcome any more."""
    outcomes: tuple[Outcome | None, ...] = ()
    """Of each rollout that came to its end, aligned with ``rollouts``; empty where it was resumed."""
    passes: tuple[Outcome | None, ...] = ()
    """Of sequential scaling: what had been reached each time that the work was done or changed, over all attempts. A
    change that broke off is none: what was reached before stands, and is handed in."""
    run_id: str = ""
    """Of the run that it is of; empty where nobody said."""
    position: int | None = None
    """Its task's place in the stream, from 1 on: the same in every part of a run that was stopped and goes on."""

    @property
    def rollouts(self) -> tuple[Trajectory, ...]:
        """Those that came to their end; empty where the task broke."""
        return rollouts(self.prediction) if self.prediction is not None else ()

    @property
    def label(self) -> Label | None:
        """The judge's, on what was handed in; None where nobody was asked."""
        verdict = self.prediction.verdict if self.prediction is not None else None
        return verdict.label if verdict is not None else None

    @property
    def agreed(self) -> bool | None:
        """Whether the judge said of what was handed in what the environment says; None where either said nothing."""
        if self.outcome is None or self.label in (None, "unknown"):
            return None
        return (self.label == "success") == self.outcome.success

    def row(self) -> dict[str, Any]:
        """Flat, for JSON Lines, ``csv`` or pandas: texts, numbers, yes or no, titles of lessons; None: nobody knows."""
        task, found, outcome = self.task, self.prediction, self.outcome
        return {
            "run_id": self.run_id,
            "position": self.position,
            "task": task.id,
            "instruction": task.instruction,
            "env": task.env,
            "template": task.template,
            "solved": None if outcome is None else outcome.success,
            "reward": None if outcome is None else outcome.reward,
            "verdict": self.label,
            "judge_agrees": self.agreed,
            "answer": None if found is None else found.answer,
            "steps": None if found is None else len(found.trajectory.steps),
            "stop_reason": None if found is None else found.trajectory.stop_reason,
            "rollouts": len(self.rollouts),
            "recalled": [] if found is None else [item.title for item in found.memory.items],
            "learned": [] if found is None else [item.title for item in found.memory_items],
            "tokens": sum(used.prompt_tokens + used.completion_tokens for used in self.usage.values()),
            "unreadable": sum(self.unreadable.values()),
            "resumed": self.resumed,
            "error": self.error,
        }


def rollouts(prediction: dspy.Prediction) -> tuple[Trajectory, ...]:
    """All that came to their end; of a program that is not scaled, the one."""
    found: tuple[Trajectory, ...] = prediction.get("trajectories") or (prediction.trajectory,)
    return found
