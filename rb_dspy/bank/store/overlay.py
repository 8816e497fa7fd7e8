"""Forks and snapshots: the state of a scope at one number, under private changes in memory."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, TypeVar

from rb_dspy.bank.store.base import Entry, ExperienceRow, IndexRow, ItemRow, PendingRow, SnapshotRow, Unit, UseRow
from rb_dspy.bank.store.sql import SqlReader, SqlScope, SqlWriter, open_scope
from rb_dspy.bank.store.sqlite import SqliteDatabase
from rb_dspy.errors import EmbedderMismatch, StorageError
from rb_dspy.protocols import Vectors

R = TypeVar("R", ExperienceRow, ItemRow, IndexRow)
T = TypeVar("T")
W = TypeVar("W")


class OverlayReader:
    """Reads the rows of ``below`` that are not in ``hidden``, then those of ``own`` (None: no rows)."""

    def __init__(
        self, below: Reader, own: SqlReader | None, mark: int, hidden: Mapping[int, int], at: int | None
    ) -> None:
        self._below = below
        self._own = own
        self._mark = mark
        self._hidden = hidden
        self._at = at

    def mark(self) -> int:
        if self._at is not None:
            return self._at
        return self._mark if self._own is None else self._own.mark()

    def experiences(self, *, ended: bool = False, **where: Any) -> list[ExperienceRow]:
        rows = self._visible(self._below.experiences(ended=ended, **where), ended)
        return rows if self._own is None else rows + self._own.experiences(ended=ended, **where)

    def items(self, *, ended: bool = False, **where: Any) -> list[ItemRow]:
        rows = self._visible(self._below.items(ended=ended, **where), ended)
        return rows if self._own is None else rows + self._own.items(ended=ended, **where)

    def items_with_experiences(
        self,
        ids: Collection[str] | None = None,
        *,
        seqs: Collection[int] | None = None,
        kinds: Collection[str] | None = None,
    ) -> list[tuple[ItemRow, ExperienceRow]]:
        """As that of ``SqlReader``. An own row may belong to an experience of the base, which may have purged it."""
        rows = self.items(ids=ids if seqs is None else {row.id for row in self.items(seqs=seqs)})
        rows = [row for row in rows if kinds is None or row.kind in kinds]
        givers = {row.experience for row in rows}
        experiences = {row.seq: row for row in self.experiences(seqs=givers, ended=True)}
        return [(row, experiences[row.experience]) for row in rows if row.experience in experiences]

    def tally(self, table: str, by: Sequence[str], *, ended: bool = False, **where: Any) -> Counter[Any]:
        if table == "items":
            origin = where.get("origin")
            rows: Sequence[Any] = [row for row in self.items(ended=ended) if origin in (None, row.origin)]
        else:
            rows = self.experiences(ended=ended, **where)
        return Counter(tuple(getattr(row, name) for name in by) for row in rows)

    def uses(self, **where: Any) -> list[UseRow]:
        return self._both(lambda reader: reader.uses(**where))

    def journal(self, **where: Any) -> list[Entry]:
        return self._both(lambda reader: reader.journal(**where))

    def vectors(self, unit: Unit, seqs: Collection[int]) -> dict[int, Vectors]:
        own = {} if self._own is None else self._own.vectors(unit, [seq for seq in seqs if seq > self._mark])
        return self._below.vectors(unit, [seq for seq in seqs if seq <= self._mark]) | own

    def ids(self, prefix: str) -> list[str]:
        return sorted({*self._both(lambda reader: reader.ids(prefix))})

    def snapshots(self) -> list[SnapshotRow]:
        return self._both(lambda reader: reader.snapshots())

    def pending(self, **where: Any) -> list[PendingRow]:
        """Return pending rollouts of the overlay only; those of the base stay with the base."""
        return [] if self._own is None else self._own.pending(**where)

    def _visible(self, rows: Sequence[R], ended: bool) -> list[R]:
        at = self._mark if self._own is None and self._at is None else self._at
        return list(visible(rows, self._hidden, self._mark, at, ended))

    def _both(self, read: Callable[[Reader], list[T]]) -> list[T]:
        return read(self._below) + ([] if self._own is None else read(self._own))


def visible(rows: Iterable[R], hidden: Mapping[int, int], mark: int, at: int | None, ended: bool) -> Iterator[R]:
    """Yield rows of the base as the overlay sees them: ended if hidden, and live if they ended after ``mark``."""
    for row in rows:
        end = row.ended if row.ended is not None and row.ended <= mark else hidden.get(row.seq)
        if end is not None and at is not None and end > at:
            end = None
        if ended or end is None:
            yield row if end == row.ended else row._replace(ended=end)


class OverlayWriter(OverlayReader):
    """Writes to the overlay's own store, and hides rows of the base."""

    def __init__(self, below: Reader, own: SqlWriter, mark: int, hidden: dict[int, int]) -> None:
        super().__init__(below, own, mark, hidden, None)
        self._writer = own
        self._hiding = hidden
        self.allocate = own.allocate
        self.add = own.add
        self.add_pending = own.add_pending
        self.fail_pending = own.fail_pending
        self.remove_pending = own.remove_pending
        self.add_snapshot = own.add_snapshot

    def end(self, seqs: Collection[int], at: int) -> None:
        self._hiding.update((seq, at) for seq in seqs if seq <= self._mark)
        self._writer.end([seq for seq in seqs if seq > self._mark], at)


class Overlay:
    """A scope over ``base`` at ``mark``. Creating it reads nothing; the first write creates a store in memory."""

    def __init__(self, base: Scope, mark: int, *, read_only: bool = False) -> None:
        self.base = base
        self.name: str = base.name
        self.location: str = f"{base.location}@{mark}"
        self.born = mark
        self.read_only = read_only
        self.own: SqlScope | None = None
        self.hidden: dict[int, int] = {}
        self._lock = threading.RLock()

    def now(self) -> OverlayReader:
        return OverlayReader(self.base.at(self.born), self.own, self.born, self.hidden, None)

    def at(self, mark: int) -> OverlayReader:
        below = self.base.at(min(mark, self.born))
        return OverlayReader(below, None if self.own is None else self.own.at(mark), self.born, self.hidden, mark)

    @contextmanager
    def write(self, *, embedder: tuple[str, int] | None = None) -> Iterator[Writer]:
        if self.read_only:
            raise StorageError(f"{self.location}: a snapshot cannot be written; write to its fork()")
        known = self.base.embedder()
        if embedder is not None and known not in (None, embedder):
            raise EmbedderMismatch(f"{self.location}: the bank was moved to another embedder; fork it again")
        with self._lock:
            if self.own is None:
                own = open_scope(SqliteDatabase(None), self.name)
                with own.write() as writer:
                    writer.allocate(self.born)  # its numbers follow those of the base
                self.own = own
            hidden = dict(self.hidden)
            with self.own.write(embedder=embedder) as writer:
                yield OverlayWriter(self.base.at(self.born), writer, self.born, hidden)
            self.hidden = hidden

    def together(
        self,
        work: Callable[[Writer, Sequence[T]], Sequence[W]],
        item: T,
        *,
        embedder: tuple[str, int] | None = None,
    ) -> W:
        """As ``SqlScope.together``; nobody else writes to an overlay."""
        with self.write(embedder=embedder) as writer:
            return work(writer, [item])[0]

    def embedder(self) -> tuple[str, int] | None:
        own = self.own
        return self.base.embedder() or (None if own is None else own.embedder())

    @contextmanager
    def reading(self) -> Iterator[Reader]:
        with self._lock, ExitStack() as stack:
            own = None if self.own is None else stack.enter_context(self.own.reading())
            stack.enter_context(self.base.reading())
            yield OverlayReader(self.base.at(self.born), own, self.born, self.hidden, None)

    def vectors(self, unit: Unit, seqs: Collection[int]) -> dict[int, Vectors]:
        return self.now().vectors(unit, seqs)

    def index_rows(self, unit: Unit, *, after: int, upto: int) -> Iterator[IndexRow]:
        below = self.base.index_rows(unit, after=after, upto=min(upto, self.born))
        yield from visible(below, self.hidden, self.born, None, True)
        if self.own is not None:
            yield from self.own.index_rows(unit, after=max(after, self.born), upto=upto)


Reader = SqlReader | OverlayReader
"""Reads one scope. Rows are ordered by number; ``ended=True`` includes ended rows."""

Writer = SqlWriter | OverlayWriter
"""One transaction: its reads see its writes; at the end, all of it is stored, or nothing."""

Scope = SqlScope | Overlay
"""A scope of a store, or of a fork. Safe to use from threads, and from several processes if the store is shared."""
