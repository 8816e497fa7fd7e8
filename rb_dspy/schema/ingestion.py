"""Rollouts that are being learned from."""

from __future__ import annotations

from typing import Literal

import pydantic

from rb_dspy.schema.frozen import Frozen
from rb_dspy.schema.item import Polarity
from rb_dspy.schema.task import Task
from rb_dspy.schema.trajectory import Trajectory
from rb_dspy.schema.verdict import Verdict
from rb_dspy.signatures.draft import MemoryDraft

IngestionStage = Literal["recorded", "judged", "distilled"]
"""How far learning from rollouts got: they are kept; their verdicts are; the drafts are, and can be admitted."""


class Ingestion(Frozen):
    """Rollouts on their way to becoming an experience; what each step gave is stored before the next begins.

    ``id`` is that of the experience it becomes. ``verdicts`` and ``drafts`` are None until there are some.
    """

    model_config = pydantic.ConfigDict(ser_json_inf_nan="constants")

    id: str
    scope: str
    task: Task
    trajectories: tuple[Trajectory, ...]
    verdicts: tuple[Verdict, ...] | None = None
    drafts: tuple[MemoryDraft, ...] | None = None
    polarity: Polarity | None = None
    """Of the drafts, where it is not that of the verdicts together (see ``ExperienceDraft``)."""
    run_id: str = ""
    distiller: str = ""
    note: str = ""
    """The distiller's: why some drafts, or all, are missing."""
    error: str = ""
    """Why the last try to get further failed."""
    told: bool = pydantic.Field(default=False, exclude_if=lambda told: not told)
    """Whether a try failed, and who made it heard so, with what the rollouts had used."""
    origin: str = ""
    shown: tuple[str, ...] = ()
    created_at: str = ""

    @property
    def stage(self) -> IngestionStage:
        """How far it got."""
        return "recorded" if self.verdicts is None else "judged" if self.drafts is None else "distilled"
