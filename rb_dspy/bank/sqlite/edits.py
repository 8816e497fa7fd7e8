"""Bodies of the writes that end rows: an edit, a delete, a rollback."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

from rb_dspy.bank import journal, refusals
from rb_dspy.bank.admission import item_id, now
from rb_dspy.bank.lineage import Going, closure
from rb_dspy.bank.parts import NewItem, Source, task_key
from rb_dspy.bank.pending import group_id, taken
from rb_dspy.bank.sqlite import descent, embedders, ids, item_queries, keys, pending, rows
from rb_dspy.bank.sqlite.ids import named
from rb_dspy.bank.sqlite.scoped import Scope, State
from rb_dspy.bank.sqlite.state import scope_row
from rb_dspy.schema import ChangeKind, MemoryItem, Removal


@dataclass(frozen=True, slots=True)
class Edit:
    """Another text for an item: its live rows end, and for each a new one is born. Gives the item."""

    location: str
    scope: str
    id: str
    new: NewItem
    vector: bytes
    note: str
    embedder: tuple[str, int] | None

    def __call__(self, connection: sqlite3.Connection) -> MemoryItem:
        id, new = self.id, self.new
        scope_id, seq, head = scope_row(connection, self.scope, self.location)
        embedders.bound_by_writing(
            connection, embedders.current(connection), self.embedder, {len(self.vector)}, self.location
        )
        base = keys.base(scope_id)
        state = State(Scope(scope_id, self.scope, self.location), keys.LAST)
        live = connection.execute(
            "SELECT i.key, i.experience, e.task_id, e.polarity FROM items AS i JOIN experiences AS e"
            f" ON e.key = i.experience WHERE {named('i')} AND i.ended IS NULL ORDER BY i.key",
            state.named(id),
        ).fetchall()
        if not live:
            raise refusals.nothing_to_edit(self.location, self.scope, id)
        twin = item_queries.items_with(connection, state, [new.digest]).get(new.digest, id)
        if twin != id:
            raise refusals.twins(self.location, id, twin)
        texts = new.title, new.description, new.content
        apart = None if id == item_id(self.scope, new.digest) else 1
        id_key = ids.of_id(scope_id, id)
        number = seq + 1
        ended = [keys.number(key) for key, _, _, _ in live]
        _end(connection, "items", base, ended, number)
        _end(connection, "item_vectors", base, ended, number)
        for born, (_, experience, task_id, polarity) in enumerate(live, base + number + 1):
            connection.execute(
                "INSERT INTO items VALUES (?, ?, ?, NULL, ?, ?, ?, ?, ?, ?, ?)",
                (born, scope_id, id, experience, new.digest, *texts, apart, id_key),
            )
            connection.execute("INSERT INTO recent_ids VALUES (?, ?)", (id_key, born))
            connection.execute(
                "INSERT INTO item_vectors (key, task, success, crc, data) VALUES (?, ?, ?, ?, ?)",
                rows.vector_row(born, task_key(task_id), polarity == "success", self.vector),
            )
        content = journal.content_of_edit(id, new.digest, ended)
        _enter(connection, scope_id, head, number, "edit", id, self.note, content, number + len(live))
        edited = item_queries.item(connection, state, id)
        if edited is None:
            raise rows.damaged(self.location, f"item {id}")
        return edited


@dataclass(frozen=True, slots=True)
class Remove:
    """The end of what ``source`` means. Gives what it took away, or would take away."""

    location: str
    scope: str
    kind: Literal["delete", "rollback"]
    source: Source
    descendants: bool
    note: str
    dry_run: bool

    def __call__(self, connection: sqlite3.Connection) -> Removal:
        scope_id, seq, head = scope_row(connection, self.scope, self.location)
        state = State(Scope(scope_id, self.scope, self.location), keys.LAST)
        going = closure(
            self.source,
            descendants=self.descendants,
            members=partial(descent.members, connection, state),
            rows=partial(descent.rows, connection, state),
        )
        # A damaged one is in the way of what it might go with, and of nothing else.
        asked = self.descendants or self.source.kind in ("run", "origin")
        groups = taken(
            pending.waiting(connection, state.scope) if asked else (),
            self.source,
            descendants=self.descendants,
            tainted=going.tainted,
        )
        gone = tuple(member.id for member in going.experiences)
        removal = Removal(
            experiences=gone,
            items=going.items,
            pending=tuple([group_id(self.scope, group) for group in groups]),
        )
        if not self.dry_run:
            pending.forget(connection, scope_id, [key for group in groups for key in group])
            if going.experiences or going.rows:
                self._end(connection, scope_id, seq, head, going)
        return removal

    def _end(self, connection: sqlite3.Connection, scope_id: int, seq: int, head: bytes, going: Going) -> None:
        base, number = keys.base(scope_id), seq + 1
        experiences = [member.number for member in going.experiences]
        ending = [row.seq for row in going.rows]
        _end(connection, "experiences", base, experiences, number)
        _end(connection, "items", base, ending, number)
        _end(connection, "experience_vectors", base, going.unindexed, number)
        _end(connection, "item_vectors", base, ending, number)
        content = journal.content_of_removal(experiences, ending)
        _enter(connection, scope_id, head, number, self.kind, self.source.name, self.note, content, number)


def _end(connection: sqlite3.Connection, table: str, base: int, numbers: Sequence[int], at: int) -> None:
    connection.executemany(
        f"UPDATE {table} SET ended = ? WHERE key = ? AND ended IS NULL", [(at, base + number) for number in numbers]
    )


def _enter(
    connection: sqlite3.Connection,
    scope_id: int,
    head: bytes,
    number: int,
    kind: ChangeKind,
    subject: str,
    note: str,
    content: bytes,
    last: int,
) -> None:
    """An entry of the journal, and the scope's new head and highest number."""
    time = now()
    hash = journal.entry_hash(head, number, kind, subject, note, time, content)
    connection.execute(
        "INSERT INTO journal VALUES (?, ?, ?, ?, ?, ?)",
        (keys.base(scope_id) + number, kind, subject, note, time, hash),
    )
    connection.execute("UPDATE scopes SET seq = ?, chain = ? WHERE id = ?", (last, hash, scope_id))
    ids.go_on(connection, scope_id, number - 1, last)
