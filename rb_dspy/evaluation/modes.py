"""The steps that memory modes use instead of the program's own."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

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


def placebo(retrieve: Any) -> Callable[..., Memory]:
    """A step that shows neutral text, as long as the retrieved lessons."""

    def show(task: Task, bank: MemoryBank, own_lessons: bool = False) -> Memory:
        memory: Memory = retrieve(task, bank, own_lessons)
        neutral = [
            item.model_copy(update={"title": _filler(len(item.title)), "content": _filler(len(item.content))})
            for item in memory.items
        ]
        return Memory(memory.retrieved, memory.items, render(neutral).block)

    return show


def shuffled(retrieve: Any, seed: int) -> Callable[..., Memory]:
    """A step that shows other lessons of the bank, as many as were retrieved."""
    most = getattr(retrieve, "config", RetrieveConfig()).max_tokens

    def show(task: Task, bank: MemoryBank, own_lessons: bool = False) -> Memory:
        memory: Memory = retrieve(task, bank, own_lessons)
        shown = {item.id for item in memory.items}
        others = [item for item in bank.items() if item.id not in shown and item.provenance.task_id != task.id]
        rng = random.Random(f"{seed}\n{task.id}")
        return render(rng.sample(others, min(len(shown), len(others))), max_tokens=most)

    return show


def case(task: Task, trajectory: Trajectory, verdict: Verdict | None = None, rollout: int = 0) -> Distilled:  # noqa: ARG001
    """Store the case itself instead of lessons (ExpRAG): steps and verdict, without a language model call."""
    judged = f"Judged: {verdict.label if verdict else 'not judged'}"
    steps = transcript(trajectory, CASE_CHARACTERS // 4)[: CASE_CHARACTERS - len(judged) - 1]
    title = f"Earlier case: {task.instruction}"[:200]
    return Distilled((MemoryDraft(title=title, description="", content=f"{steps}\n{judged}"),))


def cases(task: Task, trajectories: Sequence[Trajectory], verdicts: Sequence[Verdict] | None = None) -> Distilled:
    """Store the cases of several rollouts."""
    labels = verdicts or (None,) * len(trajectories)
    drafts = [case(task, each, label).drafts[0] for each, label in zip(trajectories, labels, strict=True)]
    return Distilled(tuple(dict.fromkeys(drafts)))


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
