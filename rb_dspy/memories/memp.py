"""Memp: workflows of successes; the one that was shown before a failure is rewritten."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import dspy

from rb_dspy.bank import MemoryBank
from rb_dspy.config import DistillConfig
from rb_dspy.errors import UnparseableOutput
from rb_dspy.memories.curators import retire
from rb_dspy.memories.recall import Listed, Nearest, Recall
from rb_dspy.memories.system import Attempt, Base, Curated, MemorySystem
from rb_dspy.memories.teach import Asked, Attempted, Rollout, asked, case, joined, texts
from rb_dspy.schema import ItemDraft, Task
from rb_dspy.steps.transcript import escape_markers

_SHOWN = 10
"""Workflows shown, as far as they fit (zjunlp/MemP, ProcedureMem/memory.py: retrieve_num)."""
_HEADING = "How similar tasks were done:"


def memp(base: Base) -> MemorySystem:
    """The ``_SHOWN`` workflows whose tasks are nearest; new ones from successes, and the first one shown is rewritten.

    The authors' update "reflect", with workflows written in one call ("direct") and found by the task. Their floor is
    0.5 of their embedder, ours is the embedder's own. They delete what was shown 3 times with less than half successes
    (the curator ``Prune`` does that for any system), skip tasks whose text is stored, and learn from the true reward.
    """
    return MemorySystem(
        stores="a workflow of each success, rewritten when it was shown before a failure",
        shows=f"the {_SHOWN} nearest workflows by task",
        source="zjunlp/MemP",
        retrieve=Recall(base, Nearest(_SHOWN, ("workflow",)), Listed(_HEADING)),
        teach=Asked(base.distill, _workflow, Induce),
        curate=[Rewrite(base.distill)],
        signal="outcome",
    )


class Rewrite(dspy.Module):
    """After a failure, the workflow that was shown first is replaced by what would have worked."""

    def __init__(self, config: DistillConfig) -> None:
        super().__init__()
        self.config, self.predict = config, dspy.Predict(Correct)

    def forward(self, curated: Curated, task: Task, bank: MemoryBank) -> Curated:
        """See ``memories.Curator``. Of several rollouts that failed, the first is read."""
        failed = [each for each in curated.attempts if each.verdict.label == "failure"]
        shown = [each for each in failed[0].shown if each.kind == "workflow"][:1] if failed else []
        if not shown or shown[0].id in curated.retired or not bank.items([shown[0].id]):
            return curated
        old = escape_markers(f"{shown[0].title}\n{shown[0].content}")
        steps = _steps(asked(self.predict, self.config, failed[0], workflow=old))
        new = joined(shown, task, shown[0].title, steps)
        return retire(replace(curated, drafts=(*curated.drafts, new)), shown, f"rewritten after task {task.id} failed")


def _workflow(said: dspy.Prediction, attempt: Attempt) -> Iterable[ItemDraft]:
    yield case(attempt, _steps(said), "workflow")


def _steps(said: dspy.Prediction) -> str:
    """The steps as a list. Raises ``UnparseableOutput`` if there are none, which would replace a good workflow."""
    steps = texts(said, "steps")
    if not steps:
        raise UnparseableOutput("the distiller's workflow has no steps; expected at least one")
    return "\n".join(f"- {step}" for step in steps)


class Induce(Attempted):
    """This attempt succeeded. Write down the workflow behind it, for agents that get a similar task."""

    steps: list[str] = dspy.OutputField(
        desc="the steps that mattered, in order, each one instruction; names, codes and rules that stay true are kept"
    )


class Correct(Rollout):
    """An agent followed this workflow and failed. Find where the workflow misled it or left it alone, and rewrite it.

    Keep the steps that worked. Put in what the environment said, so that the next agent with such a task succeeds.
    """

    workflow: str = dspy.InputField(desc="the task that the workflow was learned from, and its steps")
    steps: list[str] = dspy.OutputField(desc="the steps of the whole new workflow, in order, each one instruction")
