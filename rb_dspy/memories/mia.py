"""MIA: plans of earlier tasks, chosen by likeness and win rate, from which a planner writes the plan for this one."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

import dspy

from rb_dspy.bank import MemoryBank
from rb_dspy.config import DistillConfig
from rb_dspy.memories.asking import Written
from rb_dspy.memories.credit import WinRate
from rb_dspy.memories.curators import believed, retire
from rb_dspy.memories.recall import Halves, Recall, succeeded, worth
from rb_dspy.memories.system import Attempt, Base, Credit, Curated, MemorySystem
from rb_dspy.memories.teach import Rollout, asked, case, model_of, sentence, texts
from rb_dspy.schema import ItemDraft, Retrieved, Task
from rb_dspy.steps import Distilled
from rb_dspy.steps.working import Moment

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
    near = Halves(_NEAR, _NEAR, _KIND, -1.0)
    parts = {"worked": succeeded, "failed": lambda item: not succeeded(item)}
    return MemorySystem(
        stores="a plan and a summary for each question",
        shows=f"a plan that is written from {_EACH} that worked and {_EACH} that failed",
        source="ECNU-SII/MIA",
        calls="2",
        retrieve=Recall(base, near, Written(NextPlan, base.distill, "Plan", parts), rank=[Won()]),
        teach=Remember(base.distill),
        curate=[one_per_question],
        signal="outcome",
    )


@dataclass(frozen=True)
class Won:
    """A ranker: the best successes, then the best failures, by likeness and win rate."""

    credit: Credit = _WINS

    def __call__(self, moment: Moment, found: Sequence[Retrieved], bank: MemoryBank) -> Sequence[Retrieved]:
        rates = worth(bank, self.credit, [each.items[0].id for each in found])
        low, high = (of((each.score for each in found), default=0.0) for of in (min, max))

        def score(each: Retrieved) -> float:
            likeness = (each.score - low) / (high - low) if high > low else 1.0
            return _LIKENESS * likeness + (1 - _LIKENESS) * rates[each.items[0].id]

        best = sorted(found, key=score, reverse=True)
        good = [each for each in best if succeeded(each.items[0])]
        return [*good[:_EACH], *[each for each in best if each not in good][:_EACH]]


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


class Remember(dspy.Module):
    """The plan that a rollout followed, and a summary of it."""

    def __init__(self, config: DistillConfig) -> None:
        super().__init__()
        self.config, self.predict = config, dspy.Predict(Plan)

    def forward(self, attempts: Sequence[Attempt], bank: MemoryBank) -> Distilled:
        """See ``memories.Distiller``."""
        known = [each for each in attempts if each.verdict.label != "unknown"]
        drafts = tuple(dict.fromkeys(map(self._plan, known)))
        return Distilled(drafts, "" if drafts else "nothing learned: not judged", model_of(self.predict))

    def _plan(self, attempt: Attempt) -> ItemDraft:
        said, question = asked(self.predict, self.config, attempt), attempt.task.instruction
        steps = "\n".join(f"{n}. {step}" for n, step in enumerate(texts(said, "plan"), 1))
        content = f"{sentence(said, 'summary')}\nPlan ({attempt.verdict.label}):\n{steps}"
        data = {"label": attempt.verdict.label, "question": hashlib.sha256(question.encode()).hexdigest()[:16]}
        return case(attempt, content, **data)


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
