"""MEL: why a right and a wrong rollout of one task ended differently, from the first step at which they differ."""

from __future__ import annotations

from collections.abc import Sequence

import dspy

from rb_dspy.bank import MemoryBank
from rb_dspy.config import DistillConfig
from rb_dspy.memories.recall import Listed, Nearest, Recall
from rb_dspy.memories.system import Attempt, Base, MemorySystem
from rb_dspy.memories.teach import item, model_of, sentence
from rb_dspy.schema import Trajectory
from rb_dspy.steps import Distill, Distilled
from rb_dspy.steps.ask import ask
from rb_dspy.steps.transcript import escape_markers, final_state, transcript

_SHOWN = 4
"""Heuristics and lessons that are shown; ours, as the authors train them into the model instead."""


def mel(base: Base) -> MemorySystem:
    """A heuristic from the pair of rollouts, one right and one wrong, that have most steps in common.

    It needs several rollouts of a task (``MaTTS``). One alone, or several that were judged the same, teach what they
    teach without a memory system: lessons by ``Distill``, of the first that was judged. The authors let the model find
    the fork; we compare the actions, and the model reads what follows. They keep a heuristic only if the task is solved
    again with it; a distiller has no environment to do that in, so all are kept. They also train on what they keep; we
    do not.
    """
    return MemorySystem(
        stores="why the first fork of a right and a wrong rollout decided; lessons, if all are alike",
        shows=f"the {_SHOWN} nearest",
        source="MEL, arXiv 2602.10224",
        retrieve=Recall(base, Nearest(_SHOWN, ("heuristic", "lesson")), Listed()),
        teach=AtFork(base.distill),
        signal="outcome",
    )


def fork(one: Trajectory, other: Trajectory) -> int | None:
    """After how many steps the actions of two rollouts differ; None if they never do."""
    first, second = ([" ".join(step.action.split()) for step in each.steps] for each in (one, other))
    shared = next((n for n, pair in enumerate(zip(first, second, strict=False)) if pair[0] != pair[1]), None)
    if shared is None and len(first) != len(second):
        return min(len(first), len(second))
    return shared


class AtFork(dspy.Module):
    """A heuristic from a right and a wrong rollout; lessons from one alone."""

    def __init__(self, config: DistillConfig) -> None:
        super().__init__()
        self.config = config
        self.contrast, self.alone = dspy.Predict(Fork), Distill(config)

    def forward(self, attempts: Sequence[Attempt], bank: MemoryBank) -> Distilled:
        """See ``memories.Distiller``."""
        right, wrong = ([each for each in attempts if each.verdict.label == label] for label in ("success", "failure"))
        pairs = [(fork(good.trajectory, bad.trajectory), good, bad) for good in right for bad in wrong]
        forked = [(shared, good, bad) for shared, good, bad in pairs if shared is not None]
        if forked:
            return self._contrasted(*max(forked, key=lambda each: each[0]))
        one = next((each for each in attempts if each.verdict.label != "unknown"), attempts[0])
        alone: Distilled = self.alone(one.task, one.trajectory, one.verdict, one.number)
        return alone

    def _contrasted(self, shared: int, good: Attempt, bad: Attempt) -> Distilled:
        before = good.trajectory.model_copy(update={"steps": good.trajectory.steps[:shared], "checks": ()})

        def inputs(max_tokens: int) -> dict[str, str]:
            third = max_tokens // 3
            return {
                "task": escape_markers(good.task.instruction),
                "both": transcript(before, third),
                "right": _after(good.trajectory, shared, third),
                "wrong": _after(bad.trajectory, shared, third),
            }

        said = ask(self.contrast, "distiller", self.config, inputs, rollouts=2, rollout=good.number)
        content = f"{sentence(said, 'heuristic')}\nWhy: {sentence(said, 'cause')}"
        return Distilled((item("heuristic", sentence(said, "situation"), content),), "", model_of(self.contrast))


def _after(trajectory: Trajectory, shared: int, max_tokens: int) -> str:
    """What a rollout did after its first ``shared`` steps, and how it ended."""
    seen = trajectory.steps[shared - 1].observation if shared else trajectory.first_observation
    rest = trajectory.model_copy(update={"steps": trajectory.steps[shared:], "first_observation": seen, "checks": ()})
    return f"{transcript(rest, max_tokens)}\n{final_state(rest, max_tokens // 4)}"


class Fork(dspy.Signature):
    """Two attempts at one task began alike. Say which difference decided, and what it teaches about similar tasks."""

    task: str = dspy.InputField(desc="what was to be done")
    both: str = dspy.InputField(desc="what both attempts did first")
    right: str = dspy.InputField(desc="how the attempt that succeeded went on")
    wrong: str = dspy.InputField(desc="how the attempt that failed went on")
    cause: str = dspy.OutputField(desc="why one succeeded and the other did not, in a sentence")
    situation: str = dspy.OutputField(desc="on which tasks, and in which state, this matters; one sentence")
    heuristic: str = dspy.OutputField(desc="what to do there, so that it can be followed without these attempts")
