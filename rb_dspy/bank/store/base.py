"""What a store of banks must do: read one scope at one moment, and write to it in transactions.

The reads and writes are small on purpose. What they mean together (what counts as the same, what goes with what) is
decided above, once for all stores.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from rb_dspy.bank.store.records import (
    Entry,
    ExperienceRow,
    IndexRow,
    ItemRow,
    PendingKey,
    PendingRow,
    SnapshotRow,
    Unit,
    VectorRow,
)


class Reader(Protocol):
    """Reads one scope. Rows come in the order of their numbers; ``ended=True`` adds those that have ended."""

    def mark(self) -> int:
        """The highest number used; 0 in an empty scope."""
        ...

    def experiences(
        self,
        *,
        ids: Collection[str] | None = None,
        seqs: Collection[int] | None = None,
        task_id: str | None = None,
        run_id: str | None = None,
        origin: str | None = None,
        after: int = 0,
        limit: int | None = None,
        ended: bool = False,
        payload: bool = False,
    ) -> list[ExperienceRow]: ...

    def items(
        self,
        *,
        ids: Collection[str] | None = None,
        seqs: Collection[int] | None = None,
        experiences: Collection[int] | None = None,
        ended: bool = False,
    ) -> list[ItemRow]: ...

    def exposures(
        self, *, experiences: Collection[int] | None = None, items: Collection[str] | None = None
    ) -> list[tuple[int, str]]:
        """Number of the experience, and the id of an item that its agent was shown."""
        ...

    def journal(self, *, subjects: Collection[str] | None = None, item: str | None = None) -> list[Entry]:
        """All entries, or those about ``subjects``, or edits that led to ``item``."""
        ...

    def snapshots(self) -> list[SnapshotRow]: ...

    def pending(self, *, run_id: str | None = None, task_id: str | None = None) -> list[PendingRow]: ...


class Writer(Reader, Protocol):
    """One transaction: reads see what it wrote; all of it is stored when it ends, or nothing."""

    def allocate(self, count: int) -> int:
        """Take the next ``count`` numbers and return the last of them."""
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

    def delete(self, seqs: Collection[int], *, notes_of: Collection[str]) -> None:
        """Delete experiences and item rows for good, with their vectors and exposures, and the notes on these ids.

        The epoch changes, so that indexes are read anew.
        """
        ...


class Scope(Protocol):
    """A scope of a store, or of a fork. Safe to use from threads, and beside other processes if the store is shared."""

    @property
    def name(self) -> str: ...

    @property
    def location(self) -> str:
        """Where the store is, for people."""
        ...

    def now(self) -> Reader:
        """The present state: each read sees what was committed before it."""
        ...

    def at(self, mark: int) -> Reader:
        """The state at ``mark``."""
        ...

    def reading(self) -> AbstractContextManager[object]:
        """A block whose reads, on this thread, are of one moment, and cheaper than one by one."""
        ...

    def write(
        self, *, embedder: tuple[str, int] | None = None, exclusive: bool = False
    ) -> AbstractContextManager[Writer]:
        """A transaction.

        Args:
            embedder: Id and dimension of the vectors that are written; None if there are none.
            exclusive: Writers of other scopes wait too.

        Raises:
            EmbedderMismatch: The bank belongs to another embedder by now.
            StorageError: The database cannot be written.
        """
        ...

    def embedder(self) -> tuple[str, int] | None:
        """Id and dimension of the embedder that the bank belongs to; None until vectors are stored."""
        ...

    def watermark(self) -> tuple[int, int, str]:
        """The highest number used, the epoch (another one means that indexes must be read anew), the embedder's id."""
        ...

    def index_rows(self, unit: Unit, *, after: int, upto: int) -> Iterator[IndexRow]:
        """Rows with a vector, also those that have ended, with numbers above ``after`` and up to ``upto``."""
        ...


class IndexedScope(Scope, Protocol):
    """A scope of a database, which an index in memory follows."""

    def index_ended(self, unit: Unit, *, after: int, upto: int) -> list[tuple[int, int]]:
        """Rows that were ended by a number above ``after`` and up to ``upto``: their numbers, and that number."""
        ...

    def index_file(self, unit: Unit) -> Path | None:
        """Where what is computed for searching may be stored, so that it need not be computed again; None: nowhere."""
        ...

    def texts(self, unit: Unit, *, after: int, upto: int) -> list[tuple[int, str]]:
        """The texts behind rows, also those that have ended, by number."""
        ...
