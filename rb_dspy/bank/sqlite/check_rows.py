"""Rows that cannot be read, or are not what they were when they were stored."""

from __future__ import annotations

import sqlite3
import zlib
from collections.abc import Iterator

from rb_dspy.bank import journal
from rb_dspy.bank.parts import UNITS, Finding, Unit, task_key
from rb_dspy.bank.sqlite import ids, keys, rows
from rb_dspy.bank.sqlite.compression import decompressed
from rb_dspy.bank.sqlite.scoped import Scope
from rb_dspy.bank.vectors import unpacked
from rb_dspy.commands import bank_options
from rb_dspy.errors import CorruptBank
from rb_dspy.text import visible
from rb_dspy.wording import first_line

_FROM_A_COPY = "it is left out of what is read; restore the file from a copy, or delete it"

_LOST = "is not found by its id"


def damaged_rows(connection: sqlite3.Connection, scope: Scope) -> Iterator[Finding]:
    """One finding for each."""
    yield from _experiences(connection, scope)
    yield from _items(connection, scope)
    for unit in UNITS:
        yield from _vectors(connection, scope, unit)
    yield from _ingestions(connection, scope)


def _experiences(connection: sqlite3.Connection, scope: Scope) -> Iterator[Finding]:
    for key, id, task_id, template, instruction, payload in connection.execute(
        "SELECT key, id, task_id, template, instruction, payload FROM experiences WHERE key > ? AND key <= ?"
        " ORDER BY key",
        (scope.base, scope.base + keys.LAST),
    ):
        try:
            task = journal.payload(decompressed(payload, task_id, instruction)).task
            given = task.id, None if task.template is None else visible(task.template), task.instruction
            if given != (task_id, template, instruction):
                raise ValueError("the columns and the payload name another task")
        except (zlib.error, ValueError, TypeError) as exc:
            yield _row(
                f"scope {scope.name!r}: experience {id}", f"its task and rollouts cannot be read: {first_line(exc)}"
            )
        if not _is_found(connection, scope, id, key):
            yield _row(f"scope {scope.name!r}: experience {id}", _LOST)


def _items(connection: sqlite3.Connection, scope: Scope) -> Iterator[Finding]:
    for key, id, again, digest, *texts in connection.execute(
        "SELECT key, id, again, digest, title, description, content FROM items WHERE key > ? AND key <= ? ORDER BY key",
        (scope.base, scope.base + keys.LAST),
    ):
        try:
            sound = rows.text_is_sound(digest, *texts)
        except TypeError:
            sound = False
        if not sound:
            where = f"scope {scope.name!r}: item {id}"
            yield _row(where, f"the text of number {keys.number(key)} is not the one that was stored")
        if not _is_found(connection, scope, id, key) or again not in (None, ids.of_id(scope.id, id)):
            yield _row(f"scope {scope.name!r}: item {id}", f"number {keys.number(key)} {_LOST}")


def _is_found(connection: sqlite3.Connection, scope: Scope, id: object, key: int) -> bool:
    """Whether a row is found by its id."""
    if not isinstance(id, str):
        return False
    # By both, since an item can have very many rows.
    found = connection.execute(
        "SELECT 1 FROM ids WHERE id_key = ?1 AND key = ?2 UNION ALL"
        " SELECT 1 FROM recent_ids WHERE id_key = ?1 AND key = ?2",
        (ids.of_id(scope.id, id), key),
    )
    return found.fetchone() is not None


def _vectors(connection: sqlite3.Connection, scope: Scope, unit: Unit) -> Iterator[Finding]:
    table = rows.vectors_table(unit)
    owner = "o.key" if unit == "experience" else "o.experience"
    dimension = connection.execute("SELECT value FROM meta WHERE key = 'dimension'").fetchone()
    try:
        size = int(dimension[0]) if dimension else 0
    except (ValueError, TypeError):
        yield _row("the bank's embedder", "its dimension cannot be read, so that no vector can")
        return
    for key, id, task_id, polarity, task, success, crc, data in connection.execute(
        f"SELECT v.key, o.id, e.task_id, e.polarity, v.task, v.success, v.crc, v.data FROM {table} AS v"
        f" JOIN {unit}s AS o ON o.key = v.key JOIN experiences AS e ON e.key = {owner}"
        " WHERE v.key > ? AND v.key <= ? ORDER BY v.key",
        (scope.base, scope.base + keys.LAST),
    ):
        if not isinstance(data, bytes):
            what = f"is {type(data).__name__}, expected bytes"
        elif len(data) != 2 * size:
            what = f"has {len(data)} bytes, expected {2 * size}"
        elif zlib.crc32(data) != crc or not unpacked(data, size)[1].all():
            what = "is not the one that was stored"
        elif not isinstance(task_id, str):
            what = "stands for an experience whose task is damaged"
        elif (task, success) != (task_key(task_id), polarity == "success"):
            what = "is filed under another task or verdict"
        else:
            continue
        yield Finding(
            severity="error",
            kind="vector",
            where=f"scope {scope.name!r}: {unit} {id}",
            what=f"the vector of number {keys.number(key)} {what}",
            remedy=f"run rb-dspy bank reindex{bank_options(scope.location, scope.name)}, which makes all vectors again",
        )


def _ingestions(connection: sqlite3.Connection, scope: Scope) -> Iterator[Finding]:
    for id, payload in connection.execute("SELECT id, payload FROM ingestions WHERE scope_id = ?", (scope.id,)):
        try:
            rows.ingestion(payload, id, scope.location)
        except CorruptBank as exc:
            yield _row(f"scope {scope.name!r}: ingestion {id}", f"its rollouts cannot be read: {first_line(exc)}")


def _row(where: str, what: str) -> Finding:
    return Finding(severity="error", kind="row", where=where, what=what, remedy=_FROM_A_COPY)
