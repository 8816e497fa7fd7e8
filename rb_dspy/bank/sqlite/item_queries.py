"""Items as they are read: put together from all of their live rows, each text held against its digest."""

from __future__ import annotations

import json
import logging
import sqlite3
from collections.abc import Collection, Iterable, Sequence
from typing import get_args

from rb_dspy.bank.admission import item_id
from rb_dspy.bank.parts import Giving, Match, NewItem, Unit
from rb_dspy.bank.sqlite import keys, rows
from rb_dspy.bank.sqlite.ids import another, listed, named
from rb_dspy.bank.sqlite.scoped import Row, Scope, State, live
from rb_dspy.schema import MemoryItem, Polarity, Provenance

_log = logging.getLogger("rb_dspy.bank")

_ITEM = (
    "o.id, o.key, o.digest, o.title, o.description, o.content, p.id, p.task_id, p.run_id, p.distiller, p.origin,"
    " p.polarity"
)
"""A row of an item and the experience that gave it, which has what there is to know about its provenance."""

_SHARED = f"o.scope_id IS NOT :scope OR {another('o', live('s'))}"
"""Whether an item may have another row, or is damaged: then it is not found by its id."""

_MATCHES = {
    "item": (
        f"SELECT o.key, p.instruction, {_SHARED}, {_ITEM} FROM json_each(:given) AS given"
        f" CROSS JOIN items AS o ON o.key = given.value AND {live('o')} CROSS JOIN experiences AS p"
        " ON p.key = o.experience"
    ),
    "experience": (
        f"SELECT v.key, p.instruction, {_SHARED}, {_ITEM} FROM json_each(:given) AS given"
        f" CROSS JOIN experience_vectors AS v ON v.key = given.value AND {live('v')} CROSS JOIN experiences AS p"
        f" ON p.key = v.key LEFT JOIN items AS o ON o.experience = p.key AND {live('o')}"
    ),
}

_GIVINGS = {
    "item": f"items AS o CROSS JOIN experiences AS p ON p.key = o.experience WHERE {named('o')}",
    "experience": f"experiences AS p CROSS JOIN items AS o ON o.experience = p.key WHERE {named('p')}",
}
"""Where the rows of an item are, and those of an experience."""


_WITH_TEXT = (
    f"SELECT i.key, i.digest, i.id FROM {listed('items', 'i')} AND {live('i')}"
    " UNION ALL SELECT i.key, i.digest, i.id FROM json_each(:digests) AS given CROSS JOIN items AS i"
    f" ON i.scope_id = :scope AND i.digest = given.value AND i.apart = 1 AND {live('i')}"
)
"""By the id that goes with a text, and of those with another id by the text's digest."""


def matches(connection: sqlite3.Connection, state: State, unit: Unit, seqs: Sequence[int]) -> dict[int, Match]:
    """What to show for rows that are live; one of whose items none can be read is left out."""
    base = state.scope.base
    found = connection.execute(_MATCHES[unit], state.having([base + seq for seq in seqs])).fetchall()
    found.sort(key=lambda row: row[4] or 0)
    # Most items have one row, which was read just now. The others are read by their ids, each once, however many of its
    # rows are asked for: every row of a shared one would read all the others again. So are ids that are damaged.
    whole: dict[int, Row] = {row[4]: row[3:] for row in found if not row[2] and isinstance(row[3], str)}
    if shared := {row[3] for row in found if row[4] is not None and row[4] not in whole}:
        whole |= _rows(connection, state, shared)
    made = _made(whole, state.scope)
    shown: dict[int, dict[str, MemoryItem]] = {}
    for key, _, _, id, *_ in found:
        of = shown.setdefault(key, {})
        if id in made:
            of[id] = made[id]
    return {
        keys.number(row[0]): Match(row[9], row[10], row[1], tuple(shown[row[0]].values()))
        for row in found
        if shown[row[0]] or row[4] is None
    }


def item(connection: sqlite3.Connection, state: State, id: str) -> MemoryItem | None:
    """Raises ``CorruptBank`` where it is damaged."""
    found = _rows(connection, state, [id])
    if not found:
        return None
    made = _made(found, state.scope)
    if id not in made:
        raise rows.damaged(state.scope.location, f"item {id}")
    return made[id]


def item_rows(connection: sqlite3.Connection, state: State, unit: Unit, id: str) -> list[Giving]:
    """See ``BankStore``. Raises ``CorruptBank`` where it is an item and all of its rows are damaged."""
    found = connection.execute(
        f"SELECT o.experience, p.instruction, {_ITEM} FROM {_GIVINGS[unit]} AND {live('o')}", state.named(id)
    ).fetchall()
    made = [giving for row in sorted(found, key=lambda row: row[3]) if (giving := _giving(row, state.scope))]
    if found and not made and unit == "item":
        raise rows.damaged(state.scope.location, f"item {id}")
    return made


def items_with(connection: sqlite3.Connection, state: State, digests: Iterable[str]) -> dict[str, str]:
    """Ids of items by the digests of their texts; of several with one, the earliest."""
    wanted = {digest: item_id(state.scope.name, digest) for digest in digests}
    given = state.listed(wanted.values(), digests=json.dumps(list(wanted)))
    found = connection.execute(_WITH_TEXT, given).fetchall()
    found.sort(reverse=True)
    return {digest: id for _, digest, id in found if digest in wanted}


def items(connection: sqlite3.Connection, state: State) -> list[MemoryItem]:
    """All items in order."""
    found = connection.execute(
        f"SELECT {_ITEM} FROM items AS o JOIN experiences AS p ON p.key = o.experience"
        f" WHERE o.key > :base AND {live('o')} ORDER BY o.key",
        state.having(),
    )
    return list(_together(found, state.scope).values())


def items_of(
    connection: sqlite3.Connection, state: State, experiences: Sequence[int]
) -> dict[int, tuple[MemoryItem, ...]]:
    """Items by the key of each experience that gave them, in the order of their rows there."""
    found = connection.execute(
        "SELECT i.experience, i.id FROM json_each(:given) AS given CROSS JOIN items AS i"
        f" ON i.experience = given.value AND {live('i')} ORDER BY i.key",
        state.having(experiences),
    ).fetchall()
    made = _made(_rows(connection, state, {id for _, id in found}), state.scope)
    of: dict[int, tuple[MemoryItem, ...]] = {}
    for experience, id in found:
        if id in made:
            of[experience] = (*of.get(experience, ()), made[id])
    return of


def _giving(row: Row, scope: Scope) -> Giving | None:
    """None for a row that is damaged, with a warning."""
    experience, instruction, id, key, digest, *texts = row[:8]
    *source, polarity = row[8:]
    try:
        if not (isinstance(id, str) and isinstance(instruction, str) and polarity in get_args(Polarity)):
            raise ValueError("its id, its task's instruction or its polarity is not what was stored")
        if not rows.text_is_sound(digest, *texts):
            raise ValueError("its text is not the one that was stored")
        provenance = rows.provenance(*source)
    except (ValueError, TypeError) as exc:  # as in ``_together``
        _warn(id, key, scope, exc)
        return None
    given = NewItem(id, digest, *texts)
    return Giving(keys.number(key), given, polarity, provenance, keys.number(experience), instruction)


def _rows(connection: sqlite3.Connection, state: State, ids: Collection[str]) -> dict[int, Row]:
    """All live rows of some items, by key."""
    found = connection.execute(
        f"SELECT {_ITEM} FROM {listed('items', 'o')} AND {live('o')} CROSS JOIN experiences AS p"
        " ON p.key = o.experience",
        state.listed(ids),
    )
    return {row[1]: row for row in found}


def _made(found: dict[int, Row], scope: Scope) -> dict[str, MemoryItem]:
    # Sorted here: asked for an order, SQLite may read a whole scope in that order instead of looking a few rows up.
    return _together((found[key] for key in sorted(found)), scope)


def _together(found: Iterable[Row], scope: Scope) -> dict[str, MemoryItem]:
    """Items by id, from all of their live rows in order; a row that is damaged is left out, with a warning."""
    made: dict[str, MemoryItem] = {}
    again: dict[str, list[Provenance]] = {}
    for id, key, digest, title, description, content, *source, polarity in found:
        try:
            provenance = rows.provenance(*source)
            if not rows.text_is_sound(digest, title, description, content):
                raise ValueError("its text is not the one that was stored")
            if id in made:
                again.setdefault(id, [made[id].provenance]).append(provenance)
            else:
                texts = (title, description, content)
                made[id] = rows.item(id, scope.name, keys.number(key), texts, polarity, (provenance,))
        except (ValueError, TypeError) as exc:  # pydantic's errors are ValueErrors; a text that became a number, bytes
            _warn(id, key, scope, exc)
    for id, provenances in again.items():
        made[id] = made[id].model_copy(update={"provenances": tuple(provenances)})
    return made


def _warn(id: str, key: int, scope: Scope, exc: Exception) -> None:
    what = f"scope {scope.name!r}: item {id}, number {keys.number(key)},"
    _log.warning("%s", rows.damaged(scope.location, what, exc))
