"""Run a statement on SQLite or PostgreSQL. Its values have names: ``:seq``; ``= ANY(:seqs)`` takes a list."""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import sqlalchemy

Connection = sqlite3.Connection | sqlalchemy.Connection
"""SQLite without SQLAlchemy, which takes longer for a statement than SQLite does; PostgreSQL with its pool."""


def run(connection: Connection, statement: str, values: Mapping[str, Any]) -> list[Any]:
    """Run a statement; returns its rows."""
    if isinstance(connection, sqlite3.Connection):
        lists = {name: json.dumps(value) for name, value in values.items() if isinstance(value, list)}
        return connection.execute(_for_sqlite(statement), {**values, **lists}).fetchall()
    result = connection.execute(_for_postgres(statement), dict(values))
    return list(result) if result.returns_rows else []


def insert(connection: Connection, table: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Insert rows, which have the same columns."""
    if not rows:
        return
    statement = f"INSERT INTO {table} ({', '.join(rows[0])}) VALUES ({', '.join(f':{name}' for name in rows[0])})"
    if isinstance(connection, sqlite3.Connection):
        connection.executemany(statement, rows)
    else:
        connection.execute(_for_postgres(statement), [*rows])


@cache
def _for_sqlite(statement: str) -> str:
    """SQLite has no lists, but reads them from JSON."""
    return re.sub(r"= ANY\((:\w+)\)", r"IN (SELECT value FROM json_each(\1))", statement)


_for_postgres = cache(sqlalchemy.text)
