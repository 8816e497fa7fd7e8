"""What is read from the tables, each inside the caller's transaction and of one scope only."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import sqlalchemy as sa

from rb_dspy.bank import rows, tables
from rb_dspy.bank.interface import Match, Unit, VectorBatch
from rb_dspy.errors import CorruptBank
from rb_dspy.schema import Experience, MemoryItem

_e, _i, _v = tables.experiences.c, tables.items.c, tables.vectors.c

_ITEMS = sa.select(
    tables.items, _e.id.label("of_experience"), _e.task_id.label("of_task"), _e.run_id.label("of_run")
).join(tables.experiences, (_e.scope_id == _i.scope_id) & (_e.seq == _i.experience_seq))


def scope_id(connection: sa.Connection, scope: str) -> int | None:
    """The scope's key, which only this module and the store know."""
    return connection.scalar(sa.select(tables.scopes.c.id).where(tables.scopes.c.name == scope))


def embedder(connection: sa.Connection, location: str) -> tuple[str, int] | None:
    """Id and dimension of the bank's embedder. Raises ``CorruptBank`` where only half of that stands."""
    found = {row.key: row.value for row in connection.execute(sa.select(tables.meta))}
    if "embedder" not in found:
        return None
    try:
        return found["embedder"], int(found["dimension"])
    except (KeyError, ValueError):
        raise CorruptBank(f"{location}: the embedder's dimension is damaged; restore the file from a copy") from None


def items(
    connection: sa.Connection, scope: tuple[int, str], location: str, *where: sa.ColumnElement[bool]
) -> list[MemoryItem]:
    """Items in order, those that ``where`` means."""
    found = connection.execute(_ITEMS.where(_i.scope_id == scope[0], *where)).mappings()
    return [rows.item(row, scope[1], location) for row in _in_order(found)]


def experiences(
    connection: sa.Connection, scope: tuple[int, str], location: str, query: sa.Select[Any]
) -> list[Experience]:
    """The experiences that ``query`` selects from their table, each with its items."""
    found = connection.execute(query.where(_e.scope_id == scope[0])).mappings().all()
    if not found:
        return []
    of: dict[str, list[MemoryItem]] = {row["id"]: [] for row in found}
    for item in items(connection, scope, location, _i.experience_seq.in_([row["seq"] for row in found])):
        of[item.provenance.experience_id].append(item)
    return [rows.experience(row, of[row["id"]], scope[1], location) for row in found]


def vectors(
    connection: sa.Connection, scope_id: int, unit: Unit, *, after: int, limit: int, dimension: int, location: str
) -> VectorBatch:
    """Rows for the index, in order."""
    found = connection.execute(
        sa.select(_v.seq, _e.task_id, _v.data)
        .join(tables.experiences, (_e.scope_id == _v.scope_id) & (_e.seq == _v.experience_seq))
        .where(_v.scope_id == scope_id, _v.unit == unit, _v.seq > after)
        .order_by(_v.seq)
        .limit(limit)
    ).all()
    blobs = [blob for _, _, blob in found]
    return VectorBatch(
        np.array([seq for seq, _, _ in found], dtype=np.int64),
        [task_id for _, task_id, _ in found],
        rows.vectors(blobs, dimension, location),
    )


def matches(
    connection: sa.Connection, scope: tuple[int, str], location: str, unit: Unit, seqs: Sequence[int]
) -> dict[int, Match]:
    """What to show for the rows with these sequence numbers."""
    key = _i.seq if unit == "item" else _i.experience_seq
    query = _ITEMS.add_columns(_e.instruction.label("of_instruction"), key.label("key"))
    found = connection.execute(query.where(_i.scope_id == scope[0], key.in_(seqs))).mappings()
    matches: dict[int, Match] = {}
    for row in _in_order(found):
        before = matches[row["key"]].items if row["key"] in matches else ()
        item = rows.item(row, scope[1], location)
        matches[row["key"]] = Match(row["of_experience"], row["of_task"], row["of_instruction"], (*before, item))
    return matches


def _in_order(found: Iterable[rows.Row]) -> list[rows.Row]:
    """By sequence number. Asked to sort, SQLite reads the whole scope in order instead of looking a few rows up."""
    return sorted(found, key=lambda row: row["seq"])


def count(connection: sa.Connection, scope_id: int, column: sa.Column[Any], *, distinct: bool = False) -> int:
    """How many rows a scope has in the column's table, or how many different values in the column."""
    counted = sa.func.count(column.distinct() if distinct else column)
    return connection.scalar(sa.select(counted).where(column.table.c.scope_id == scope_id)) or 0


def tally(connection: sa.Connection, scope_id: int, column: sa.Column[Any]) -> dict[str, int]:
    """Number of rows for each value of a column, where it has one."""
    query = sa.select(column, sa.func.count()).where(column.table.c.scope_id == scope_id, column.is_not(None))
    return {str(value): int(number) for value, number in connection.execute(query.group_by(column).order_by(column))}
