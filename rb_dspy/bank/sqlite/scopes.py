"""The scopes of a file, by name and number."""

from __future__ import annotations

import logging
import sqlite3

import sqlalchemy as sa

from rb_dspy.bank.sqlite import tables
from rb_dspy.errors import UnknownScope

_log = logging.getLogger("rb_dspy.bank")


def scopes(connection: sa.Connection) -> list[str]:
    """Their names, sorted; damaged ones are left out."""
    named = []
    for id, name in connection.execute(sa.select(tables.scopes.c.id, tables.scopes.c.name)):
        if isinstance(name, str):
            named.append(name)
        else:
            _log.warning("the name of scope number %s is damaged; it is left out. rb-dspy bank doctor says more", id)
    return sorted(named)


def add_scope(connection: sqlite3.Connection, scope: str) -> None:
    """Make a scope, unless it is there."""
    connection.execute("INSERT OR IGNORE INTO scopes (name) VALUES (?)", (scope,))


def number_of(connection: sa.Connection, scope: str, location: str) -> int:
    """The number of a scope. Raises ``UnknownScope``."""
    found = connection.scalar(sa.select(tables.scopes.c.id).where(tables.scopes.c.name == scope))
    if found is None:
        raise UnknownScope(f"{location}: no scope {scope!r}")
    return int(found)
