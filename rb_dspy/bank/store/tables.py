"""The tables of a bank, shared by SQLite and PostgreSQL, and how statements on them are run.

Each scope has one sequence: every experience and every item row has its own number, and a removed row is not deleted
but ``ended`` by a later number. The state at number ``n`` is the rows with ``seq <= n`` and ``ended`` either null or
above ``n``; snapshots, forks, history and rollback use this.
"""

from __future__ import annotations

import importlib.resources
import json
import re
import sqlite3
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import sqlalchemy

from rb_dspy.bank.store.base import Unit

SCHEMA = 2
"""Version of these tables, in ``meta``."""

_DEFINITIONS = importlib.resources.files(__package__).joinpath("schema.sql").read_text("utf-8").strip()

NAMES = tuple(re.findall(r"CREATE TABLE (\w+)", _DEFINITIONS))
"""The names of the tables."""

TEXTS: dict[Unit, tuple[str, ...]] = {"experience": ("instruction",), "item": ("title", "description", "content")}
"""The columns of a unit's texts, which are searched by words. The table of a unit is ``{unit}s``."""


def definitions(**types: str) -> list[str]:
    """The statements that create the tables, with a database's names of the types ``serial``, ``bytes``, ``vector``,
    ``real``.
    """
    return _DEFINITIONS.format(**types).split(";\n")


_EMBEDDED = {"case": (0, 1), "workflow": (0, 1), "bullet": (2,)}
"""Kind of an item -> which of title, description and content are embedded; all, if it is not here."""


def embedded_text(kind: str, *texts: str) -> str:
    """The text by which an item is embedded."""
    return "\n".join(texts[place] for place in _EMBEDDED.get(kind, (0, 1, 2)))


Connection = sqlite3.Connection | sqlalchemy.Connection
"""SQLite without SQLAlchemy, which takes longer for a statement than SQLite does; PostgreSQL with its pool."""


def run(connection: Connection, statement: str, values: Mapping[str, Any]) -> list[Any]:
    """Run a statement; returns its rows. Its values have names: ``:seq``; ``= ANY(:seqs)`` takes a list."""
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
