"""The rows of a store.

Reads and writes (``sql.py``, ``overlay.py``) are small on purpose. The layer above decides, once for all stores, what
counts as a duplicate and what a removal includes.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal, NamedTuple

from rb_dspy.schema import ChangeKind, Label, Polarity

Unit = Literal["experience", "item"]
"""What is ranked: whole experiences, as in the paper, or single items."""

UNITS: tuple[Unit, ...] = ("experience", "item")


class ExperienceRow(NamedTuple):
    """An experience. ``payload`` is None unless it was requested."""

    seq: int
    id: str
    ended: int | None
    task_id: str
    template: str | None
    run_id: str
    origin: str
    distiller: str
    note: str
    label: Label
    polarity: Polarity
    instruction: str
    created_at: str
    level: int
    reward: float | None
    payload: bytes | None = None


class ItemRow(NamedTuple):
    """An item of an experience; see the table ``items``."""

    seq: int
    id: str
    ended: int | None
    learned: int
    experience: int
    task_id: str
    polarity: Polarity
    title: str
    description: str
    content: str
    kind: str
    data: str
    origin: str
    level: int


class Entry(NamedTuple):
    """An entry of the journal."""

    seq: int
    subject: str
    kind: ChangeKind
    items: tuple[str, ...] = ()
    note: str = ""
    created_at: str = ""


class SnapshotRow(NamedTuple):
    """A named state."""

    name: str
    seq: int
    created_at: str


class UseRow(NamedTuple):
    """An item or an experience that was shown before ``experience`` was made; see the table ``uses``."""

    experience: int
    subject: str
    place: int
    cited: bool


class PendingKey(NamedTuple):
    """The key of a pending rollout in its scope; see the table ``pending``."""

    run_id: str
    task_id: str
    rollout_id: str
    content: str


class PendingRow(NamedTuple):
    """A rollout that is not learned from yet; ``shown`` are the ids of what its agent was shown."""

    key: PendingKey
    payload: bytes | None
    shown: tuple[str, ...]
    created_at: str
    origin: str = ""
    tries: int = 0
    error: str = ""


class IndexRow(NamedTuple):
    """A row of the search index; ``data`` is the packed vector."""

    seq: int
    ended: int | None
    task_id: str
    polarity: Polarity
    level: int
    data: bytes
    kind: str = ""
    """Empty if it is an experience."""


HELD = 0
"""The lowest level; see ``schema.LEVELS``."""


@dataclass(frozen=True, slots=True)
class Filter:
    """Which rows a search may return.

    They are live at ``at`` (None: now), not from ``exclude_tasks``, of ``polarity`` (None: both), not in ``hidden``, in
    ``within`` (None: any), and above level 0, or in ``released``. ``kinds``: items of these kinds (None: of any).
    """

    at: int | None = None
    exclude_tasks: frozenset[str] = frozenset()
    polarity: Polarity | None = None
    hidden: Collection[int] = ()
    within: Collection[int] | None = None
    released: Collection[int] = ()
    kinds: frozenset[str] | None = None


class Hit(NamedTuple):
    """A search result. A higher score is better."""

    seq: int
    score: float
