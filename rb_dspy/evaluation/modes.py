"""The steps that memory modes use instead of the program's own."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import dspy

from rb_dspy.bank import MemoryBank
from rb_dspy.config import RetrieveConfig
from rb_dspy.environments import ScoredEnvironments
from rb_dspy.protocols import Judge
from rb_dspy.schema import MemoryDraft, Task, Trajectory, Verdict
from rb_dspy.steps import Distilled, Memory
from rb_dspy.steps.memory import render
from rb_dspy.steps.transcript import transcript

CASE_CHARACTERS = 2000
"""Longest case that the mode ``raw`` stores: the limit of a lesson's content."""

_NEUTRAL = (
    "This is a neutral passage that stands in for a note and says nothing about the task at hand. The weather of a day"
    " has a morning and an afternoon, and both pass in their order. A river has two banks, and the water goes between"
    " them. "
)


class Placebo(dspy.Module):
    """Shows neutral text, as long as the retrieved lessons."""

    def __init__(self, retrieve: Any) -> None:
        super().__init__()
        self.retrieve = retrieve

    def forward(self, task: Task, bank: MemoryBank, own_lessons: bool = False) -> Memory:
        memory: Memory = self.retrieve(task, bank, own_lessons)
        neutral = [
            item.model_copy(update={"title": _filler(len(item.title)), "content": _filler(len(item.content))})
            for item in memory.items
        ]
        return Memory(memory.retrieved, memory.items, render(neutral).block)


class Shuffled(dspy.Module):
    """Shows other lessons of the bank, as many as were retrieved."""

    def __init__(self, retrieve: Any, seed: int) -> None:
        super().__init__()
        self.retrieve = retrieve
        self._most = getattr(retrieve, "config", RetrieveConfig()).max_tokens
        self._seed = seed

    def forward(self, task: Task, bank: MemoryBank, own_lessons: bool = False) -> Memory:
        memory: Memory = self.retrieve(task, bank, own_lessons)
        shown = {item.id for item in memory.items}
        others = [item for item in bank.items() if item.id not in shown and item.provenance.task_id != task.id]
        rng = random.Random(f"{self._seed}\n{task.id}")
        return render(rng.sample(others, min(len(shown), len(others))), max_tokens=self._most)


class Case(dspy.Module):
    """Stores the case itself instead of lessons (ExpRAG): steps and verdict, without a language model call."""

    def forward(
        self, task: Task, trajectory: Trajectory, verdict: Verdict | None = None, rollout: int = 0
    ) -> Distilled:
        judged = f"Judged: {verdict.label if verdict else 'not judged'}"
        steps = transcript(trajectory, CASE_CHARACTERS // 4)[: CASE_CHARACTERS - len(judged) - 1]
        draft = MemoryDraft(
            title=f"Earlier case: {task.instruction}"[:200], description="", content=f"{steps}\n{judged}"
        )
        return Distilled((draft,))


class Cases(dspy.Module):
    """Stores the cases of several rollouts."""

    def forward(
        self, task: Task, trajectories: Sequence[Trajectory], verdicts: Sequence[Verdict] | None = None
    ) -> Distilled:
        case = Case()
        labels = verdicts or (None,) * len(trajectories)
        drafts = [case(task, each, label).drafts for each, label in zip(trajectories, labels, strict=True)]
        return Distilled(tuple(dict.fromkeys(draft for one in drafts for draft in one)))


def true_judge(environments: ScoredEnvironments) -> Judge:
    """A judge that knows the ground truth of the rollouts in ``environments``."""

    def judge(task: Task, trajectory: Trajectory) -> Verdict:
        outcome = environments.outcome(task.id, environments.rollout_of(task.id, trajectory))
        if outcome is None:
            return Verdict(label="unknown", reasons="no ground truth")
        return Verdict(label="success" if outcome.success else "failure", reasons="by ground truth")

    return judge


def _filler(length: int) -> str:
    """Neutral text of ``length`` characters, without a space at the end."""
    text = (_NEUTRAL * (length // len(_NEUTRAL) + 1))[:length]
    return f"{text[:-1]}." if text.endswith(" ") else text
