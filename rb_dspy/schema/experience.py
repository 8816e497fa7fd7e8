"""What is appended to a bank."""

from __future__ import annotations

from rb_dspy.schema.frozen import Frozen
from rb_dspy.schema.item import MemoryItem, Polarity
from rb_dspy.schema.task import Task
from rb_dspy.schema.trajectory import Trajectory
from rb_dspy.schema.verdict import Verdict
from rb_dspy.signatures.draft import MemoryDraft


class Experience(Frozen):
    """The unit that is appended and, by default, retrieved: a task, its rollouts and verdicts, and the items they gave.

    ``trajectories`` and ``verdicts`` are aligned. ``note`` says why nothing was distilled, where that is so.
    """

    id: str
    scope: str
    seq: int
    task: Task
    trajectories: tuple[Trajectory, ...]
    verdicts: tuple[Verdict, ...]
    items: tuple[MemoryItem, ...] = ()
    run_id: str = ""
    note: str = ""
    origin: str = ""
    """See ``Provenance.origin``."""
    shown: tuple[str, ...] = ()
    """Ids of the items that the agent had been given."""
    created_at: str = ""
    """ISO 8601, UTC; for people, never for order."""


class ExperienceDraft(Frozen):
    """An experience before a bank has admitted it: rollouts of a task, their verdicts, and what was drawn from them.

    ``trajectories`` and ``verdicts`` are aligned, one or more. ``polarity`` of the items follows the verdicts where it
    is None: success when any rollout was one, else failure.
    """

    task: Task
    trajectories: tuple[Trajectory, ...]
    verdicts: tuple[Verdict, ...]
    drafts: tuple[MemoryDraft, ...] = ()
    run_id: str = ""
    polarity: Polarity | None = None
    distiller: str = ""
    note: str = ""
    origin: str = ""
    shown: tuple[str, ...] = ()
    """Ids of the items that the agent had been given."""
