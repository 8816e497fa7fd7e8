"""MIA: plans of earlier tasks, chosen by likeness and win rate, from which a planner writes the plan for this one."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import replace

import dspy

from rb_dspy.bank import MemoryBank
from rb_dspy.memories.asking import Written
from rb_dspy.memories.credit import WinRate
from rb_dspy.memories.curators import believed, retire
from rb_dspy.memories.rankers import Weighed
from rb_dspy.memories.recall import Nearest, Recall, succeeded, together
from rb_dspy.memories.system import Attempt, Base, Curated, MemorySystem
from rb_dspy.memories.teach import Asked, Rollout, case, sentence, texts
from rb_dspy.schema import ItemDraft, Task

_KIND = ("case",)
_NEAR, _EACH = 10, 2
"""Successes, and as many failures: candidates by likeness (ours), and those that are read (ECNU-SII/MIA)."""
_LIKENESS, _WINS = 0.7, WinRate(1.0, 1.0)
"""Weight of the likeness; the rest is that of the win rate, which begins with one use and one success (the same)."""


def mia(base: Base) -> MemorySystem:
    """A planner reads two plans that worked and two that failed, and writes the plan that the agent is shown.

    The authors rank within one of nine types of questions, which our tasks lack. A question has one plan: a new one
    takes the place of one that failed, or of a longer one if it worked itself; theirs need not have worked, and at a
    cosine of .9999 questions are equal, for us if their texts are. They judge after the execution whether to plan
    again; our rollout ends when its environment says so. Without earlier plans we write none. Their feedback is true.
    """
    near = together(*(Nearest(_NEAR, _KIND, -1.0, label) for label in ("success", "failure")))
    best = Weighed(_WINS, _EACH, 1 - _LIKENESS, like=_unit, value=list, apart=True)
    parts = {"worked": succeeded, "failed": lambda item: not succeeded(item)}
    return MemorySystem(
        stores="a plan and a summary for each question",
        shows=f"a plan that is written from {_EACH} that worked and {_EACH} that failed",
        source="ECNU-SII/MIA",
        calls="2",
        retrieve=Recall(base, near, Written(NextPlan, base.distill, "Plan", parts), rank=[best]),
        teach=Asked(base.distill, _plan, Plan, Plan),
        curate=[one_per_question],
        signal="outcome",
    )


def _unit(values: Sequence[float]) -> Sequence[float]:
    """Between 0 and 1, as they lie between the least and the greatest; 1 for all if they are equal."""
    low, high = min(values, default=0.0), max(values, default=0.0)
    return [(value - low) / (high - low) if high > low else 1.0 for value in values]


def one_per_question(curated: Curated, task: Task, bank: MemoryBank) -> Curated:
    """A curator: of the plans for one question, the shortest that worked; if none did, the newest."""
    stored, kept = {each.data["question"]: each for each in believed(bank, _KIND)}, dict[object, ItemDraft]()
    for draft in curated.drafts:
        assert isinstance(draft, ItemDraft)
        question = draft.data["question"]
        old = kept.get(question) or stored.get(question)
        new_worked, worked = draft.data["label"] == "success", old is not None and old.data["label"] == "success"
        if old is None or not worked or (new_worked and len(draft.content) < len(old.content)):
            kept[question] = draft
    gone = [item for question, item in stored.items() if question in kept]
    return retire(replace(curated, drafts=tuple(kept.values())), gone, f"a better plan was made in task {task.id}")


def _plan(said: dspy.Prediction, attempt: Attempt) -> Iterator[ItemDraft]:
    steps = "\n".join(f"{n}. {step}" for n, step in enumerate(texts(said, "plan"), 1))
    content = f"{sentence(said, 'summary')}\nPlan ({attempt.verdict.label}):\n{steps}"
    question = hashlib.sha256(attempt.task.instruction.encode()).hexdigest()[:16]
    yield case(attempt, content, label=attempt.verdict.label, question=question)


class Plan(Rollout):
    """Say in general terms how this attempt went about its task, so that the plan can be used for similar tasks."""

    verdict: str = dspy.InputField(desc="how the attempt was judged")
    summary: str = dspy.OutputField(desc="what was done, and what came of it, in two sentences")
    plan: list[str] = dspy.OutputField(desc="the steps of the plan that the attempt followed")


class NextPlan(dspy.Signature):
    """Write a plan for this task. Follow earlier plans that worked where they apply, and avoid what failed."""

    task: str = dspy.InputField(desc="what is to be done")
    worked: str = dspy.InputField(desc="similar tasks that were solved, with their plans")
    failed: str = dspy.InputField(desc="similar tasks that were not solved, with their plans")
    plan: str = dspy.OutputField(desc="numbered steps, with the facts that they need")
