"""Experiences of many callers, stored with one statement for each table."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass, field

from rb_dspy.bank import journal
from rb_dspy.bank.sqlite import failpoints, keys, queries, rows
from rb_dspy.bank.sqlite.item_queries import items_with
from rb_dspy.bank.sqlite.rows import Prepared
from rb_dspy.bank.sqlite.scoped import Scope, State
from rb_dspy.bank.sqlite.state import Embedder, embedder, refuse_another, scope_row
from rb_dspy.errors import RBError
from rb_dspy.schema import Experience


@dataclass(frozen=True, slots=True)
class Append:
    """Experiences for a scope, from a caller that has this embedder. The outcome: for each, where it was placed.

    Or what is stored, where that has to be read: of one that was there before, and of one that shares an item.
    """

    location: str
    scope: str
    batch: Sequence[Prepared]
    embedder: Embedder


@dataclass(frozen=True, slots=True)
class Placed:
    """The number of an experience, and the ids of its items."""

    seq: int
    item_ids: Sequence[str]


@dataclass(slots=True)
class _Writing:
    """A scope while it is written to."""

    scope: Scope
    seq: int
    head: bytes
    known: set[str] = field(default_factory=set)
    """Ids of experiences that were there before."""
    added: set[str] = field(default_factory=set)
    """Ids of those that come now."""
    live: dict[str, str] = field(default_factory=dict)
    """Id and digest of items that live."""
    texts: dict[str, str] = field(default_factory=dict)
    """Digest and id of items that live; of several with one text, the earliest."""
    shared: set[str] = field(default_factory=set)
    """Ids of items that get another provenance now."""


def appended(connection: sqlite3.Connection, appends: Sequence[Append]) -> list[object]:
    """The outcome of each, or the error of ours that it raised; of such a one nothing is stored."""
    scopes: dict[str, _Writing] = {}
    outcomes: list[object] = []
    into = _Rows()
    now = embedder(connection)
    for append in appends:
        try:
            refuse_another(now, append.embedder, append.location)
            if append.scope not in scopes:
                scopes[append.scope] = _looked_up(connection, append, appends)
            writing = scopes[append.scope]
            # Read before anything is placed: a damaged one must not leave half a batch behind.
            given = [each.new.id for each in append.batch]
            before = {id: queries.ever(connection, writing.scope, id) for id in given if id in writing.known}
        except RBError as exc:
            outcomes.append(exc)
        else:
            outcomes.append([before.get(each.new.id) or _placed(writing, each, into) for each in append.batch])
    into.insert(connection)
    failpoints.reached("after-insert")
    for writing in scopes.values():
        _finish(connection, writing)
    for append, outcome in zip(appends, outcomes, strict=True):
        if isinstance(outcome, list) and append.scope in scopes:
            _read_shared(connection, scopes[append.scope], append.batch, outcome)
    return outcomes


def _looked_up(connection: sqlite3.Connection, append: Append, appends: Sequence[Append]) -> _Writing:
    """A scope, and which of the ids that are to be written it has."""
    id, seq, head = scope_row(connection, append.scope, append.location)
    batch = [each.new for other in appends if other.scope == append.scope for each in other.batch]
    known = connection.execute(
        "SELECT e.id FROM json_each(?) AS given CROSS JOIN experiences AS e ON e.scope_id = ? AND e.id = given.value",
        (json.dumps([new.id for new in batch]), id),
    )
    live = connection.execute(
        "SELECT i.id, i.digest FROM json_each(?) AS given CROSS JOIN items AS i"
        " ON i.scope_id = ? AND i.id = given.value AND i.ended IS NULL",
        (json.dumps([item.id for new in batch for item in new.items]), id),
    )
    scope = Scope(id, append.scope, append.location)
    texts = items_with(connection, State(scope, keys.LAST), [item.digest for new in batch for item in new.items])
    return _Writing(scope, seq, head, {row[0] for row in known}, live=dict(live.fetchall()), texts=texts)


def _placed(writing: _Writing, each: Prepared, into: _Rows) -> Placed | None:
    """Where a new experience is placed; None for one that the same transaction has placed already."""
    new, base = each.new, writing.scope.base
    if new.id in writing.added:
        return None
    writing.added.add(new.id)
    writing.seq += 1
    seq, key = writing.seq, base + writing.seq
    success = new.polarity == "success"
    into.experiences.append(
        (
            *(key, writing.scope.id, new.id, new.task.id, rows.template(new), new.task.instruction, new.label),
            *(new.polarity, new.run_id, new.origin, new.distiller, new.note, new.created_at, each.payload),
        )
    )
    if each.vector is not None:
        into.experience_vectors.append(rows.vector_row(key, each.task, success, each.vector))
    ids: list[str] = []
    for item, vector in zip(new.items, each.item_vectors, strict=True):
        writing.seq += 1
        id = writing.texts.get(item.digest)
        if id is not None:
            writing.shared.add(id)
        else:  # the id of its text may be that of an item that was edited
            id = own_id(new.id, item.digest) if item.id in writing.live else item.id
            writing.live[id] = item.digest
            writing.texts[item.digest] = id
        ids.append(id)
        row = base + writing.seq
        into.items.append((row, writing.scope.id, id, key, item.digest, item.title, item.description, item.content))
        into.item_vectors.append(rows.vector_row(row, each.task, success, vector))
    into.exposures += [(key, position, item_id) for position, item_id in enumerate(new.shown)]
    content = journal.content_of_append(new, ids, each.told)
    writing.head = journal.entry_hash(writing.head, seq, "append", new.id, new.note, new.created_at, content)
    into.journal.append((key, writing.head))
    return Placed(seq, ids)


def _finish(connection: sqlite3.Connection, writing: _Writing) -> None:
    """The scope's counter and head; what was learned from is pending no more."""
    id = writing.scope.id
    if writing.added:
        connection.execute("UPDATE scopes SET seq = ?, head = ? WHERE id = ?", (writing.seq, writing.head, id))
    if connection.execute("SELECT 1 FROM ingestions WHERE scope_id = ? LIMIT 1", (id,)).fetchone():
        done = [(id, experience_id) for experience_id in writing.added | writing.known]
        connection.executemany("DELETE FROM ingestions WHERE scope_id = ? AND id = ?", done)


def _read_shared(
    connection: sqlite3.Connection,
    writing: _Writing,
    batch: Sequence[Prepared],
    outcome: list[Experience | Placed | None],
) -> None:
    """Put what is stored in the place of what was placed, where an item has other provenances as well."""
    for place, (each, found) in enumerate(zip(batch, outcome, strict=True)):
        shared = isinstance(found, Placed) and not writing.shared.isdisjoint(found.item_ids)
        if found is None or shared:
            outcome[place] = queries.ever(connection, writing.scope, each.new.id)


class _Rows:
    """Rows that wait to be inserted, by table."""

    def __init__(self) -> None:
        self.experiences: list[tuple[object, ...]] = []
        self.items: list[tuple[object, ...]] = []
        self.experience_vectors: list[rows.Vector] = []
        self.item_vectors: list[rows.Vector] = []
        self.exposures: list[tuple[int, int, str]] = []
        self.journal: list[tuple[int, bytes]] = []

    def insert(self, connection: sqlite3.Connection) -> None:
        for statement, values in (
            (
                "INSERT INTO experiences (key, scope_id, id, task_id, template, instruction, label, polarity, run_id,"
                " origin, distiller, note, created_at, payload) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                self.experiences,
            ),
            (
                "INSERT INTO items (key, scope_id, id, experience, digest, title, description, content)"
                " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                self.items,
            ),
            (
                "INSERT INTO experience_vectors (key, task, success, crc, data) VALUES (?, ?, ?, ?, ?)",
                self.experience_vectors,
            ),
            ("INSERT INTO item_vectors (key, task, success, crc, data) VALUES (?, ?, ?, ?, ?)", self.item_vectors),
            ("INSERT INTO exposures (experience, position, item_id) VALUES (?, ?, ?)", self.exposures),
            ("INSERT INTO journal (key, kind, hash) VALUES (?, 'append', ?)", self.journal),
        ):
            if values:
                connection.executemany(statement, values)


def own_id(experience_id: str, digest: str) -> str:
    """The id of an item whose usual one is that of an item with another text."""
    said = json.dumps(["item", experience_id, digest], separators=(",", ":"))
    return f"m{hashlib.sha256(said.encode('ascii')).hexdigest()[:20]}"
