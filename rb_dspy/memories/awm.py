"""Agent Workflow Memory: routines with variables, induced from rollouts that succeeded."""

from __future__ import annotations

from collections.abc import Sequence

import dspy
import pydantic

from rb_dspy.bank import MemoryBank
from rb_dspy.config import DistillConfig
from rb_dspy.memories.curators import Replace
from rb_dspy.memories.recall import Listed, Nearest, Recall, Recent
from rb_dspy.memories.system import Attempt, Base, MemorySystem
from rb_dspy.memories.teach import case, item, learned, listed
from rb_dspy.schema import ItemDraft, Task, Trajectory
from rb_dspy.steps import Distilled
from rb_dspy.steps.ask import ask
from rb_dspy.steps.transcript import escape_markers, number_attempts
from rb_dspy.text import cut

_LAST = 30
"""Successes from which the file is induced. Ours: the authors' code has no limit."""
_TASK_TOKENS = 200
"""Of each task, beside its rollout."""
_HEADING = "Workflows from earlier tasks; {names} stand for what differs between tasks:"


def awm(base: Base) -> MemorySystem:
    """One file of workflows, written anew after each success, and shown whole.

    Of each template the authors draw one success at random, and we take the newest. They have a file for each site, a
    bank of its own here; they take out scrolling and invalid actions, which an environment does not tell us; their
    temperature (1.0) and length (2,048) are the run's. Nobody is shown a file that was induced from the own task.
    """
    return MemorySystem(
        stores=f"one file of workflows, from the last {_LAST} successes",
        shows="the whole file",
        source="zorazrw/agent-workflow-memory, webarena/induce_prompt.py",
        retrieve=Recall(base, Recent(None, ("workflow",)), Listed(_HEADING, "system")),
        teach=Induce(base.distill, _LAST),
        curate=[Replace(("workflow",))],
    )


def awm_top1(base: Base) -> MemorySystem:
    """The workflows of one success: a baseline of the ReasoningBank paper, which is weaker than AWM.

    As google-research/reasoning-bank: from one rollout at a time, only if it is judged a success; the nearest by task,
    without a floor. Their temperature is 0.7, ours the run's.
    """
    return MemorySystem(
        stores="the workflows of each success",
        shows="those of the nearest task",
        source="google-research/reasoning-bank",
        retrieve=Recall(base, Nearest(1, ("workflow",), min_score=-1.0), Listed(_HEADING, "system")),
        teach=Induce(base.distill, 1),
    )


class Induce(dspy.Module):
    """Workflows from the last ``last`` successes, one for each template; from one alone, if it is 1."""

    def __init__(self, config: DistillConfig, last: int) -> None:
        super().__init__()
        self.predict = dspy.Predict(InduceWorkflows)
        self.config, self.last = config, last

    def forward(self, attempts: Sequence[Attempt], bank: MemoryBank) -> Distilled:
        """See ``memories.Distiller``."""
        new = [each for each in attempts if each.verdict.label == "success"]
        drafts: list[ItemDraft] = []
        if self.last == 1:
            for each in new:
                text = self._induced([(each.task, each.trajectory)], each.number)
                drafts += [case(each, text, "workflow")] if text else []
        elif new:
            history = [*_successes(bank, self.last - 1), (new[0].task, new[0].trajectory)]
            history = list({task.template or task.id: (task, rollout) for task, rollout in history}.values())
            text = self._induced(history, new[0].number)
            tasks = list(dict.fromkeys(task.id for task, _ in history))
            drafts += [item("workflow", "Workflows", text, tasks=tasks)] if text else []
        return learned(drafts, attempts, self.predict)

    def _induced(self, history: Sequence[tuple[Task, Trajectory]], number: int) -> str:
        def inputs(max_tokens: int) -> dict[str, object]:
            tasks = [escape_markers(cut(task.instruction, _TASK_TOKENS)) for task, _ in history]
            return {"tasks": tasks, "attempts": number_attempts([each for _, each in history], max_tokens)}

        said = ask(self.predict, "distiller", self.config, inputs, rollouts=len(history), rollout=number)
        found = [each for each in listed(said, "workflows", Workflow) if each.goal and each.steps]
        return "\n".join("\n- ".join([each.goal, *each.steps]) for each in found)


def _successes(bank: MemoryBank, last: int) -> list[tuple[Task, Trajectory]]:
    """The last successes, oldest first; of several rollouts of a task the first that succeeded."""
    every = [each for each in bank.experiences(last, label="success") if each.level != "held"]
    labels = [[verdict.label for verdict in each.verdicts] for each in every]
    return [(each.task, each.trajectories[of.index("success")]) for each, of in zip(every, labels, strict=True)]


class Workflow(pydantic.BaseModel):
    """A routine for a part of similar tasks."""

    goal: str = pydantic.Field(description="what it achieves, in one line")
    steps: list[str] = pydantic.Field(description="each one line: what is seen, why to act, and the action")


class InduceWorkflows(dspy.Signature):
    """Find the routines by which these attempts succeeded, for agents that have similar tasks.

    A routine is two or more steps that several tasks need, whole or as a part of them. For a value that differs from
    task to task, write a name in braces, such as {city}; keep what is always the same. Write each routine once.
    """

    tasks: list[str] = dspy.InputField(desc="what was to be done, in the order of the attempts")
    attempts: str = dspy.InputField(desc="what was done; all of it succeeded")
    workflows: list[Workflow] = dspy.OutputField()
