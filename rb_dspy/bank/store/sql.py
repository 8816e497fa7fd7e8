"""The store: every read and write, in SQLAlchemy Core, for both SQLite and PostgreSQL."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import fields
from functools import cache
from operator import itemgetter
from types import MappingProxyType
from typing import Any, Unpack

from sqlalchemy import (
    ColumnElement,
    Connection,
    Insert,
    Select,
    Table,
    bindparam,
    delete,
    insert,
    or_,
    select,
    update,
)

from rb_dspy.bank.store import tables
from rb_dspy.bank.store.base import (
    Entry,
    ExperienceFilter,
    ExperienceRow,
    IndexRow,
    ItemFilter,
    ItemRow,
    PendingKey,
    PendingRow,
    SnapshotRow,
    Unit,
    VectorRow,
)
from rb_dspy.bank.store.embedders import check_embedder, embedder_of, meta, meta_value, packed, set_meta
from rb_dspy.bank.store.postgres import PostgresDatabase
from rb_dspy.bank.store.sqlite import SqliteDatabase
from rb_dspy.bank.store.tables import rows_of, texts_of

_PAGE = 500
"""Maximum values of one IN list; databases limit the parameters of a statement."""

_INDEX_PAGE = 5_000
"""Rows of the index read per page."""


Database = SqliteDatabase | PostgresDatabase


class SqlReader:
    """Reads one scope, as it is now or as it was at a number."""

    def __init__(
        self, reading: Callable[[], AbstractContextManager[Connection]], scope_id: int, at: int | None = None
    ) -> None:
        self._reading = reading
        self._scope_id = scope_id
        self._at = at

    def mark(self) -> int:
        return self._at if self._at is not None else int(self._rows(_MARK)[0][0])

    def experiences(self, *, ended: bool = False, **where: Unpack[ExperienceFilter]) -> list[ExperienceRow]:
        within = {"id": where.pop("ids", None), "seq": where.pop("seqs", None)}
        kind = "whole" if where.pop("payload", False) else "experience"
        return [ExperienceRow(*row) for row in self._pages(kind, ended, within, where)]

    def items(self, *, ended: bool = False, **where: Unpack[ItemFilter]) -> list[ItemRow]:
        within = {"id": where.get("ids"), "seq": where.get("seqs"), "experience": where.get("experiences")}
        return [ItemRow(*row) for row in self._pages("item", ended, within)]

    def exposures(
        self, *, experiences: Collection[int] | None = None, items: Collection[str] | None = None
    ) -> list[tuple[int, str]]:
        rows = self._pages("exposure", True, {"experience": experiences, "item_id": items})
        return [(row[0], row[2]) for row in rows]

    def journal(self, *, subjects: Collection[str] | None = None, item: str | None = None) -> list[Entry]:
        edited = {"kind": "edit", "item_ids": json.dumps([item])} if item is not None else {}
        rows = self._pages("entry", True, {"subject": subjects}, edited)
        return [Entry(row[0], row[1], row[2], tuple(json.loads(row[3])), row[4], row[5]) for row in rows]

    def snapshots(self) -> list[SnapshotRow]:
        return [SnapshotRow(*row) for row in self._pages("snapshot", True, {})]

    def pending(
        self, *, run_id: str | None = None, task_id: str | None = None, payload: bool = True
    ) -> list[PendingRow]:
        kind = "pending" if payload else "waiting"
        rows = self._pages(kind, True, {}, {"run_id": run_id, "task_id": task_id})
        return [
            PendingRow(PendingKey(*row[1:5]), row[9] if payload else None, tuple(json.loads(row.shown)), *row[6:9])
            for row in rows
        ]

    def _pages(
        self,
        kind: str,
        ended: bool,
        within: Mapping[str, Collection[Any] | None],
        equal: Mapping[str, Any] | None = None,
    ) -> list[Any]:
        """Read rows of a kind whose columns have one of some values; a long list of values is read in pages."""
        values = {name: value for name, value in (equal or {}).items() if value is not None}
        lists = [(name, sorted(every)) for name, every in within.items() if every is not None]
        if any(not every for _, every in lists):
            return []
        query = _query(kind, ended, self._at is not None, tuple(values), tuple(name for name, _ in lists))
        if not lists:
            return self._rows(query, values)
        ((name, every),) = lists
        pages = (self._rows(query, values | {name: page}) for page in _chunks(every))
        return sorted((row for page in pages for row in page), key=itemgetter(*range(len(_ORDER.get(kind, "1")))))

    def _rows(self, query: Select[Any], values: Mapping[str, Any] = MappingProxyType({})) -> list[Any]:
        with self._reading() as connection:
            return list(connection.execute(query, {"scope": self._scope_id, "at": self._at, **values}).all())


class SqlWriter(SqlReader):
    """Writes to one scope in the transaction of ``connection``."""

    def __init__(self, connection: Connection, scope_id: int, embedder: str) -> None:
        @contextmanager
        def same() -> Iterator[Connection]:
            yield connection

        super().__init__(same, scope_id)
        self._connection = connection
        self._embedder = embedder

    def allocate(self, count: int) -> int:
        return int(self._connection.execute(_ALLOCATE, {"scope": self._scope_id, "count": count}).scalar_one())

    def add(
        self,
        *,
        experiences: Sequence[ExperienceRow] = (),
        items: Sequence[ItemRow] = (),
        vectors: Sequence[VectorRow] = (),
        exposures: Sequence[tuple[int, str]] = (),
        entries: Sequence[Entry] = (),
    ) -> None:
        self._insert(tables.experiences, [_values(row) for row in experiences])
        self._insert(tables.items, [_values(row) for row in items])
        self._insert(tables.vectors, [self._vector(row) for row in vectors])
        self._insert(
            tables.exposures,
            [{"experience": seq, "item_id": id, "place": place} for place, (seq, id) in enumerate(exposures)],
        )
        self._insert(tables.journal, [_entry(row) for row in entries])

    def end(self, seqs: Collection[int], at: int) -> None:
        for table in (tables.experiences, tables.items):
            for page in _chunks(sorted(seqs)):
                where = table.c.scope_id == self._scope_id, table.c.seq.in_(page), table.c.ended.is_(None)
                self._connection.execute(update(table).where(*where).values(ended=at))

    def delete(self, seqs: Collection[int], *, notes_of: Collection[str]) -> None:
        columns = [
            tables.experiences.c.seq,
            tables.items.c.seq,
            tables.vectors.c.seq,
            tables.exposures.c.experience,
        ]
        for column in columns:
            for page in _chunks(sorted(seqs)):
                where = column.table.c.scope_id == self._scope_id, column.in_(page)
                self._connection.execute(delete(column.table).where(*where))

        for page in _chunks(sorted(set(notes_of))):
            where = tables.journal.c.scope_id == self._scope_id, tables.journal.c.subject.in_(page)
            self._connection.execute(update(tables.journal).where(*where).values(note=""))
        set_meta(self._connection, epoch=int(meta(self._connection).get("epoch", 0)) + 1)

    def blank_notes(self, seqs: Iterable[int]) -> None:
        """Delete the notes of experiences."""
        columns = tables.experiences.c
        for page in _chunks(sorted(seqs)):
            where = columns.scope_id == self._scope_id, columns.seq.in_(page)
            self._connection.execute(update(tables.experiences).where(*where).values(note=""))

    def add_pending(self, row: PendingRow) -> None:
        if not self._rows(select(tables.pending.c.number).where(*self._is(row.key))):
            values = row.key._asdict() | {"shown": json.dumps(row.shown), "payload": row.payload}
            self._insert(tables.pending, [values | {"created_at": row.created_at, "tries": row.tries}])

    def fail_pending(self, keys: Collection[PendingKey], error: str) -> None:
        tries = tables.pending.c.tries + 1
        for key in keys:
            self._connection.execute(update(tables.pending).where(*self._is(key)).values(tries=tries, error=error))

    def remove_pending(self, keys: Collection[PendingKey]) -> None:
        for key in keys:
            self._connection.execute(delete(tables.pending).where(*self._is(key)))

    def add_snapshot(self, row: SnapshotRow) -> None:
        self._insert(tables.snapshots, [_values(row)])

    def _is(self, key: PendingKey) -> list[ColumnElement[bool]]:
        table = tables.pending
        return [table.c.scope_id == self._scope_id, *(table.c[name] == value for name, value in key._asdict().items())]

    def _vector(self, row: VectorRow) -> dict[str, object]:
        return {"unit": row.unit, "seq": row.seq, "embedder": self._embedder, "data": packed(row.vector)}

    def _insert(self, table: Table, rows: list[dict[str, Any]]) -> None:
        if rows:
            self._connection.execute(_insert(table), [row | {"scope_id": self._scope_id} for row in rows])


class SqlScope(SqlReader):
    """A scope of a database."""

    def __init__(self, database: Database, name: str, scope_id: int) -> None:
        super().__init__(database.reading, scope_id)
        self.id = scope_id
        self.name = name
        self.location = database.location
        self.database = database

    def at(self, mark: int) -> SqlReader:
        return SqlReader(self.database.reading, self.id, mark)

    @contextmanager
    def write(self, *, embedder: tuple[str, int] | None = None, exclusive: bool = False) -> Iterator[SqlWriter]:
        """Open a transaction; ``embedder``: id and dimension of the one whose vectors are written.

        Raises:
            EmbedderMismatch: The bank belongs to another embedder.
            StorageError: The database cannot be written.
        """
        with self.database.writing(None if exclusive else self.id) as connection:
            if embedder is not None:
                check_embedder(connection, embedder, self.location)
            yield SqlWriter(connection, self.id, embedder[0] if embedder else "")

    def embedder(self) -> tuple[str, int] | None:
        with self.database.reading() as connection:
            return embedder_of(connection)

    def watermark(self) -> tuple[int, int, str]:
        with self.database.reading() as connection:
            seq, epoch, embedder = connection.execute(_WATERMARK, {"scope": self.id}).one()
        return int(seq), int(epoch or 0), embedder or ""

    @contextmanager
    def reading(self) -> Iterator[SqlReader]:
        """Open a block whose reads, on this thread, all see the state at its beginning.

        Do not call a searcher inside it: a searcher has its own lock.
        """
        with self.database.reading():
            yield self

    def index_rows(self, unit: Unit, *, after: int, upto: int) -> Iterator[IndexRow]:
        """Yield rows with a vector, including ended rows, with numbers above ``after`` and up to ``upto``."""
        table, vectors = rows_of(unit), tables.vectors
        query = (
            select(table.c.seq, table.c.ended, table.c.task_id, table.c.polarity, vectors.c.data)
            .join(vectors, (vectors.c.scope_id == table.c.scope_id) & (vectors.c.seq == table.c.seq))
            .where(table.c.scope_id == self.id, vectors.c.unit == unit)
            .where(vectors.c.embedder == meta_value("embedder"))
            .order_by(table.c.seq)
            .limit(_INDEX_PAGE)
        )
        while rows := self._rows(query.where(table.c.seq > after, table.c.seq <= upto)):
            yield from (IndexRow(*row) for row in rows)
            after = rows[-1][0]

    def index_ended(self, unit: Unit, *, after: int, upto: int) -> list[tuple[int, int]]:
        table = rows_of(unit)
        query = select(table.c.seq, table.c.ended).where(table.c.scope_id == self.id)
        rows = self._rows(query.where(table.c.ended > after, table.c.ended <= upto))
        return [(row[0], row[1]) for row in rows]

    def texts(self, unit: Unit, *, after: int, upto: int) -> list[tuple[int, str]]:
        table = rows_of(unit)
        query = select(table.c.seq, *texts_of(table)).where(table.c.scope_id == self.id)
        rows = self._rows(query.where(table.c.seq > after, table.c.seq <= upto).order_by(table.c.seq))
        return [(row[0], "\n".join(row[1:])) for row in rows]


_WAITING = ("number", "run_id", "task_id", "rollout_id", "content", "shown", "created_at", "tries", "error")

_COLUMNS: dict[str, tuple[Table, tuple[str, ...]]] = {
    "experience": (
        tables.experiences,
        tuple(field.name for field in fields(ExperienceRow) if field.name != "payload"),
    ),
    "whole": (tables.experiences, tuple(field.name for field in fields(ExperienceRow))),
    "item": (tables.items, tuple(field.name for field in fields(ItemRow))),
    "exposure": (tables.exposures, ("experience", "place", "item_id")),
    "entry": (tables.journal, ("seq", "subject", "kind", "item_ids", "note", "created_at")),
    "snapshot": (tables.snapshots, ("name", "seq", "created_at")),
    "pending": (tables.pending, (*_WAITING, "payload")),
    "waiting": (tables.pending, _WAITING),
}
"""Kinds of rows, and their columns."""

_ALLOCATE = (
    update(tables.scopes)
    .where(tables.scopes.c.id == bindparam("scope"))
    .values(seq=tables.scopes.c.seq + bindparam("count"))
    .returning(tables.scopes.c.seq)
)

_ORDER = {"exposure": ("experience", "place"), "entry": ("seq", "subject"), "snapshot": ("seq", "name")}

_MARK = select(tables.scopes.c.seq).where(tables.scopes.c.id == bindparam("scope"))


_WATERMARK = select(tables.scopes.c.seq, meta_value("epoch"), meta_value("embedder")).where(
    tables.scopes.c.id == bindparam("scope")
)


@cache
def _query(kind: str, ended: bool, past: bool, equal: tuple[str, ...], within: tuple[str, ...]) -> Select[Any]:
    """Build a statement once: SQLAlchemy takes longer to build and hash it than SQLite takes to run it."""
    table, names = _COLUMNS[kind]
    columns = table.c
    query = select(*(columns[name] for name in names)).where(columns.scope_id == bindparam("scope"))
    if not within:  # else SQLite reads the whole scope in this order; the rows are sorted later
        query = query.order_by(*(columns[name] for name in _ORDER.get(kind, names[:1])))
    born = columns.experience if kind == "exposure" else columns.get("seq")
    if past and born is not None:
        query = query.where(born <= bindparam("at"))
    if not ended:
        lives = columns.ended.is_(None)
        query = query.where(or_(lives, columns.ended > bindparam("at")) if past else lives)
    for name in equal:
        if name == "limit":
            query = query.limit(bindparam("limit"))
        elif name == "after":
            query = query.where(columns.seq > bindparam("after"))
        else:
            query = query.where(columns[name] == bindparam(name))
    for name in within:
        query = query.where(columns[name].in_(bindparam(name, expanding=True)))
    return query


def scope_names(connection: Connection) -> list[str]:
    """Names of all scopes, sorted."""
    return sorted(connection.execute(select(tables.scopes.c.name)).scalars())


def open_scope(database: Database, name: str) -> SqlScope:
    """Open a scope; create it if it is missing."""
    query = select(tables.scopes.c.id).where(tables.scopes.c.name == name)
    with database.reading() as connection:
        scope_id = connection.execute(query).scalar()
    if scope_id is None:
        with database.writing() as connection:
            scope_id = connection.execute(query).scalar()
            if scope_id is None:
                made = insert(tables.scopes).values(name=name, seq=0).returning(tables.scopes.c.id)
                scope_id = connection.execute(made).scalar_one()
    return SqlScope(database, name, scope_id)


def _chunks(values: Sequence[Any]) -> Iterator[Sequence[Any]]:
    return (values[start : start + _PAGE] for start in range(0, len(values), _PAGE))


@cache
def _insert(table: Table) -> Insert:
    return insert(table)


def _entry(row: Entry) -> dict[str, Any]:
    values = _values(row)
    return values | {"item_ids": json.dumps(values.pop("items"))}


def _values(row: Any) -> dict[str, Any]:
    return {field.name: getattr(row, field.name) for field in fields(row)}
