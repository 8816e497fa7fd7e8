"""The values that flow through the loop: frozen, typed, JSON in and out.

Words: a *verdict* is a judge's opinion; an *outcome* is the environment's ground truth and reaches the scorer only. A
*draft* is proposed by a distiller; an *item* has been admitted to a bank.
"""

from rb_dspy.schema.experience import Experience, ExperienceDraft
from rb_dspy.schema.frozen import Text
from rb_dspy.schema.history import Change, ChangeKind, Removal, Snapshot
from rb_dspy.schema.ingestion import Ingestion, IngestionStage
from rb_dspy.schema.item import MemoryItem, Polarity, Provenance, Retrieved
from rb_dspy.schema.task import MAX_INSTRUCTION, Task
from rb_dspy.schema.trajectory import Check, Step, StopReason, Trajectory
from rb_dspy.schema.usage import RoleUsage, Usage
from rb_dspy.schema.verdict import Label, Outcome, Verdict
from rb_dspy.signatures.draft import MemoryDraft
from rb_dspy.text import hidden_characters, visible

__all__ = [
    "MAX_INSTRUCTION",
    "Change",
    "ChangeKind",
    "Check",
    "Experience",
    "ExperienceDraft",
    "Ingestion",
    "IngestionStage",
    "Label",
    "MemoryDraft",
    "MemoryItem",
    "Outcome",
    "Polarity",
    "Provenance",
    "Removal",
    "Retrieved",
    "RoleUsage",
    "Snapshot",
    "Step",
    "StopReason",
    "Task",
    "Text",
    "Trajectory",
    "Usage",
    "Verdict",
    "hidden_characters",
    "visible",
]
