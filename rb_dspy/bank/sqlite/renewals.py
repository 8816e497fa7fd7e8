"""How often vectors of rows that were there were made again: an index that was read before that may lack some."""

from __future__ import annotations

import sqlite3


def renewals(connection: sqlite3.Connection) -> int:
    """The number; it only grows."""
    (found,) = connection.execute("SELECT CAST(max(value) AS INTEGER) FROM meta WHERE key = 'renewals'").fetchone()
    return found or 0


def count(connection: sqlite3.Connection) -> None:
    """Once more, in the transaction that puts them in place."""
    connection.execute(
        "INSERT INTO meta VALUES ('renewals', '1') ON CONFLICT (key) DO UPDATE SET value = CAST(value + 1 AS TEXT)"
    )
