"""Memento: the plans of similar tasks, those that succeeded to follow and those that failed to avoid."""

from __future__ import annotations

from collections.abc import Iterator

import dspy

from rb_dspy.memories.credit import WinRate
from rb_dspy.memories.rankers import Weighed
from rb_dspy.memories.recall import Nearest, Parted, Recall, succeeded, together
from rb_dspy.memories.system import Attempt, Base, MemorySystem
from rb_dspy.memories.teach import Asked, Attempted, case, texts
from rb_dspy.schema import ItemDraft

_NEAR = 8
"""Nearest cases of each kind (Agent-on-the-Fly/Memento: top_k 8 in the code)."""
_SHOWN = 4
"""Of these, the shown ones (K = 4 is the paper's best)."""
_PARTS = (
    ("Plans that worked for similar tasks; follow what applies:", succeeded),
    ("Plans that failed for similar tasks; do not repeat their mistakes:", lambda item: True),
)


def memento(base: Base) -> MemorySystem:
    """Plans of successes and of failures, in two blocks.

    The authors' planner writes a plan before it acts, and only the planner sees the cases; our agent has no planner,
    so that the plan is read from the rollout, and the agent sees it. They select cases by similarity alone, or by a
    classifier trained on what came of them, in whose place we have the share of successes. Their feedback is a judge
    that knows the reference answer.
    """
    near = together(*(Nearest(_NEAR, ("case",), -1.0, label) for label in ("success", "failure")))
    return MemorySystem(
        stores="the plan of each rollout, with its label",
        shows=f"{_SHOWN} that succeeded and {_SHOWN} that failed, by likeness of the task and success",
        source="Agent-on-the-Fly/Memento",
        retrieve=Recall(base, near, Parted(_PARTS), rank=[Weighed(WinRate(), _SHOWN, apart=True)]),
        teach=Asked(base.distill, _plan, Plan, Plan),
        signal="outcome",
    )


def _plan(said: dspy.Prediction, attempt: Attempt) -> Iterator[ItemDraft]:
    if steps := texts(said, "plan"):
        yield case(attempt, "\n".join(f"- {step}" for step in steps), label=attempt.verdict.label)


class Plan(Attempted):
    """Write down the plan that this attempt followed, whether it was good or not."""

    plan: list[str] = dspy.OutputField(desc="its subtasks in order, each in one sentence")
