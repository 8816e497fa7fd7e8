"""Names for states of a scope."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Sequence
from typing import Any

from rb_dspy.bank import refusals
from rb_dspy.bank.sqlite import rows
from rb_dspy.bank.sqlite.scoped import Scope
from rb_dspy.bank.sqlite.state import scope_row
from rb_dspy.errors import CorruptBank
from rb_dspy.schema import Snapshot

_log = logging.getLogger("rb_dspy.bank")


def snapshots(connection: sqlite3.Connection, scope: Scope) -> list[Snapshot]:
    """In the order of their numbers; damaged ones are left out."""
    query = "SELECT name, seq, digest, created_at FROM snapshots WHERE scope_id = ? ORDER BY seq, name"
    found = []
    for name, *row in connection.execute(query, (scope.id,)):
        try:
            found.append(_named(name, scope.name, row, scope.location))
        except CorruptBank as exc:
            _log.warning("%s", exc)
    return found


def snapshot(connection: sqlite3.Connection, scope: str, name: str, created_at: str, location: str) -> Snapshot:
    """Name the present state."""
    scope_id, seq, head = scope_row(connection, scope, location)
    found = connection.execute(
        "SELECT seq, digest, created_at FROM snapshots WHERE scope_id = ? AND name = ?", (scope_id, name)
    ).fetchone()
    if found is None:
        found = seq, head.hex(), created_at
        connection.execute("INSERT INTO snapshots VALUES (?, ?, ?, ?, ?)", (scope_id, name, *found))
    known = _named(name, scope, found, location)
    if known.seq != seq:
        raise refusals.name_taken(location, known, seq)
    return known


def _named(name: str, scope: str, row: Sequence[Any], location: str) -> Snapshot:
    """Raises ``CorruptBank`` for a damaged row."""
    seq, digest, created_at = row
    try:
        return Snapshot.model_validate(
            {"name": name, "scope": scope, "seq": seq, "digest": digest, "created_at": created_at}, strict=True
        )
    except ValueError as exc:  # pydantic's errors are ValueErrors
        raise rows.damaged(location, f"scope {scope!r}: snapshot {name!r}", exc) from exc
