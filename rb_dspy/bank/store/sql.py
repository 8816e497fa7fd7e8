"""The store: every read and write, for both SQLite and PostgreSQL."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from operator import itemgetter
from typing import Any

from rb_dspy.bank.store.base import (
    Entry,
    ExperienceRow,
    IndexRow,
    ItemRow,
    PendingKey,
    PendingRow,
    SnapshotRow,
    Unit,
    UseRow,
)
from rb_dspy.bank.store.commits import GroupCommit, Item, Result
from rb_dspy.bank.store.embedders import (
    add_vectors,
    check_embedder,
    embedder_of,
    meta,
    packed_bytes,
    set_meta,
    unpacked,
)
from rb_dspy.bank.store.postgres import PostgresDatabase
from rb_dspy.bank.store.sqlite import SqliteDatabase
from rb_dspy.bank.store.tables import TEXTS, Connection, insert, run
from rb_dspy.errors import EmbedderMismatch
from rb_dspy.protocols import Vectors
from rb_dspy.schema import ChangeKind

_INDEX_PAGE = 5_000
"""Rows of the index read per page."""

_MOST_IDS = 10
"""Ids that are read for a prefix; more than one is an error."""

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
        return self._at if self._at is not None else int(self._rows("SELECT seq FROM scopes WHERE id = :scope")[0][0])

    def experiences(
        self,
        *,
        ended: bool = False,
        payload: bool = False,
        ids: Collection[str] | None = None,
        seqs: Collection[int] | None = None,
        task_id: str | None = None,
        run_id: str | None = None,
        origin: str | None = None,
    ) -> list[ExperienceRow]:
        """Experiences with these ids, numbers and so on; None: any."""
        equal = {"id": ids, "seq": seqs, "task_id": task_id, "run_id": run_id, "origin": origin}
        columns = ", ".join(_WHOLE if payload else _EXPERIENCE)
        return [ExperienceRow(*row) for row in self._select("experiences", columns, equal, "seq", ended)]

    def items(
        self,
        *,
        ended: bool = False,
        ids: Collection[str] | None = None,
        seqs: Collection[int] | None = None,
        experiences: Collection[int] | None = None,
    ) -> list[ItemRow]:
        equal = {"id": ids, "seq": seqs, "experience": experiences}
        return [ItemRow._make(row) for row in self._select("items", ", ".join(_ITEM), equal, "seq", ended)]

    def items_with_experiences(
        self,
        ids: Collection[str] | None = None,
        *,
        seqs: Collection[int] | None = None,
        kinds: Collection[str] | None = None,
    ) -> list[tuple[ItemRow, ExperienceRow]]:
        """Live rows of the items with these ids, or that have these rows, of these kinds, each with its experience,
        which may have ended; None: any.
        """
        where = "i.scope_id = :scope AND e.scope_id = :scope AND e.seq = i.experience"
        if ids is not None:
            where += " AND i.id = ANY(:ids)"
        if seqs is not None:
            where += " AND i.id IN (SELECT id FROM items WHERE scope_id = :scope AND seq = ANY(:seqs))"
        if kinds is not None:
            where += " AND i.kind = ANY(:kinds)"
        live = "i.ended IS NULL" if self._at is None else "i.seq <= :at AND (i.ended IS NULL OR i.ended > :at)"
        columns = ", ".join((*(f"i.{name}" for name in _ITEM), *(f"e.{name}" for name in _EXPERIENCE)))
        # CROSS JOIN, because SQLite would otherwise begin with the experiences
        statement = f"SELECT {columns} FROM items AS i CROSS JOIN experiences AS e WHERE {where} AND {live}"
        values = {name: [*each] for name, each in (("ids", ids), ("seqs", seqs), ("kinds", kinds)) if each is not None}
        rows = [] if [] in values.values() else self._rows(statement, **values)
        number = len(_ITEM)
        return [
            (ItemRow._make(row[:number]), ExperienceRow._make((*row[number:], None)))
            for row in sorted(rows, key=itemgetter(0))
        ]

    def tally(
        self,
        table: str,
        by: Sequence[str],
        *,
        ended: bool = False,
        run_id: str | None = None,
        origin: str | None = None,
    ) -> Counter[Any]:
        """How many rows of ``experiences`` or ``items`` have the same values of the columns ``by``, by these values."""
        rows = self._select(
            table, ", ".join((*by, "count(*)")), {"run_id": run_id, "origin": origin}, "seq", ended, group=by
        )
        return Counter({tuple(row[:-1]): row[-1] for row in rows})

    def uses(
        self, *, experiences: Collection[int] | None = None, subjects: Collection[str] | None = None
    ) -> list[UseRow]:
        equal = {"experience": experiences, "subject": subjects}
        rows = self._select("uses", "experience, place, subject, cited", equal, "experience, place")
        return [UseRow(seq, subject, place, bool(cited)) for seq, place, subject, cited in rows]

    def journal(
        self,
        *,
        subjects: Collection[str] | None = None,
        seqs: Collection[int] | None = None,
        item: str | tuple[str, str] | None = None,
        kinds: Collection[ChangeKind] = (),
    ) -> list[Entry]:
        """``kinds``: only of these kinds; ``item``: only edits to this item, marks of this name, or with a pair, those
        of this name in this experience.
        """
        items = None if item is None else json.dumps([item] if isinstance(item, str) else item)
        equal = {"subject": subjects, "seq": seqs, "item_ids": items}
        columns = "seq, subject, kind, item_ids, note, created_at"
        # literals, for the partial index
        also = f"kind IN ({', '.join(map(repr, kinds))}) AND kind <> 'append'" if kinds else ""
        rows = self._select("journal", columns, equal, "seq, subject", also=also)
        return [Entry(row[0], row[1], row[2], tuple(json.loads(row[3])), row[4], row[5]) for row in rows]

    def vectors(self, unit: Unit, seqs: Collection[int]) -> dict[int, Vectors]:
        """The vectors of rows, by number; those without one are left out."""
        statement = (
            "SELECT seq, data FROM vectors WHERE scope_id = :scope AND unit = :unit AND seq = ANY(:seqs)"
            " AND embedder = (SELECT value FROM meta WHERE key = 'embedder')"
        )
        rows = self._rows(statement, unit=unit, seqs=[*seqs])
        data = [packed_bytes(row[1]) for row in rows]
        return dict(zip((row[0] for row in rows), unpacked(data, len(data[0]) // 2), strict=True)) if data else {}

    def ids(self, prefix: str) -> list[str]:
        """Ids of items and experiences that begin with ``prefix``, in hexadecimal digits, also of ended ones."""
        within = "WHERE scope_id = :scope AND id >= :first AND id < :last"
        statement = f"SELECT id FROM items {within} UNION SELECT id FROM experiences {within} LIMIT {_MOST_IDS}"
        return [row[0] for row in self._rows(statement, first=prefix, last=f"{prefix}g")]

    def snapshots(self) -> list[SnapshotRow]:
        rows = self._select("snapshots", "seq, name, created_at", {}, "seq, name")
        return [SnapshotRow(name, seq, created_at) for seq, name, created_at in rows]

    def pending(
        self,
        *,
        run_id: str | Collection[str] | None = None,
        task_id: str | Collection[str] | None = None,
        payload: bool = True,
    ) -> list[PendingRow]:
        columns = "number, run_id, task_id, rollout_id, content, shown, created_at, origin, tries, error"
        columns += ", payload" if payload else ", NULL"
        rows = self._select("pending", columns, {"run_id": run_id, "task_id": task_id}, "number")
        return [PendingRow(PendingKey(*row[1:5]), row[10], tuple(json.loads(row[5])), *row[6:10]) for row in rows]

    def _select(
        self,
        table: str,
        columns: str,
        equal: Mapping[str, str | Collection[Any] | None],
        order: str,
        ended: bool = True,
        also: str = "",
        group: Sequence[str] = (),
    ) -> list[Any]:
        """Read the rows of a table whose columns are ``equal`` to a value, or to one of a collection; None: to any.

        ``columns`` begin with those of ``order``. The first of these is the row's number, except in ``pending``.
        """
        values = {
            name: value if isinstance(value, str) else [*value] for name, value in equal.items() if value is not None
        }
        lists = [name for name, value in values.items() if isinstance(value, list)]
        if [] in values.values():
            return []
        parts = [f"{name} = ANY(:{name})" if name in lists else f"{name} = :{name}" for name in values]
        parts += [also] if also else []
        if self._at is not None and table != "pending":
            born = order.split(",")[0]
            # "+", because SQLite would otherwise read all rows up to this number instead of those in the list
            parts.append(f"{'+' if lists else ''}{born} <= :at")
        if not ended:
            parts.append("ended IS NULL" if self._at is None else "(ended IS NULL OR ended > :at)")
        statement = f"SELECT {columns} FROM {table} WHERE {' AND '.join(['scope_id = :scope', *parts])}"
        if group:
            return self._rows(f"{statement} GROUP BY {', '.join(group)}", **values)
        is_few = bool(lists or also)
        if not is_few:  # else SQLite would read the whole scope in this order
            statement += f" ORDER BY {order}"
        rows = self._rows(statement, **values)
        return sorted(rows, key=itemgetter(0, 1)) if is_few else rows

    def _rows(self, statement: str, **values: Any) -> list[Any]:
        with self._reading() as connection:
            return run(connection, statement, {"scope": self._scope_id, "at": self._at, **values})


_WHOLE = ExperienceRow._fields
_EXPERIENCE = _WHOLE[:-1]  # without the payload
_ITEM = ItemRow._fields


class SqlWriter(SqlReader):
    """Writes to one scope in the transaction of ``connection``."""

    def __init__(self, connection: Connection, scope_id: int, embedder: str) -> None:
        super().__init__(lambda: nullcontext(connection), scope_id)
        self._connection = connection
        self._embedder = embedder

    def allocate(self, count: int) -> int:
        statement = "UPDATE scopes SET seq = seq + :count WHERE id = :scope RETURNING seq"
        return int(self._rows(statement, count=count)[0][0])

    def add(
        self,
        *,
        experiences: Sequence[ExperienceRow] = (),
        items: Sequence[ItemRow] = (),
        vectors: Sequence[tuple[Unit, int, Vectors]] = (),
        uses: Sequence[UseRow] = (),
        entries: Sequence[Entry] = (),
    ) -> None:
        self._insert("experiences", (row._asdict() for row in experiences))
        self._insert("items", (row._asdict() for row in items))
        add_vectors(self._connection, self._embedder, [(self._scope_id, *row) for row in vectors])
        self._insert("uses", (each._asdict() | {"cited": int(each.cited)} for each in uses))
        journal = [row._asdict() for row in entries]
        self._insert("journal", [each | {"item_ids": json.dumps(each.pop("items"))} for each in journal])

    def end(self, seqs: Collection[int], at: int) -> None:
        for table in ("experiences", "items"):
            where = "scope_id = :scope AND seq = ANY(:seqs) AND ended IS NULL"
            self._rows(f"UPDATE {table} SET ended = :end WHERE {where}", end=at, seqs=[*seqs])

    def delete(self, seqs: Collection[int]) -> None:
        keys = {"experiences": "seq", "items": "seq", "vectors": "seq", "uses": "experience"}
        for table, key in keys.items():
            self._rows(f"DELETE FROM {table} WHERE scope_id = :scope AND {key} = ANY(:seqs)", seqs=[*seqs])
        set_meta(self._connection, epoch=int(meta(self._connection).get("epoch", 0)) + 1)

    def blank_notes(self, seqs: Iterable[int]) -> None:
        """Delete the notes of experiences."""
        blank = "UPDATE experiences SET note = '' WHERE scope_id = :scope AND seq = ANY(:seqs)"
        self._rows(blank, seqs=[*seqs])

    def blank(self, entries: Iterable[Entry], *, name: str = "") -> None:
        """Delete the notes of entries of the journal; with ``name``, also those of marks, which get it."""
        named = ", item_ids = :items" if name else ""
        statement = f"UPDATE journal SET note = ''{named} WHERE scope_id = :scope AND seq = :seq AND subject = :subject"
        for entry in entries:
            more = {"items": json.dumps([name])} if name else {}
            self._rows(statement, seq=entry.seq, subject=entry.subject, **more)

    def rename_snapshots(self, names: Mapping[str, str]) -> None:
        for name, new in names.items():
            self._rows("UPDATE snapshots SET name = :new WHERE scope_id = :scope AND name = :name", name=name, new=new)

    def add_pending(self, row: PendingRow) -> None:
        if not self._rows(f"SELECT 1 FROM pending WHERE {_PENDING}", **row.key._asdict()):
            values = row.key._asdict() | {"shown": json.dumps(row.shown), "payload": row.payload}
            values |= {"created_at": row.created_at, "origin": row.origin, "tries": row.tries, "error": row.error}
            self._insert("pending", [values])

    def fail_pending(self, keys: Collection[PendingKey], error: str) -> None:
        statement = f"UPDATE pending SET tries = tries + 1, error = :error WHERE {_PENDING}"
        for key in keys:
            self._rows(statement, error=error, **key._asdict())

    def remove_pending(self, keys: Collection[PendingKey]) -> None:
        for key in keys:
            self._rows(f"DELETE FROM pending WHERE {_PENDING}", **key._asdict())

    def add_snapshot(self, row: SnapshotRow) -> None:
        self._insert("snapshots", [row._asdict()])

    def _insert(self, table: str, rows: Iterable[dict[str, Any]]) -> None:
        insert(self._connection, table, [{"scope_id": self._scope_id, **row} for row in rows])


_PENDING = " AND ".join(("scope_id = :scope", *(f"{name} = :{name}" for name in PendingKey._fields)))


class SqlScope(SqlReader):
    """A scope of a database."""

    def __init__(self, database: Database, name: str, scope_id: int) -> None:
        super().__init__(partial(database.reading, once=True), scope_id)
        self.id = scope_id
        self.name = name
        self.location = database.location
        self.database = database
        self._commits = GroupCommit(partial(database.writing, scope_id))

    def now(self) -> SqlReader:
        """Reads of the present state, each on its own."""
        return self

    def at(self, mark: int) -> SqlReader:
        return SqlReader(partial(self.database.reading, once=True), self.id, mark)

    @contextmanager
    def write(self, *, embedder: tuple[str, int] | None = None, exclusive: bool = False) -> Iterator[SqlWriter]:
        """Open a transaction; ``embedder``: id and dimension of the one whose vectors are written.

        Raises ``EmbedderMismatch`` if the bank belongs to another, and ``StorageError``.
        """
        with self.database.writing(None if exclusive else self.id) as connection:
            yield self._writer(connection, embedder)

    def together(
        self,
        work: Callable[[SqlWriter, Sequence[Item]], Sequence[Result]],
        item: Item,
        *,
        embedder: tuple[str, int] | None = None,
    ) -> Result:
        """Write ``item`` in a transaction, and by a call of ``work``, that it may share with others.

        See ``GroupCommit.run`` and ``write``.
        """
        return self._commits.run(
            (work, embedder), lambda connection, items: work(self._writer(connection, embedder), items), item
        )

    def _writer(self, connection: Connection, embedder: tuple[str, int] | None) -> SqlWriter:
        if embedder is not None:
            check_embedder(connection, embedder, self.location)
        return SqlWriter(connection, self.id, embedder[0] if embedder else "")

    def embedder(self) -> tuple[str, int] | None:
        with self.database.reading() as connection:
            return embedder_of(connection)

    def watermark(self, known: str) -> tuple[int, int, str]:
        """Return the highest number used, the epoch, and the embedder, or ``known`` if there are no vectors yet.

        Raises ``EmbedderMismatch`` if the bank belongs to another embedder than ``known``.
        """
        values = ", ".join(f"(SELECT value FROM meta WHERE key = '{key}')" for key in ("epoch", "embedder"))
        ((seq, epoch, embedder),) = self._rows(f"SELECT seq, {values} FROM scopes WHERE id = :scope")
        if embedder and known not in ("", embedder):
            moved = f"{self.location}: was moved to the embedder {embedder} meanwhile"
            raise EmbedderMismatch(f"{moved}; open or fork it again")
        return int(seq), int(epoch or 0), embedder or known

    @contextmanager
    def reading(self) -> Iterator[SqlReader]:
        """Open a block whose reads, on this thread, all see the state at its beginning.

        Do not call a searcher inside it: a searcher has its own lock.
        """
        with self.database.reading():
            yield self

    def index_rows(self, unit: Unit, *, after: int, upto: int) -> Iterator[IndexRow]:
        """Yield rows with a vector, including ended rows, with numbers above ``after`` and up to ``upto``."""
        kind = "kind" if unit == "item" else "''"
        statement = (
            f"SELECT seq, ended, task_id, polarity, level, {kind}, vectors.data FROM {unit}s JOIN vectors"
            " USING (scope_id, seq) WHERE scope_id = :scope AND unit = :unit AND seq > :after AND seq <= :upto"
            f" AND embedder = (SELECT value FROM meta WHERE key = 'embedder') ORDER BY seq LIMIT {_INDEX_PAGE}"
        )
        while rows := self._rows(statement, unit=unit, after=after, upto=upto):
            for *row, data in rows:
                yield IndexRow(row[0], row[1], row[2], row[3], row[4], packed_bytes(data), row[5])
            after = rows[-1][0]

    def index_ended(self, unit: Unit, *, after: int, upto: int) -> list[tuple[int, int]]:
        statement = f"SELECT seq, ended FROM {unit}s WHERE scope_id = :scope AND ended > :after AND ended <= :upto"
        return [(row[0], row[1]) for row in self._rows(statement, after=after, upto=upto)]

    def texts(self, unit: Unit, *, after: int, upto: int) -> list[tuple[int, str]]:
        where = "scope_id = :scope AND seq > :after AND seq <= :upto"
        statement = f"SELECT seq, {', '.join(TEXTS[unit])} FROM {unit}s WHERE {where} ORDER BY seq"
        return [(row[0], "\n".join(row[1:])) for row in self._rows(statement, after=after, upto=upto)]


def scope_names(connection: Connection) -> list[str]:
    """Names of all scopes, sorted."""
    return sorted(row[0] for row in run(connection, "SELECT name FROM scopes", {}))


def open_scope(database: Database, name: str) -> SqlScope:
    """Open a scope; create it if it is missing."""
    query, values = "SELECT id FROM scopes WHERE name = :name", {"name": name}
    with database.reading() as connection:
        rows = run(connection, query, values)
    if not rows:
        with database.writing() as connection:
            run(connection, "INSERT INTO scopes (name, seq) VALUES (:name, 0) ON CONFLICT DO NOTHING", values)
            rows = run(connection, query, values)
    return SqlScope(database, name, rows[0][0])
