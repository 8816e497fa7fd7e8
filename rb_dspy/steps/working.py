"""Working memory: what an agent reads while it works on a task, and how a memory system changes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from rb_dspy.schema import Step, Task

Position = Literal["first_turn", "system", "messages"]
"""Where the lessons stand in the agent's prompt: beside the task, after the instructions, or as earlier turns."""


@dataclass(frozen=True)
class Moment:
    """When memory is read: before the first action (no ``steps``), or before a later one."""

    task: Task
    steps: tuple[Step, ...] = ()
    observation: str = ""
    """What the agent sees now: the observation of the last step, or the first one."""


@dataclass(frozen=True)
class Context:
    """What the agent's next prompt holds."""

    lessons: Mapping[str, str] = field(default_factory=dict)
    """Id -> text of the lessons in it; without those that cannot be dropped, because they stand as earlier turns or
    their text is not known (``Memory.parts``)."""
    steps: tuple[int, ...] = ()
    """Numbers, from 1, of the steps whose texts are in it."""
    archive: Mapping[str, str] = field(default_factory=dict)
    """Name -> summary of what was archived."""
    state: str = ""
    """What the last ``rewrite`` put in the place of earlier steps."""
    tokens: int = 0
    """Its length without the instructions (estimated)."""
    problems: tuple[str, ...] = ()
    """What could not be done of the edits before the last action, and why."""


@dataclass(frozen=True)
class ContextEdit:
    """A change of the next prompts. The rollout that is judged and stored never changes.

    The task, the first observation, and what the agent sees now always stay. A step is its thought, its action, and the
    observation after it. What an edit names and the context does not have is ignored, and ``Context.problems`` says so.

    ========= ==================================================================================
    kind      effect
    ========= ==================================================================================
    show      ``text`` stands before the next observation, once; the lessons of ``ids`` count as shown
    drop      the lessons or steps of ``ids`` are left out from now on
    archive   the steps of ``ids`` are replaced by the summary ``text``, under the name ``name``
    read      what was archived as ``name`` stands before the next observation, word for word
    rewrite   ``text`` replaces all earlier steps
    ========= ==================================================================================
    """

    kind: Literal["show", "drop", "archive", "read", "rewrite"]
    ids: tuple[str, ...] = ()
    """Ids of lessons, or numbers of steps."""
    text: str = ""
    name: str = ""


class WorkingMemory(Protocol):
    """Called before each action. Its own language model calls are the agent's: ``call(predict, "agent", ...)``."""

    def __call__(self, moment: Moment, context: Context) -> Sequence[ContextEdit]: ...
