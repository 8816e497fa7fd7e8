"""Rows that cannot be read, or are not what they were when they were stored."""

from __future__ import annotations

import sqlite3
import zlib
from collections.abc import Collection, Iterator

from rb_dspy.bank.parts import UNITS, Finding, Unit
from rb_dspy.bank.pending import Key, group_id, grouped
from rb_dspy.bank.sqlite import embedders, found_by, ids, keys, pending, rows, vector_rows
from rb_dspy.bank.sqlite.remedies import FROM_A_COPY, OR_WHAT_IS_LEFT, REINDEX
from rb_dspy.bank.sqlite.scoped import Scope
from rb_dspy.text import summary_line

_LEFT_OUT = f"it is left out of what is read; {FROM_A_COPY}, or delete it"

_ENDED = f"it was edited or taken away, and only its history is lost; if you need that, {FROM_A_COPY}"

_AGAIN = f"run {REINDEX}, which makes it again"

_LOST = "is not found by its id, and so not shown, exported, edited or taken away by it"

_INDEX = f"run {REINDEX}, which makes anew what ids are found by"

_COLUMNS = f"run {REINDEX}, which goes by the rollouts; or delete it"

_TEXTS = f"run {REINDEX}, which makes anew what texts are found by"


def damaged_rows(connection: sqlite3.Connection, scope: Scope) -> Iterator[Finding]:
    """One finding for each."""
    unsound: set[int] = set()  # keys of rows of which no vector can be made
    yield from _experiences(connection, scope, unsound)
    yield from _items(connection, scope, unsound)
    for unit in UNITS:
        yield from _vectors(connection, scope, unit, unsound)
    yield from _pending(connection, scope)


def _experiences(connection: sqlite3.Connection, scope: Scope, unsound: set[int]) -> Iterator[Finding]:
    for key, id, ended, task_id, template, instruction, payload in connection.execute(
        "SELECT key, id, ended, task_id, template, instruction, payload FROM experiences WHERE key > ? AND key <= ?"
        " ORDER BY key",
        (scope.base, scope.base + keys.LAST),
    ):
        try:
            rows.check_task(task_id, template, instruction, payload)
        except (zlib.error, ValueError, TypeError) as exc:
            unsound.add(key)
            what = f"its task and rollouts cannot be read: {summary_line(exc)}"
            yield _row(f"scope {scope.name!r}: experience {id}", what, ended=ended is not None)
        yield from _unfound(connection, scope, key, f"experience {id}", id)


def _items(connection: sqlite3.Connection, scope: Scope, unsound: set[int]) -> Iterator[Finding]:
    for key, id, ended, again, apart, digest, *texts in connection.execute(
        "SELECT key, id, ended, again, apart, digest, title, description, content FROM items WHERE key > ? AND key <= ?"
        " ORDER BY key",
        (scope.base, scope.base + keys.LAST),
    ):
        try:
            sound = rows.text_is_sound(digest, *texts)
        except TypeError:
            sound = False
        if not sound:
            unsound.add(key)
            where = f"scope {scope.name!r}: item {id}"
            what = f"the text of number {keys.number(key)} is not the one that was stored"
            yield _row(where, what, ended=ended is not None)
        elif found_by.needs_apart(scope.name, id, digest, apart):
            what = f"number {keys.number(key)} is not found by its text: learned once more it would stand there twice"
            yield _row(f"scope {scope.name!r}: item {id}", what, remedy=_TEXTS)
        yield from _unfound(connection, scope, key, f"item {id}", id, again)


def _unfound(
    connection: sqlite3.Connection, scope: Scope, key: int, what: str, id: object, again: object = None
) -> Iterator[Finding]:
    """At most one: where a row is not found by its id."""
    where, number = f"scope {scope.name!r}: {what}", f"number {keys.number(key)}"
    if not isinstance(id, str) or "\ufffd" in id:  # see ``files.leniently``
        yield _row(where, f"the id of {number} is damaged", remedy=OR_WHAT_IS_LEFT)
    elif again not in (None, ids.of_id(scope.id, id)) or not _is_found(connection, scope, id, key):
        yield _row(where, f"{number} {_LOST}", remedy=_INDEX)


def _is_found(connection: sqlite3.Connection, scope: Scope, id: str, key: int) -> bool:
    # By both, since an item can have very many rows.
    found = connection.execute(
        "SELECT 1 FROM ids WHERE id_key = ?1 AND key = ?2 UNION ALL"
        " SELECT 1 FROM recent_ids WHERE id_key = ?1 AND key = ?2",
        (ids.of_id(scope.id, id), key),
    )
    return found.fetchone() is not None


def _vectors(connection: sqlite3.Connection, scope: Scope, unit: Unit, unsound: Collection[int]) -> Iterator[Finding]:
    size = embedders.told(connection).dimension or 0
    for fault in vector_rows.faults(connection, unit, size, after=scope.base, last=scope.base + keys.LAST):
        what = f"the vector of number {keys.number(fault.key)} {fault.what}"
        if fault.missing and unit == "item":
            what = f"number {keys.number(fault.key)} has no vector and cannot be found"
        elif fault.missing:
            what = "has items and no vector of its own: its items are found one by one only"
        lost = fault.key in unsound or not fault.filed
        mild = (fault.missing and unit == "experience") or (not fault.lives and (fault.missing or lost))
        yield Finding(
            severity="warning" if mild else "error",
            kind="vector",
            where=f"scope {scope.name!r}: {unit} {fault.id}",
            what=what,
            remedy=_AGAIN if not lost else _LEFT_OUT if fault.lives else _ENDED,
        )


def _pending(connection: sqlite3.Connection, scope: Scope) -> Iterator[Finding]:
    groups = {key: group_id(scope.name, group) for group in grouped(_keys(connection, scope)) for key in group}
    for key, what in pending.faults(connection, scope):
        id = groups.get(key, "")
        yield _row(f"scope {scope.name!r}: pending {id}", f"its rollout {key.rollout_id!r} {what}")


def _keys(connection: sqlite3.Connection, scope: Scope) -> list[Key]:
    return [each.key for each in pending.waiting(connection, scope)]


def _row(where: str, what: str, *, ended: bool = False, remedy: str = _LEFT_OUT) -> Finding:
    """``ended``: whether it is no part of the present any more."""
    return Finding(
        severity="warning" if ended else "error",
        kind="row",
        where=where,
        what=what,
        remedy=_ENDED if ended else remedy,
    )
