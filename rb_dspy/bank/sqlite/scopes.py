"""The scopes of a file, by name and number."""

from __future__ import annotations

import logging
import sqlite3

from rb_dspy.bank.commands import bank_options
from rb_dspy.bank.sqlite import keys

_HIGHEST = ", ".join(
    [
        "(SELECT ifnull(max(id), 0) FROM scopes)",
        *(f"(SELECT ifnull(max(key), 0) >> {keys.BITS} FROM {table})" for table in ("experiences", "items", "journal")),
        *(f"(SELECT ifnull(max(scope_id), 0) FROM {table})" for table in ("pending_rollouts", "snapshots")),
    ]
)

_log = logging.getLogger("rb_dspy.bank")


def scopes(connection: sqlite3.Connection, location: str) -> list[str]:
    """Their names, sorted; damaged ones are left out."""
    named = []
    for id, name in connection.execute("SELECT id, name FROM scopes"):
        if isinstance(name, str):
            named.append(name)
        else:
            more = f"rb-dspy bank doctor{bank_options(location)} says more"
            _log.warning("%s: the name of scope number %s is damaged; it is left out. %s", location, id, more)
    return sorted(named)


def add_scope(connection: sqlite3.Connection, scope: str) -> None:
    """Make a scope, unless it is there."""
    # Above all numbers that rows have: those of a scope whose name was lost are not this one's.
    connection.execute(
        f"INSERT INTO scopes (id, name) SELECT 1 + max({_HIGHEST}), :name"
        " WHERE NOT EXISTS (SELECT 1 FROM scopes WHERE name = :name)",
        {"name": scope},
    )
