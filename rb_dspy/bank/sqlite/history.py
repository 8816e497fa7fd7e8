"""What the journal says of one experience or item."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence

from rb_dspy.bank.sqlite import keys
from rb_dspy.bank.sqlite.scoped import Row, Scope
from rb_dspy.schema import Change, MemoryDraft

_ENTRIES = (
    "SELECT j.key, j.kind, coalesce(j.note, e.note), coalesce(j.created_at, e.created_at)"
    " FROM json_each(?) AS given CROSS JOIN journal AS j ON j.key = given.value"
    " LEFT JOIN experiences AS e ON e.key = j.key ORDER BY j.key"
)


def history(connection: sqlite3.Connection, scope: Scope, id: str) -> list[Change]:
    """The entries that brought, changed or ended it, in order."""
    found = connection.execute(
        "SELECT key, ended FROM experiences WHERE scope_id = ? AND id = ?"
        " UNION ALL SELECT experience, ended FROM items WHERE scope_id = ? AND id = ?",
        (scope.id, id, scope.id, id),
    ).fetchall()
    entries = {key for key, _ in found} | {scope.base + ended for _, ended in found if ended is not None}
    listed = connection.execute(_ENTRIES, (json.dumps(sorted(entries)),)).fetchall()
    return [_change(connection, scope, id, row) for row in listed]


def _change(connection: sqlite3.Connection, scope: Scope, id: str, row: Row) -> Change:
    key, kind, note, created_at = row
    before = after = None
    if kind == "edit":
        texts = "SELECT title, description, content FROM items WHERE scope_id = ? AND id = ?"
        before = connection.execute(f"{texts} AND ended = ? LIMIT 1", (scope.id, id, keys.number(key))).fetchone()
        after = connection.execute(f"{texts} AND key > ? ORDER BY key LIMIT 1", (scope.id, id, key)).fetchone()
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
