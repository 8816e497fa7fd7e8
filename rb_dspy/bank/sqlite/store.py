"""A store of banks in one SQLite file: write-ahead log, one writer at a time, every commit on disk."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import weakref
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar

import sqlalchemy as sa

from rb_dspy.bank import vectors
from rb_dspy.bank.lineage import GivenRow, Member
from rb_dspy.bank.parts import BankStats, Changes, Finding, Giving, Match, NewExperience, NewItem, Placed, Source, Unit
from rb_dspy.bank.pending import Key, Row
from rb_dspy.bank.sqlite import (
    check,
    descent,
    edits,
    embedders,
    feed,
    files as sqlite,
    history,
    item_queries,
    keys,
    pending,
    queries,
    renewals,
    retractions,
    rows,
    scopes,
    snapshots,
    state,
    stats,
    writes,
)
from rb_dspy.bank.sqlite.appends import Append
from rb_dspy.bank.sqlite.connections import Readers
from rb_dspy.bank.sqlite.lock import FileLock
from rb_dspy.bank.sqlite.mending import Mending
from rb_dspy.bank.sqlite.original import Original
from rb_dspy.bank.sqlite.reindexing import Reindexing
from rb_dspy.bank.sqlite.rows import Ready
from rb_dspy.bank.sqlite.scoped import Scope, State
from rb_dspy.bank.sqlite.state import scope_row
from rb_dspy.bank.sqlite.writer import Writer
from rb_dspy.errors import StorageError
from rb_dspy.protocols import Vectors
from rb_dspy.schema import Change, Experience, MemoryItem, Removal, Snapshot

T = TypeVar("T")

_CLOSING_SECONDS = 5.0
"""How long ``close`` waits for the file lock, to tidy up."""


_stores: weakref.WeakSet[SqliteStore] = weakref.WeakSet()


def open_here(path: Path) -> bool:
    """Whether this process has the file open; ``path``: where links lead to."""
    return any(store.reads(path) for store in list(_stores))


class SqliteStore:
    """See ``BankStore``. Readers never wait; what is written goes through the process's one writer (``Writer``).

    Not to be used after a fork: open the file again there. What is not closed is closed when the process ends.
    """

    def __init__(self, path: Path, *, create: bool = True) -> None:
        self._location = str(path)
        self._path = path.absolute()
        self._embedder: tuple[str, int] | None = None
        self._scopes: dict[str, Scope] = {}
        real = os.path.realpath(path)  # one lock, by whichever links the file is opened
        lock = FileLock(Path(f"{real}.lock"), Path(real))
        self._original = original = Original(self._path, self._location)
        self._engine = sqlite.on_file(path, lock, original, create=create)
        connect = partial(sqlite.raw, self._engine)
        self._readers = Readers(self._location, connect, original)
        self._writer: Writer[Append | writes.Body] = Writer(
            self._path, self._location, connect, original, lock, writes.perform
        )
        self._closing = weakref.finalize(self, _close, self._writer, self._readers, self._engine, lock, original)
        _stores.add(self)

    @property
    def location(self) -> str:
        """The path as it was given."""
        return self._location

    def reads(self, path: Path) -> bool:
        """Whether this is the file that it has open; ``path``: where links lead to."""
        return self._closing.alive and os.path.realpath(self._path) == os.path.realpath(path)

    @property
    def base(self) -> None:
        """A file is an overlay of nothing."""

    def close(self) -> None:
        """What waits to be written is written first. Twice is once."""
        self._closing()

    def bind(self, embedder_id: str, dimension: int, *, keep: bool = True) -> tuple[str, int]:
        given = embedder_id, dimension
        found, says = self._read(partial(embedders.held, embedder=given))
        if keep and not says and found == given:
            found = self._change(partial(embedders.bind, embedder=given))
        if self._embedder is None:
            self._embedder = found
        return found

    def scopes(self) -> list[str]:
        return self._read(partial(scopes.scopes, location=self.location))

    def add_scope(self, scope: str) -> None:
        if scope not in self.scopes():
            self._change(partial(scopes.add_scope, scope=scope))

    # What is written

    def place(
        self,
        scope: str,
        batch: Sequence[NewExperience],
        *,
        embedder: tuple[str, int] | None = None,
        refuse_removed: bool = False,
        meanwhile: Callable[[Callable[[], bool]], None] | None = None,
    ) -> Sequence[Placed | Experience]:
        made = self.ready(batch)
        whose = embedder or self._embedder
        if not made:  # which binds the bank to nobody, but is refused like any other
            self._in(scope, lambda connection, _: embedders.checked_embedder(connection, whose, self.location))
            return []
        request = Append(self.location, scope, made.prepared, made.lengths, whose, refuse_removed)
        with sqlite.readable(self.location):
            given: Any = self._writer.do(request, meanwhile)
        placed: Sequence[Placed | Experience] = given
        return placed

    def ready(self, *batches: Sequence[NewExperience]) -> Ready:
        return batches[0] if len(batches) == 1 and isinstance(batches[0], Ready) else Ready(batches)

    def record(self, scope: str, row: Row) -> None:
        data = pending.payload(row)  # before its turn to write: others write meanwhile
        self._change(partial(pending.recorded, scope=scope, row=row, payload=data, location=self.location))

    def fail(self, scope: str, run_id: str, task_id: str, rollout_ids: Collection[str], error: str) -> None:
        self._change(
            lambda connection: pending.failed(connection, scope, run_id, task_id, rollout_ids, error, self.location)
        )

    def forget(self, scope: str, these: Sequence[Key]) -> None:
        self._change(partial(pending.forgotten, scope=scope, these=these, location=self.location))

    def edit(
        self,
        scope: str,
        id: str,
        new: NewItem,
        vector: Vectors,
        *,
        note: str,
        embedder: tuple[str, int] | None = None,
    ) -> MemoryItem:
        edit = edits.Edit(self.location, scope, id, new, vectors.packed(vector), note, embedder or self._embedder)
        return self._change(edit)

    def remove(
        self,
        scope: str,
        *,
        kind: Literal["delete", "rollback"],
        source: Source,
        descendants: bool,
        note: str,
        dry_run: bool = False,
    ) -> Removal:
        remove = edits.Remove(self.location, scope, kind, source, descendants, note, dry_run)
        return self._read(remove) if dry_run else self._change(remove)

    def snapshot(self, scope: str, name: str, created_at: str) -> Snapshot:
        return self._change(
            partial(snapshots.snapshot, scope=scope, name=name, created_at=created_at, location=self.location)
        )

    def reindex(self, embedder_id: str, dimension: int, embed: Callable[[Sequence[str]], Vectors]) -> int:
        embedder = embedder_id, dimension
        made = Reindexing(self.location, self._readers, self._write, embedder, embed).run()
        self._embedder = embedder
        return made

    def mend(self, embedder_id: str, dimension: int, embed: Callable[[Sequence[str]], Vectors]) -> int:
        return Mending(self.location, self._readers, self._write, (embedder_id, dimension), embed).run()

    def renewals(self) -> int:
        return self._read(renewals.renewals)

    # What is read

    def mark(self, scope: str) -> int:
        return self._in(scope, feed.mark)

    def settled(self, scope: str, at: int) -> int:
        return self._at(scope, at, state.settled)

    def have(self, scope: str, ids: Sequence[str]) -> set[str]:
        return self._in(scope, partial(queries.have, ids=ids))

    def item_rows(self, scope: str, unit: Unit, id: str, at: int | None = None) -> list[Giving]:
        return self._at(scope, at, partial(item_queries.item_rows, unit=unit, id=id))

    def members(self, scope: str, source: Source, at: int | None = None) -> list[Member]:
        return self._at(scope, at, partial(descent.members, source=source))

    def rows(self, scope: str, of: str | int, at: int | None = None) -> list[GivenRow]:
        return self._at(scope, at, partial(descent.rows, of=of))

    def items_with(self, scope: str, digests: Sequence[str], at: int | None = None) -> dict[str, str]:
        return self._at(scope, at, partial(item_queries.items_with, digests=digests))

    def retracted(self, scope: str, digests: Sequence[str], at: int | None = None) -> dict[str, Change]:
        return self._at(scope, at, partial(retractions.retracted, digests=digests))

    def experience(self, scope: str, id: str, at: int | None = None) -> Experience | None:
        return self._at(scope, at, partial(queries.experience, id=id))

    def latest(self, scope: str, task_id: str, at: int | None = None) -> Experience | None:
        return self._at(scope, at, partial(queries.latest, task_id=task_id))

    def experiences(self, scope: str, *, after: int, limit: int, at: int | None = None) -> list[Experience]:
        return self._at(scope, at, partial(queries.experiences, after=after, limit=limit))

    def item(self, scope: str, id: str, at: int | None = None) -> MemoryItem | None:
        return self._at(scope, at, partial(item_queries.item, id=id))

    def items(self, scope: str, at: int | None = None) -> list[MemoryItem]:
        return self._at(scope, at, item_queries.items)

    def edited(self, scope: str, at: int | None = None) -> set[str]:
        return self._at(scope, at, queries.edited)

    def count(self, scope: str, at: int | None = None) -> int:
        return self._at(scope, at, queries.count)

    def task_ids(self, scope: str, at: int | None = None) -> set[str]:
        return self._at(scope, at, queries.task_ids)

    def pending(self, scope: str, run_id: str | None = None, task_id: str | None = None) -> list[Row]:
        return self._in(scope, partial(pending.pending, run_id=run_id, task_id=task_id))

    def pending_keys(self, scope: str) -> list[Key]:
        return [each.key for each in self._in(scope, pending.waiting)]

    def learned(self, scope: str, run_id: str, at: int | None = None) -> set[str]:
        return self._at(scope, at, partial(pending.learned, run_id=run_id))

    def attempt(self, scope: str, run_id: str, task_id: str) -> tuple[str, bool] | None:
        return self._in(scope, partial(pending.attempt, run_id=run_id, task_id=task_id))

    def snapshots(self, scope: str) -> list[Snapshot]:
        return self._in(scope, snapshots.snapshots)

    def history(self, scope: str, id: str) -> list[Change]:
        return self._in(scope, partial(history.history, id=id))

    def changes(self, scope: str, unit: Unit, *, after: int, limit: int) -> Changes:
        return self._in(scope, partial(feed.changes, unit=unit, after=after, limit=limit, embedder=self._embedder))

    def version(self) -> int:
        return self._readers.version()

    def texts(self, scope: str, unit: Unit, *, after: int, limit: int) -> list[tuple[int, str]]:
        return self._in(scope, partial(feed.texts, unit=unit, after=after, limit=limit))

    def matches(self, scope: str, unit: Unit, seqs: Sequence[int], at: int | None = None) -> dict[int, Match]:
        return rows.sound(self._at(scope, at, partial(item_queries.matches, unit=unit, seqs=seqs)), self.location)

    def digest(self, scope: str, at: int) -> str:
        return self._at(scope, at, queries.digest)

    def stats(self, scope: str) -> BankStats:
        return self._in(scope, partial(stats.stats, size=sqlite.size_on_disk(self._path)))

    def check(self) -> Iterator[Finding]:
        yield from self._readers.read_leniently(partial(check.findings, location=self.location))

    def _read(self, query: Callable[[sqlite3.Connection], T]) -> T:
        return self._readers.read(query)

    def _in(self, scope: str, query: Callable[[sqlite3.Connection, Scope], T]) -> T:
        """What a query of one scope gives."""

        def scoped(connection: sqlite3.Connection) -> T:
            found = self._scopes.get(scope)
            if found is None:
                id, _, _ = scope_row(connection, scope, self.location)
                found = self._scopes[scope] = Scope(id, scope, self.location)
            return query(connection, found)

        return self._readers.read(scoped)

    def _at(self, scope: str, at: int | None, query: Callable[[sqlite3.Connection, State], T]) -> T:
        """What a query of one state gives."""
        number = keys.LAST if at is None else max(0, min(at, keys.LAST))
        return self._in(scope, lambda connection, found: query(connection, State(found, number)))

    def _change(self, body: Callable[[sqlite3.Connection], T]) -> T:
        """What a write of ours gives, which may meet damaged rows."""
        with sqlite.readable(self.location):
            return self._write(body)

    def _write(self, body: Callable[[sqlite3.Connection], T]) -> T:
        outcome: T = self._writer.do(body)  # type: ignore[assignment]
        return outcome


def _close(
    writer: Writer[Append | writes.Body],
    readers: Readers,
    engine: sa.Engine,
    lock: FileLock,
    original: Original,
) -> None:
    """End the writer and let go of the file, under the file lock: the last connection to close writes.

    Where the file was replaced, nothing is written to what is there now.
    """
    if writer.process != os.getpid():
        return  # a forked child: all of this is its parent's
    writer.close()
    taken = original.written and lock.take(_CLOSING_SECONDS)  # who only reads makes no lock either
    if taken and not original.there():
        writer.empty_log()
        readers.empty_log()
        with contextlib.suppress(StorageError), engine.connect() as pooled:  # one that is there: none is made any more
            sqlite.emptied_log(sqlite.driver(pooled))
    writer.disconnect()
    readers.close()
    engine.dispose()
    if taken:
        lock.remove()
