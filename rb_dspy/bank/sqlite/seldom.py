"""What is read seldom, through SQLAlchemy Core, and the small writes that go with it."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from rb_dspy.bank.parts import BankStats
from rb_dspy.bank.sqlite import rows, state, tables
from rb_dspy.bank.sqlite.migrations import MIGRATIONS
from rb_dspy.bank.sqlite.queries import SEVERAL, counted
from rb_dspy.errors import CorruptBank, InputError, UnknownScope
from rb_dspy.schema import Ingestion, Snapshot

_log = logging.getLogger("rb_dspy.bank")

_e, _i, _x = tables.experiences.c, tables.items.c, tables.exposures.c

# Rows of items that have an earlier one: an item counts once, as what the earliest of its rows is.
_LATER = sa.text(
    "SELECT e.polarity, count(*) FROM (SELECT i.key, i.experience, min(i.key) OVER (PARTITION BY i.id) AS first"
    f" FROM {SEVERAL} WHERE i.ended IS NULL) AS later CROSS JOIN experiences AS e ON e.key = later.experience"
    " WHERE later.key > later.first GROUP BY e.polarity"
)


def embedder(connection: sa.Connection, location: str) -> tuple[str, int] | None:
    """Id and dimension of the bank's embedder. Raises ``CorruptBank`` where only half of that stands."""
    found = {row.key: row.value for row in connection.execute(sa.select(tables.meta))}
    if "embedder" not in found:
        return None
    try:
        return str(found["embedder"]), int(found["dimension"])
    except (KeyError, ValueError, TypeError):
        raise CorruptBank(f"{location}: the embedder's dimension is damaged; restore the file from a copy") from None


def bind(connection: sqlite3.Connection, embedder: tuple[str, int]) -> tuple[str, int]:
    """The embedder that the bank belongs to, from now on this one where it had none."""
    found = state.embedder(connection)  # another process may have been first
    if found is None:
        values = zip(("embedder", "dimension"), map(str, embedder), strict=True)
        connection.executemany("INSERT INTO meta VALUES (?, ?)", values)
    return found or embedder


def scopes(connection: sa.Connection) -> list[str]:
    """Their names, sorted; damaged ones are left out."""
    named = []
    for id, name in connection.execute(sa.select(tables.scopes.c.id, tables.scopes.c.name)):
        if isinstance(name, str):
            named.append(name)
        else:
            _log.warning("the name of scope number %s is damaged; it is left out. rb-dspy bank doctor says more", id)
    return sorted(named)


def add_scope(connection: sqlite3.Connection, scope: str) -> None:
    """Make a scope, unless it is there."""
    connection.execute("INSERT OR IGNORE INTO scopes (name) VALUES (?)", (scope,))


def ingestions(connection: sa.Connection, scope: str, location: str) -> list[Ingestion]:
    """Those that are kept, in the order they came; damaged ones are left out."""
    waiting = tables.ingestions.c
    # SQLAlchemy's own bytes would fail, for all rows, where one holds another type.
    payload = sa.type_coerce(waiting.payload, sa.types.NullType()).label("payload")
    query = sa.select(waiting.id, payload).where(waiting.scope_id == _scope_id(connection, scope, location))
    found = []
    for row in connection.execute(query.order_by(waiting.position)):
        try:
            found.append(rows.ingestion(row.payload, row.id, location))
        except CorruptBank as exc:
            _log.warning("%s", exc)
    return found


def snapshots(connection: sa.Connection, scope: str, location: str) -> list[Snapshot]:
    """In the order of their numbers; damaged ones are left out."""
    named = tables.snapshots.c
    query = sa.select(tables.snapshots).where(named.scope_id == _scope_id(connection, scope, location))
    found = []
    for row in connection.execute(query.order_by(named.seq, named.name)):
        try:
            found.append(_named(row.name, scope, (row.seq, row.digest, row.created_at), location))
        except CorruptBank as exc:
            _log.warning("%s", exc)
    return found


def snapshot(connection: sqlite3.Connection, scope: str, name: str, created_at: str, location: str) -> Snapshot:
    """Name the present state."""
    scope_id, seq, head = state.scope_row(connection, scope, location)
    found = connection.execute(
        "SELECT seq, digest, created_at FROM snapshots WHERE scope_id = ? AND name = ?", (scope_id, name)
    ).fetchone()
    if found is not None and _named(name, scope, found, location).seq != seq:
        raise InputError(
            f"{location}: scope {scope!r}: the name {name!r} is that of the state at {found[0]}, now it is {seq};"
            " choose another name"
        )
    if found is None:
        found = seq, head.hex(), created_at
        connection.execute("INSERT INTO snapshots VALUES (?, ?, ?, ?, ?)", (scope_id, name, *found))
    return _named(name, scope, found, location)


def _named(name: str, scope: str, row: Sequence[Any], location: str) -> Snapshot:
    """Raises ``CorruptBank`` for a damaged row."""
    seq, digest, created_at = row
    try:
        return Snapshot.model_validate(
            {"name": name, "scope": scope, "seq": seq, "digest": digest, "created_at": created_at}, strict=True
        )
    except ValueError as exc:  # pydantic's errors are ValueErrors
        raise rows.damaged(location, f"scope {scope!r}: snapshot {name!r}", exc) from exc


def stats(connection: sa.Connection, scope: str, size: int, location: str) -> BankStats:
    """Counts of what lives in one scope."""
    scope_id = _scope_id(connection, scope, location)
    experience = [_e.scope_id == scope_id, _e.ended.is_(None)]
    given = (_i.experience == _e.key) & _i.ended.is_(None)
    polarities = _tally(
        connection, sa.select(_e.polarity, sa.func.count()).join(tables.items, given), _e.polarity, experience
    )
    for polarity, number in connection.execute(_LATER, {"scope": scope_id}):
        polarities[str(polarity)] = polarities.get(str(polarity), 0) - number
    shown = sa.select(sa.func.count()).select_from(tables.exposures).join(tables.experiences, _x.experience == _e.key)
    waiting = sa.select(sa.func.count()).where(tables.ingestions.c.scope_id == scope_id)
    ever = connection.scalar(sa.text(counted("true")), {"scope": scope_id}) or 0
    items = connection.scalar(sa.text(counted("i.ended IS NULL")), {"scope": scope_id}) or 0
    ended = sa.select(sa.func.count()).where(_e.scope_id == scope_id, _e.ended.is_not(None))
    name, dimension = embedder(connection, location) or ("", 0)
    return BankStats(
        scope=scope,
        items=items,
        experiences=connection.scalar(sa.select(sa.func.count()).where(*experience)) or 0,
        experiences_with_items=connection.scalar(
            sa.select(sa.func.count()).where(*experience, sa.exists().where(given))
        )
        or 0,
        by_polarity={polarity: number for polarity, number in polarities.items() if number},
        by_verdict=_tally(connection, sa.select(_e.label, sa.func.count()), _e.label, experience),
        by_template=_tally(
            connection, sa.select(_e.template, sa.func.count()), _e.template, [*experience, _e.template.is_not(None)]
        ),
        exposures=connection.scalar(shown.where(*experience)) or 0,
        pending=connection.scalar(waiting) or 0,
        removed=(connection.scalar(ended) or 0) + ever - items,
        embedder=name,
        dimension=dimension,
        bytes_on_disk=size,
        schema_version=len(MIGRATIONS),
    )


def _tally(
    connection: sa.Connection, query: sa.Select[Any], column: sa.Column[Any], where: list[sa.ColumnElement[bool]]
) -> dict[str, int]:
    """Number of rows for each value of a column."""
    found = connection.execute(query.where(*where).group_by(column).order_by(column))
    return {str(value): int(number) for value, number in found}


def _scope_id(connection: sa.Connection, scope: str, location: str) -> int:
    found = connection.scalar(sa.select(tables.scopes.c.id).where(tables.scopes.c.name == scope))
    if found is None:
        raise UnknownScope(f"{location}: no scope {scope!r}")
    return int(found)
