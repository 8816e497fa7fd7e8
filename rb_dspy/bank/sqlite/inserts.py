"""Rows of an append that wait to be inserted: many with one statement.

Between any two steps of a statement the thread that writes lets go of Python's lock, and may have to wait for it while
others compute. A statement of many rows is one step.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import chain

Row = tuple[object, ...]

_SIZES = (512, 128, 32)
"""Rows of one statement; what is left is fewer than the last of these. Each size is parsed once and kept."""

_COLUMNS = {
    "experiences": (
        *("key", "scope_id", "id", "task_id", "template", "instruction", "label", "polarity", "run_id", "origin"),
        *("distiller", "note", "created_at", "payload"),
    ),
    "items": ("key", "scope_id", "id", "experience", "digest", "title", "description", "content", "apart"),
    "experience_vectors": ("key", "task", "success", "crc", "data"),
    "item_vectors": ("key", "task", "success", "crc", "data"),
    "exposures": ("experience", "position", "item_id"),
    "journal": ("key", "kind", "hash"),
}
"""Tables, those that others refer to first."""


class Rows:
    """By table; a row has the values of the columns above."""

    def __init__(self) -> None:
        self.experiences: list[Row] = []
        self.items: list[Row] = []
        self.experience_vectors: list[Row] = []
        self.item_vectors: list[Row] = []
        self.exposures: list[Row] = []
        self.journal: list[Row] = []

    def insert(self, connection: sqlite3.Connection) -> None:
        """Insert them all, inside the caller's transaction, which cannot go on where this raises."""
        for table in _COLUMNS:
            for page in _pages(getattr(self, table)):
                connection.execute(_statement(table, len(page)), tuple(chain.from_iterable(page)))


def _pages(rows: list[Row]) -> Iterator[Sequence[Row]]:
    done = 0
    for size in _SIZES:
        while len(rows) - done >= size:
            yield rows[done : done + size]
            done += size
    if done < len(rows):
        yield rows[done:]


@cache
def _statement(table: str, rows: int) -> str:
    columns = _COLUMNS[table]
    values = f"({', '.join('?' * len(columns))})"
    # FAIL: what was inserted before an error stays, as far as SQLite is concerned, which would else keep a copy of each
    # page that the statement changes. The transaction is rolled back anyway.
    return f"INSERT OR FAIL INTO {table} ({', '.join(columns)}) VALUES {', '.join([values] * rows)}"
