"""Experiences as they are read, and what is counted of a state. Damaged rows are left out of lists, with a warning."""

from __future__ import annotations

import logging
import sqlite3
import zlib
from collections.abc import Iterable, Sequence

from rb_dspy.bank import journal
from rb_dspy.bank.sqlite import keys, rows
from rb_dspy.bank.sqlite.compression import decompressed
from rb_dspy.bank.sqlite.ids import listed, named, places
from rb_dspy.bank.sqlite.item_queries import items_of
from rb_dspy.bank.sqlite.scoped import Row, Scope, State, live
from rb_dspy.errors import CorruptBank
from rb_dspy.schema import Experience, MemoryItem

_log = logging.getLogger("rb_dspy.bank")

_EXPERIENCE = (
    "SELECT e.key, e.id, e.task_id, e.instruction, e.run_id, e.origin, e.note, e.created_at, e.payload"
    " FROM experiences AS e"
)


def experiences(connection: sqlite3.Connection, state: State, *, after: int, limit: int) -> list[Experience]:
    """Experiences in order; where one is damaged the next comes in its place, so that only the last page is short."""
    made: list[Experience] = []
    while len(made) < limit:
        found = connection.execute(
            f"{_EXPERIENCE} WHERE e.key > :after AND {live('e')} ORDER BY e.key LIMIT :limit",
            state.having(after=state.scope.base + after, limit=limit - len(made)),
        ).fetchall()
        if not found:
            break
        after = keys.number(found[-1][0])
        items = items_of(connection, state, [row[0] for row in found])
        shown = _shown(connection, state, [row[0] for row in found])
        for row in found:
            try:
                made.append(_made(row, state.scope, items.get(row[0], ()), shown.get(row[0], ())))
            except CorruptBank as exc:
                _log.warning("%s", exc)
    return made


def have(connection: sqlite3.Connection, scope: Scope, ids: Sequence[str]) -> set[str]:
    """Those of ``ids`` that experiences were stored under."""
    found = connection.execute(f"SELECT e.id FROM {listed('experiences', 'e')}", State(scope, keys.LAST).listed(ids))
    return {id for (id,) in found}


def experience(connection: sqlite3.Connection, state: State, id: str) -> Experience | None:
    """Raises ``CorruptBank`` where it is damaged."""
    return _one(connection, state, named("e"), state.named(id))


def latest(connection: sqlite3.Connection, state: State, task_id: str) -> Experience | None:
    """Raises ``CorruptBank`` where it is damaged."""
    return _one(connection, state, "e.scope_id = :scope AND e.task_id = :task", state.having(task=task_id))


def ever(connection: sqlite3.Connection, scope: Scope, id: str) -> Experience:
    """An experience as it is, or as it was before it ended."""
    query = f"SELECT e.ended FROM experiences AS e WHERE {named('e')}"
    row = connection.execute(query, State(scope, keys.LAST).named(id)).fetchone()
    at = keys.LAST if row is None or row[0] is None else row[0] - 1
    found = experience(connection, State(scope, at), id)
    if found is None:
        raise rows.damaged(scope.location, f"experience {id}")
    return found


def ended(connection: sqlite3.Connection, scope: Scope, id: str) -> bool:
    """Whether an experience was stored under this id and is no more."""
    query = f"SELECT 1 FROM experiences AS e WHERE {named('e')} AND e.ended IS NOT NULL"
    return connection.execute(query, State(scope, keys.LAST).named(id)).fetchone() is not None


def edited(connection: sqlite3.Connection, state: State) -> set[str]:
    """Ids of items that were given another text."""
    query = "SELECT DISTINCT subject FROM journal WHERE key > :base AND key <= :upto AND kind = 'edit'"
    return {id for (id,) in connection.execute(query, state.having())}


def count(connection: sqlite3.Connection, state: State) -> int:
    """Number of items."""
    return int(connection.execute(counted(live("i")), state.having()).fetchone()[0])


SEVERAL = (
    "(SELECT DISTINCT again AS id_key FROM items WHERE scope_id = :scope AND again IS NOT NULL) AS several"
    f" CROSS JOIN items AS i ON i.key IN ({places('several.id_key')})"
)
"""The rows of all items of a scope that have, or had, several."""


def counted(where: str) -> str:
    """A query for the number of items of a scope with a row ``i`` that is meant, with parameters of ``State.having``.

    Reads an index alone, but for items with several rows.
    """
    base = f"(:scope << {keys.BITS})"
    return (
        f"SELECT (SELECT count(*) FROM items AS i WHERE i.experience BETWEEN {base} AND {base} + {keys.LAST}"
        f" AND {where}) - (SELECT count(*) - count(DISTINCT i.id) FROM {SEVERAL} WHERE {where})"
    )


def task_ids(connection: sqlite3.Connection, state: State) -> set[str]:
    """Tasks that have an experience."""
    query = f"SELECT DISTINCT e.task_id FROM experiences AS e WHERE e.scope_id = :scope AND {live('e')}"
    return {task_id for (task_id,) in connection.execute(query, state.having())}


def digest(connection: sqlite3.Connection, state: State) -> str:
    """The head of the hash chain after the last entry."""
    query = "SELECT hash FROM journal WHERE key > :base AND key <= :upto ORDER BY key DESC LIMIT 1"
    found = connection.execute(query, state.having()).fetchone()
    return found[0].hex() if found else ""


def _one(connection: sqlite3.Connection, state: State, where: str, given: dict[str, object]) -> Experience | None:
    """The newest that is meant."""
    row = connection.execute(
        f"{_EXPERIENCE} WHERE {where} AND {live('e')} ORDER BY e.key DESC LIMIT 1", given
    ).fetchone()
    if row is None:
        return None
    items = items_of(connection, state, [row[0]])
    shown = _shown(connection, state, [row[0]])
    return _made(row, state.scope, items.get(row[0], ()), shown.get(row[0], ()))


def _made(row: Row, scope: Scope, items: Iterable[MemoryItem], shown: Iterable[str]) -> Experience:
    key, id, task_id, instruction, run_id, origin, note, created_at, payload = row
    try:
        told = journal.payload(decompressed(payload, task_id, instruction))
        if (told.task.id, told.task.instruction) != (task_id, instruction):
            raise ValueError("the task's id or instruction is not the one that was stored")
        return Experience(
            id=id,
            scope=scope.name,
            seq=keys.number(key),
            task=told.task,
            trajectories=told.trajectories,
            verdicts=told.verdicts,
            items=tuple(items),
            run_id=run_id,
            note=note,
            origin=origin,
            shown=tuple(shown),
            created_at=created_at,
        )
    except (zlib.error, ValueError, TypeError) as exc:  # pydantic's errors are ValueErrors
        raise rows.damaged(scope.location, f"scope {scope.name!r}: experience {id}", exc) from exc


def _shown(connection: sqlite3.Connection, state: State, experiences: Sequence[int]) -> dict[int, list[str]]:
    """Ids of items by the key of the experience whose agent had been given them."""
    of: dict[int, list[str]] = {}
    for experience, item_id in connection.execute(
        "SELECT x.experience, x.item_id FROM json_each(:given) AS given CROSS JOIN exposures AS x"
        " ON x.experience = given.value ORDER BY x.experience, x.position",
        state.having(experiences),
    ):
        of.setdefault(experience, []).append(item_id)
    return of
