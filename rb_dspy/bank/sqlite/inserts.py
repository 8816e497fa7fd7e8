"""Rows of an append that wait to be inserted: many with one statement.

Between any two steps of a statement the thread that writes lets go of Python's lock, and may have to wait for it while
others compute. A statement of many rows is one step.

Values are ints, floats and texts where they can be. For any other, also for bytes, None and bool, ``sqlite3`` looks for
an adapter first, which takes three times as long as binding it. (To copy bytes into a bytearray costs what it saves.)
"""

from __future__ import annotations

import sqlite3
from functools import cache

_SIZES = (3072, 1024, 256, 64)
"""Rows of one statement; what is left is fewer than the last of these. Each size is parsed once and kept."""

_VALUES = 32_766
"""Values of one statement: SQLite takes no more, unless it was built to, as Debian's was."""

_COLUMNS = {
    "experiences": (
        *("key", "scope_id", "id", "task_id", "template", "instruction", "label", "polarity", "run_id", "origin"),
        *("distiller", "note", "created_at", "payload"),
    ),
    "items": ("key", "scope_id", "id", "experience", "digest", "title", "description", "content", "apart", "again"),
    "experience_vectors": ("key", "task", "success", "crc", "data"),
    "item_vectors": ("key", "task", "success", "crc", "data"),
    "exposures": ("experience", "position", "item_id"),
    "journal": ("key", "kind", "hash"),
    "recent_ids": ("id_key", "key"),
}
"""Tables, those that others refer to first."""

_GIVEN = {"apart": "nullif(?, 0)", "again": "nullif(?, 0)"}
"""What is stored of a value, where that is not the value: most items have NULL there, which no int is."""


class Rows:
    """By table: the values of the columns above, row after row."""

    def __init__(self) -> None:
        self.experiences: list[object] = []
        self.items: list[object] = []
        self.experience_vectors: list[object] = []
        self.item_vectors: list[object] = []
        self.exposures: list[object] = []
        self.journal: list[object] = []
        self.recent_ids: list[object] = []

    def insert(self, connection: sqlite3.Connection) -> None:
        """Insert them all, inside the caller's transaction, which cannot go on where this raises."""
        for table, columns in _COLUMNS.items():
            values: list[object] = getattr(self, table)
            done, width = 0, len(columns)
            while left := (len(values) - done) // width:
                rows = next((size for size in _SIZES if size <= left and size * width <= _VALUES), left)
                end = done + rows * width
                connection.execute(_statement(table, rows), values[done:end])
                done = end


@cache
def _statement(table: str, rows: int) -> str:
    columns = _COLUMNS[table]
    values = f"({', '.join([_GIVEN.get(column, '?') for column in columns])})"
    # FAIL: what was inserted before an error stays, as far as SQLite is concerned, which would else keep a copy of each
    # page that the statement changes. The transaction is rolled back anyway.
    return f"INSERT OR FAIL INTO {table} ({', '.join(columns)}) VALUES {', '.join([values] * rows)}"
