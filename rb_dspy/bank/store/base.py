"""The interface and rows of a store: read one scope at one moment, and write to it in transactions.

The reads and writes are small on purpose. The layer above decides, once for all stores, what counts as a duplicate and
what a removal includes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol, TypedDict, Unpack

from rb_dspy.protocols import Vectors
from rb_dspy.schema import ChangeKind, Label, Polarity

Unit = Literal["experience", "item"]
"""What is ranked: whole experiences, as in the paper, or single items."""

UNITS: tuple[Unit, ...] = ("experience", "item")


@dataclass(frozen=True, slots=True)
class ExperienceRow:
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
    payload: bytes | None = None


@dataclass(frozen=True, slots=True)
class ItemRow:
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


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry of the journal."""

    seq: int
    subject: str
    kind: ChangeKind
    items: tuple[str, ...] = ()
    note: str = ""
    created_at: str = ""


@dataclass(frozen=True, slots=True)
class SnapshotRow:
    """A named state."""

    name: str
    seq: int
    created_at: str


class PendingKey(NamedTuple):
    """The key of a pending rollout in its scope; see the table ``pending``."""

    run_id: str
    task_id: str
    rollout_id: str
    content: str


@dataclass(frozen=True, slots=True)
class PendingRow:
    """A rollout that is not learned from yet; ``shown`` are the ids of the items that its agent was shown."""

    key: PendingKey
    payload: bytes | None
    shown: tuple[str, ...]
    created_at: str
    tries: int = 0
    error: str = ""


@dataclass(frozen=True, slots=True)
class VectorRow:
    """The vector of an experience or an item row: shape ``(dimension,)``, unit length, float32."""

    unit: Unit
    seq: int
    vector: Vectors


class IndexRow(NamedTuple):
    """A row of the search index; ``data`` is the packed vector."""

    seq: int
    ended: int | None
    task_id: str
    polarity: Polarity
    data: bytes


@dataclass(frozen=True, slots=True)
class Filter:
    """Which rows a search may return: live at ``at`` (None: now), not from ``exclude_tasks``, of ``polarity`` (None:
    both), and not in ``hidden``.
    """

    at: int | None = None
    exclude_tasks: frozenset[str] = frozenset()
    polarity: Polarity | None = None
    hidden: Collection[int] = field(default=())


class Hit(NamedTuple):
    """A search result. A higher score is better."""

    seq: int
    score: float


class ExperienceFilter(TypedDict, total=False):
    """Which experiences to read; a key that is missing or None does not limit them.

    ``after``: only higher numbers than this. ``limit``: maximum number of rows. ``payload``: include it.
    """

    after: int
    limit: int | None
    payload: bool
    ids: Collection[str] | None
    seqs: Collection[int] | None
    task_id: str | None
    run_id: str | None
    origin: str | None


class ItemFilter(TypedDict, total=False):
    """Which item rows to read; at most one key may be set."""

    ids: Collection[str] | None
    seqs: Collection[int] | None
    experiences: Collection[int] | None


class Reader(Protocol):
    """Reads one scope. Rows are ordered by number; ``ended=True`` includes ended rows."""

    def mark(self) -> int:
        """The highest number used; 0 in an empty scope."""
        ...

    def experiences(self, *, ended: bool = False, **where: Unpack[ExperienceFilter]) -> list[ExperienceRow]: ...

    def items(self, *, ended: bool = False, **where: Unpack[ItemFilter]) -> list[ItemRow]: ...

    def exposures(
        self, *, experiences: Collection[int] | None = None, items: Collection[str] | None = None
    ) -> list[tuple[int, str]]:
        """Return pairs: number of an experience, and id of an item that its agent was shown."""
        ...

    def journal(self, *, subjects: Collection[str] | None = None, item: str | None = None) -> list[Entry]:
        """All entries, or those about ``subjects``, or edits that led to ``item``."""
        ...

    def snapshots(self) -> list[SnapshotRow]: ...

    def pending(
        self, *, run_id: str | None = None, task_id: str | None = None, payload: bool = True
    ) -> list[PendingRow]: ...


class Writer(Reader, Protocol):
    """One transaction: its reads see its writes; at the end, all of it is stored, or nothing."""

    def allocate(self, count: int) -> int:
        """Reserve the next ``count`` numbers and return the last of them."""
        ...

    def add(
        self,
        *,
        experiences: Sequence[ExperienceRow] = (),
        items: Sequence[ItemRow] = (),
        vectors: Sequence[VectorRow] = (),
        exposures: Sequence[tuple[int, str]] = (),
        entries: Sequence[Entry] = (),
    ) -> None: ...

    def end(self, seqs: Collection[int], at: int) -> None:
        """End experiences and item rows."""
        ...

    def add_pending(self, row: PendingRow) -> None: ...

    def fail_pending(self, keys: Collection[PendingKey], error: str) -> None: ...

    def remove_pending(self, keys: Collection[PendingKey]) -> None: ...

    def add_snapshot(self, row: SnapshotRow) -> None: ...


class Scope(Protocol):
    """A scope of a store, or of a fork. Safe to use from threads, and from several processes if the store is shared."""

    @property
    def name(self) -> str: ...

    @property
    def location(self) -> str:
        """Where the store is, for messages."""
        ...

    def reading(self) -> AbstractContextManager[Reader]:
        """Open a block whose reads, on this thread, all see the state at its beginning.

        Do not call a searcher inside it: a searcher has its own lock.
        """
        ...

    def at(self, mark: int) -> Reader:
        """Return a reader of the state at ``mark``."""
        ...

    def write(self, *, embedder: tuple[str, int] | None = None) -> AbstractContextManager[Writer]:
        """Open a transaction.

        Args:
            embedder: Id and dimension of the embedder whose vectors are written; None if there are none.

        Raises:
            EmbedderMismatch: The bank belongs to another embedder.
            StorageError: The database cannot be written.
        """
        ...

    def embedder(self) -> tuple[str, int] | None:
        """Id and dimension of the embedder that the bank belongs to; None until vectors are stored."""
        ...

    def index_rows(self, unit: Unit, *, after: int, upto: int) -> Iterator[IndexRow]:
        """Yield rows with a vector, including ended rows, with numbers above ``after`` and up to ``upto``."""
        ...
