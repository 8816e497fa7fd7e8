"""Rollouts that wait to be learned from."""

from __future__ import annotations

import contextlib
import logging
import sqlite3
from collections.abc import Iterable

from rb_dspy.bank import refusals
from rb_dspy.bank.sqlite import keys, rows
from rb_dspy.bank.sqlite.ids import named
from rb_dspy.bank.sqlite.scoped import Scope, State
from rb_dspy.bank.sqlite.state import scope_row
from rb_dspy.bank.stages import STAGES, further, gives_way
from rb_dspy.errors import CorruptBank
from rb_dspy.schema import Ingestion

_log = logging.getLogger("rb_dspy.bank")

_KEPT = "SELECT id, payload FROM ingestions WHERE scope_id = ? ORDER BY position"


def ingestions(connection: sqlite3.Connection, scope: Scope) -> list[Ingestion]:
    """Those that are kept, in the order they came; damaged ones are left out."""
    found = []
    for id, payload in connection.execute(_KEPT, (scope.id,)):
        try:
            found.append(rows.ingestion(payload, id, scope.location))
        except CorruptBank as exc:
            _log.warning("%s", exc)
    return found


def kept(
    connection: sqlite3.Connection,
    ingestion: Ingestion,
    payload: bytes,
    location: str,
    instead: Ingestion | None = None,
) -> Ingestion:
    """Keep an ingestion, which ``payload`` holds; what is kept is what ``further`` and ``gives_way`` say."""
    scope = ingestion.scope
    scope_id, _, _ = scope_row(connection, scope, location)
    if instead is not None and gives_way(_found(connection, scope_id, instead.id, location), ingestion, instead):
        forget(connection, scope_id, [instead.id])
    at = scope_id, ingestion.id
    state = State(Scope(scope_id, scope, location), keys.LAST)
    found = connection.execute("SELECT payload FROM ingestions WHERE scope_id = ? AND id = ?", at).fetchone()
    if found is not None and found[0] == payload:
        return ingestion  # as it is, which need not be read
    before = None if found is None else rows.ingestion(found[0], ingestion.id, location)
    given, ingestion = ingestion, further(before, ingestion)
    if before is None:
        stored = f"SELECT 1 FROM experiences AS e WHERE {named('e')}"
        if connection.execute(stored, state.named(ingestion.id)).fetchone():
            raise refusals.stored_already(location, ingestion.id)
    elif ingestion == before:
        return before
    if ingestion is not given:
        payload = rows.ingestion_payload(ingestion)
    connection.execute(
        "INSERT INTO ingestions (scope_id, id, run_id, origin, stage, payload) VALUES (?, ?, ?, ?, ?, ?)"
        " ON CONFLICT (scope_id, id) DO UPDATE SET run_id = excluded.run_id, origin = excluded.origin,"
        " stage = excluded.stage, payload = excluded.payload",
        (scope_id, *columns(ingestion), payload),
    )
    return ingestion


def columns(ingestion: Ingestion) -> tuple[str, str, str, int]:
    """What its row says of it besides the payload: id, run, origin, stage."""
    return ingestion.id, ingestion.run_id, ingestion.origin, STAGES.index(ingestion.stage)


Others = list[tuple[tuple[str, str, str, int], int]]
"""The columns that rows should have, and the rows' positions."""


def others(connection: sqlite3.Connection) -> Others:
    """Rows that say something else of themselves than their rollouts do."""
    found = []
    for position, payload, *said in connection.execute(
        "SELECT position, payload, id, run_id, origin, stage FROM ingestions"
    ):
        with contextlib.suppress(CorruptBank):  # ``check_rows`` tells of it
            told = columns(rows.told_ingestion(payload, str(said[0]), ""))
            if told != tuple(said):
                found.append((told, position))
    return found


def set_right(connection: sqlite3.Connection, others: Others) -> None:
    """Let rows say what their rollouts do; but not twice under one id."""
    connection.executemany(
        "UPDATE OR IGNORE ingestions SET id = ?, run_id = ?, origin = ?, stage = ? WHERE position = ?",
        [(*told, position) for told, position in others],
    )


def _found(connection: sqlite3.Connection, scope_id: int, id: str, location: str) -> Ingestion | None:
    """What is kept under this id; None where nothing is, or what is damaged, which stays for ``doctor`` to name."""
    query = "SELECT payload FROM ingestions WHERE scope_id = ? AND id = ?"
    found = connection.execute(query, (scope_id, id)).fetchone()
    try:
        return None if found is None else rows.ingestion(found[0], id, location)
    except CorruptBank as exc:
        _log.warning("%s", exc)
        return None


def dropped(connection: sqlite3.Connection, scope: str, id: str, location: str) -> None:
    """Forget an ingestion, if there is one."""
    scope_id, _, _ = scope_row(connection, scope, location)
    forget(connection, scope_id, [id])


def waiting(connection: sqlite3.Connection, scope_id: int, location: str) -> list[Ingestion]:
    """Those that are kept, in the order they came. Raises ``CorruptBank`` for one that is damaged."""
    return [rows.ingestion(payload, id, location) for id, payload in connection.execute(_KEPT, (scope_id,)).fetchall()]


def waiting_ids(connection: sqlite3.Connection, scope: Scope) -> set[str]:
    """The ids of all that are kept, also of those that are damaged."""
    return {id for (id,) in connection.execute("SELECT id FROM ingestions WHERE scope_id = ?", (scope.id,))}


def forget(connection: sqlite3.Connection, scope_id: int, ids: Iterable[str]) -> None:
    """Those of ``ids`` that are kept are kept no more."""
    these = [(scope_id, id) for id in ids]
    connection.executemany("DELETE FROM ingestions WHERE scope_id = ? AND id = ?", these)
