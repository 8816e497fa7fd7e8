"""A store of banks in one SQLite file, or in memory: SQLAlchemy Core, write-ahead log, every commit on disk."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from rb_dspy.bank import queries, rows, sqlite, tables
from rb_dspy.bank.interface import BankStats, Match, NewExperience, Unit, VectorBatch
from rb_dspy.bank.migrations import MIGRATIONS
from rb_dspy.errors import CorruptBank, UnknownScope
from rb_dspy.protocols import Vectors
from rb_dspy.schema import Experience, MemoryItem

_e, _i, _x = tables.experiences.c, tables.items.c, tables.exposures.c


class SqliteStore:
    """See ``BankStore``. Writers of this process take turns by a lock, those of others by SQLite's; readers never wait.

    ``path=None`` keeps everything in memory until ``close``.
    """

    def __init__(self, path: Path | None, *, create: bool = True) -> None:
        self._location = str(path or ":memory:")
        self._path = path.absolute() if path else None
        self._writers = threading.RLock()
        # In memory there is one connection, so its readers take turns with the writers.
        self._readers: contextlib.AbstractContextManager[object] = contextlib.nullcontext() if path else self._writers
        self._scope_ids: dict[str, int] = {}
        self._dimension = 0
        self._engine = sqlite.on_file(path, create=create) if path else sqlite.in_memory()

    @property
    def location(self) -> str:
        """The path as it was given, or ``:memory:``."""
        return self._location

    def close(self) -> None:
        self._engine.dispose()

    def bind(self, embedder_id: str, dimension: int) -> tuple[str, int]:
        with self._reading() as connection:
            found = queries.embedder(connection, self.location)
        if found is None:
            with self._writing() as connection:
                found = queries.embedder(connection, self.location)  # another process may have been first
                if found is None:
                    found = embedder_id, dimension
                    values = {"embedder": embedder_id, "dimension": str(dimension)}
                    _insert(connection, tables.meta, [{"key": key, "value": value} for key, value in values.items()])
        self._dimension = found[1]
        return found

    def scopes(self) -> list[str]:
        with self._reading() as connection:
            return sorted(connection.scalars(sa.select(tables.scopes.c.name)))

    def add_scope(self, scope: str) -> None:
        if scope not in self.scopes():
            with self._writing() as connection:
                connection.execute(tables.scopes.insert().prefix_with("OR IGNORE"), {"name": scope, "seq": 0})

    def append(
        self, scope: str, new: NewExperience, vector: Vectors | None, item_vectors: Sequence[Vectors]
    ) -> Experience:
        payload = rows.pack(new)  # before the lock: a long trajectory takes a while to compress
        with self._writing() as connection:
            scope_id, _ = self._scope(connection, scope)
            known = connection.scalar(sa.select(_e.seq).where(_e.scope_id == scope_id, _e.id == new.id))
            if known is None:
                # One counter for experiences and items, so that one number says how much of a scope has been seen.
                counter = tables.scopes.c.seq
                seq = 1 + connection.execute(sa.select(counter).where(tables.scopes.c.id == scope_id)).scalar_one()
                spent = tables.scopes.update().where(tables.scopes.c.id == scope_id).values(seq=seq + len(new.items))
                connection.execute(spent)
                _insert(connection, tables.experiences, [rows.of_experience(new, scope_id, seq, payload)])
                _insert(connection, tables.items, rows.of_items(new, scope_id, seq))
                _insert(connection, tables.vectors, rows.of_vectors(scope_id, seq, vector, item_vectors))
                _insert(connection, tables.exposures, rows.of_exposures(new, scope_id, seq))
        if known is None:
            return rows.stored(new, scope, seq)
        stored = self.experience(scope, new.id)
        if stored is None:
            raise CorruptBank(f"{self.location}: experience {new.id} vanished while it was read")
        return stored

    def experience(self, scope: str, id: str) -> Experience | None:
        return self._newest(scope, _e.id == id)

    def latest(self, scope: str, task_id: str) -> Experience | None:
        return self._newest(scope, _e.task_id == task_id)

    def item(self, scope: str, id: str) -> MemoryItem | None:
        with self._reading() as connection:
            found = queries.items(connection, self._scope(connection, scope), self.location, _i.id == id)
        return found[0] if found else None

    def items(self, scope: str) -> list[MemoryItem]:
        with self._reading() as connection:
            return queries.items(connection, self._scope(connection, scope), self.location)

    def experiences(self, scope: str, *, after: int, limit: int) -> list[Experience]:
        query = sa.select(tables.experiences).where(_e.seq > after).order_by(_e.seq).limit(limit)
        with self._reading() as connection:
            return queries.experiences(connection, self._scope(connection, scope), self.location, query)

    def count(self, scope: str) -> int:
        with self._reading() as connection:
            return queries.count(connection, self._scope(connection, scope)[0], _i.seq)

    def task_ids(self, scope: str) -> set[str]:
        with self._reading() as connection:
            scope_id, _ = self._scope(connection, scope)
            learned = sa.select(_e.task_id).where(_e.scope_id == scope_id, _e.state != "recorded")
            return set(connection.scalars(learned.distinct()))

    def vectors(self, scope: str, unit: Unit, *, after: int, limit: int) -> VectorBatch:
        with self._reading() as connection:
            return queries.vectors(
                connection,
                self._scope(connection, scope)[0],
                unit,
                after=after,
                limit=limit,
                dimension=self._dimension,
                location=self.location,
            )

    def matches(self, scope: str, unit: Unit, seqs: Sequence[int]) -> dict[int, Match]:
        with self._reading() as connection:
            return queries.matches(connection, self._scope(connection, scope), self.location, unit, seqs)

    def stats(self, scope: str) -> BankStats:
        with self._reading() as connection:
            scope_id, _ = self._scope(connection, scope)
            return BankStats(
                scope=scope,
                items=queries.count(connection, scope_id, _i.seq),
                experiences=queries.count(connection, scope_id, _e.seq),
                experiences_with_items=queries.count(connection, scope_id, _i.experience_seq, distinct=True),
                by_polarity=queries.tally(connection, scope_id, _i.polarity),
                by_verdict=queries.tally(connection, scope_id, _e.label),
                by_template=queries.tally(connection, scope_id, _e.template),
                exposures=queries.count(connection, scope_id, _x.item_id),
                embedder=(queries.embedder(connection, self.location) or ("", 0))[0],
                dimension=self._dimension,
                bytes_on_disk=sqlite.size_on_disk(self._path) if self._path else 0,
                schema_version=len(MIGRATIONS),
            )

    def _newest(self, scope: str, where: sa.ColumnElement[bool]) -> Experience | None:
        query = sa.select(tables.experiences).where(where).order_by(_e.seq.desc()).limit(1)
        with self._reading() as connection:
            found = queries.experiences(connection, self._scope(connection, scope), self.location, query)
        return found[0] if found else None

    def _scope(self, connection: sa.Connection, scope: str) -> tuple[int, str]:
        if scope not in self._scope_ids:
            found = queries.scope_id(connection, scope)
            if found is None:
                raise UnknownScope(f"{self.location}: no scope {scope!r}")
            self._scope_ids[scope] = found
        return self._scope_ids[scope], scope

    @contextlib.contextmanager
    def _reading(self) -> Iterator[sa.Connection]:
        """One consistent view; nothing is ever written."""
        with self._readers, sqlite.translated(self.location), self._engine.connect() as connection:
            yield connection

    @contextlib.contextmanager
    def _writing(self) -> Iterator[sa.Connection]:
        """A transaction that has the write lock from its first statement on. This process writes nowhere else."""
        immediate = self._engine.execution_options(immediate=True)
        with self._writers, sqlite.translated(self.location), immediate.begin() as connection:
            yield connection


def _insert(connection: sa.Connection, table: sa.Table, values: list[dict[str, Any]]) -> None:
    if values:
        connection.execute(table.insert(), values)
