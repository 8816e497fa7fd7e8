"""What the journal says of one experience or item."""

from __future__ import annotations

import json
import logging
import sqlite3
from collections.abc import Sequence

from rb_dspy.bank.sqlite import keys, rows
from rb_dspy.bank.sqlite.ids import named
from rb_dspy.bank.sqlite.scoped import Row, Scope, State
from rb_dspy.schema import Change, MemoryDraft

_log = logging.getLogger("rb_dspy.bank")

_ENTRIES = (
    "SELECT j.key, j.kind, coalesce(j.note, e.note), coalesce(j.created_at, e.created_at)"
    " FROM json_each(?) AS given CROSS JOIN journal AS j ON j.key = given.value"
    " LEFT JOIN experiences AS e ON e.key = j.key ORDER BY j.key"
)


def history(connection: sqlite3.Connection, scope: Scope, id: str) -> list[Change]:
    """The entries that brought, changed or ended it, in order; damaged ones are left out, with a warning."""
    found = connection.execute(
        f"SELECT e.key, e.ended FROM experiences AS e WHERE {named('e')}"
        f" UNION ALL SELECT i.experience, i.ended FROM items AS i WHERE {named('i')}",
        State(scope, keys.LAST).named(id),
    ).fetchall()
    begun = {key for key, _ in found if isinstance(key, int)}
    ends = {ended for _, ended in found if ended is not None}
    ended = {scope.base + number for number in ends if isinstance(number, int)}
    if len(begun) < len({key for key, _ in found}) or len(ended) < len(ends):
        _log.warning("%s", rows.damaged(scope.location, f"scope {scope.name!r}: a row of {id}"))
    made = []
    for row in connection.execute(_ENTRIES, (json.dumps(sorted(begun | ended)),)).fetchall():
        try:
            made.append(_change(connection, scope, id, row))
        except ValueError as exc:  # pydantic's errors are ValueErrors
            what = f"scope {scope.name!r}: entry {keys.number(row[0])} of the journal"
            _log.warning("%s", rows.damaged(scope.location, what, exc))
    return made


def _change(connection: sqlite3.Connection, scope: Scope, id: str, row: Row) -> Change:
    key, kind, note, created_at = row
    before = after = None
    if kind == "edit":
        texts = f"SELECT i.title, i.description, i.content FROM items AS i WHERE {named('i')}"
        given = {**State(scope, keys.LAST).named(id), "entry": key, "number": keys.number(key)}
        before = connection.execute(f"{texts} AND i.ended = :number LIMIT 1", given).fetchone()
        after = connection.execute(f"{texts} AND i.key > :entry ORDER BY i.key LIMIT 1", given).fetchone()
    return Change(
        seq=keys.number(key),
        kind=kind,
        id=id,
        note=note,
        before=None if before is None else _draft(before),
        after=None if after is None else _draft(after),
        created_at=created_at,
    )


def _draft(texts: Sequence[str]) -> MemoryDraft:
    title, description, content = texts
    return MemoryDraft(title=title, description=description, content=content)
