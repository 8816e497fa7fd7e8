"""Vectors, held against the rows that they stand for: which are damaged, which are missing, how one is put there."""

from __future__ import annotations

import sqlite3
import zlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from rb_dspy.bank.parts import NewItem, Unit, item_text, task_key
from rb_dspy.bank.sqlite import rows
from rb_dspy.bank.vectors import unpacked

_VECTOR = "v.key, v.ended, v.task, v.success, v.crc, v.data"

_LIVES = "EXISTS (SELECT 1 FROM items AS i WHERE i.experience = o.key AND i.ended IS NULL)"
"""Whether an experience has an item to show."""

# A row of an item has a vector, and so has an experience that gave items.
_ROWS = {
    "item": (
        f"SELECT o.key, o.id, o.ended, o.ended IS NULL, e.task_id, e.polarity, {_VECTOR} FROM items AS o"
        " JOIN experiences AS e ON e.key = o.experience LEFT JOIN item_vectors AS v ON v.key = o.key"
        " WHERE o.key > ? AND o.key <= ? ORDER BY o.key"
    ),
    "experience": (
        f"SELECT o.key, o.id, o.ended, {_LIVES}, o.task_id, o.polarity, {_VECTOR} FROM experiences AS o"
        " LEFT JOIN experience_vectors AS v ON v.key = o.key WHERE o.key > ? AND o.key <= ?"
        " AND (v.key IS NOT NULL OR EXISTS (SELECT 1 FROM items AS i WHERE i.experience = o.key)) ORDER BY o.key"
    ),
}

_TEXTS = {
    "item": (
        "SELECT o.key, e.task_id, e.polarity, o.digest, o.title, o.description, o.content FROM items AS o"
        " JOIN experiences AS e ON e.key = o.experience WHERE o.key = ?"
    ),
    "experience": ("SELECT key, task_id, polarity, template, instruction, payload FROM experiences AS o WHERE key = ?"),
}

_ENDED = {
    "item": "o.ended",
    "experience": (  # with the last of its items
        f"CASE WHEN {_LIVES} THEN NULL ELSE ifnull((SELECT max(i.ended) FROM items AS i WHERE i.experience = o.key),"
        " o.ended) END"
    ),
}
"""The number at which the vector of a row ``o`` ended."""


class Fault(NamedTuple):
    """A vector that is damaged or missing."""

    key: int
    id: object
    what: str
    missing: bool
    lives: bool
    """Whether it is missed now, and not only in states of before."""
    filed: bool
    """Whether it is known which task it belongs to."""


class Made(NamedTuple):
    """What a vector is made of."""

    key: int
    text: str
    task: int
    success: bool


def faults(connection: sqlite3.Connection, unit: Unit, size: int, *, after: int, last: int) -> Iterator[Fault]:
    """One for each, in order of keys; ``size``: the dimension that the vectors should have."""
    for key, id, ended, lives, task_id, polarity, place, until, *stored in connection.execute(
        _ROWS[unit], (after, last)
    ):
        what, missing = None, place is None
        if missing:
            what = "is missing"
        elif (what := _damage(task_id, polarity, size, *stored)) is None:
            missing = unit == "experience" and bool(lives) and ended is None and until is not None
            what = "has ended" if missing else None
        if what is not None:
            yield Fault(key, id, what, missing, bool(lives), isinstance(task_id, str))


def _damage(
    task_id: object, polarity: object, size: int, task: object, success: object, crc: object, data: object
) -> str | None:
    if not isinstance(data, bytes):
        return f"is {type(data).__name__}, expected bytes"
    if len(data) != 2 * size:
        return f"has {len(data)} bytes, expected {2 * size}"
    if zlib.crc32(data) != crc or not unpacked(data, size)[1].all():
        return "is not the one that was stored"
    if not isinstance(task_id, str):
        return "stands for an experience whose task is damaged"
    if (task, success) != (task_key(task_id), polarity == "success"):
        return "is filed under another task or verdict"
    return None


def texts(connection: sqlite3.Connection, unit: Unit, keys: Sequence[int]) -> list[Made]:
    """Of those rows whose texts are sound: nothing is to be found by another text."""
    made = []
    for key in keys:
        for row in connection.execute(_TEXTS[unit], (key,)).fetchall():
            try:
                made.append(_made(unit, *row))
            except (zlib.error, ValueError, TypeError):  # ``check_rows`` tells of it
                continue
    return made


def _made(unit: Unit, key: int, task_id: Any, polarity: object, *told: Any) -> Made:
    if not isinstance(task_id, str):
        raise TypeError("its experience's task is damaged")
    if unit == "item":
        digest, *lines = told
        if not rows.text_is_sound(digest, *lines):
            raise ValueError("its text is not the one that was stored")
        text = item_text(NewItem("", digest, *lines))
    else:
        template, text, payload = told
        rows.check_task(task_id, template, text, payload)
    return Made(key, text, task_key(task_id), polarity == "success")


def put(connection: sqlite3.Connection, unit: Unit, made: Sequence[tuple[Made, bytes]]) -> None:
    """Put vectors in the place of what is there for these rows."""
    table = rows.vectors_table(unit)
    connection.executemany(
        f"INSERT OR REPLACE INTO {table} (key, ended, task, success, crc, data)"
        f" SELECT o.key, {_ENDED[unit]}, ?, ?, ?, ? FROM {unit}s AS o WHERE o.key = ?",
        [(row.task, row.success, *rows.checked(data), row.key) for row, data in made],
    )
