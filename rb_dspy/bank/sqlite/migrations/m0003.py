"""The third migration: items are found by their text through their ids, where these are hashes of it.

An index over all texts costs an append a page for each item, since hashes come in no order. It is needed for those rows
only whose id is not that of their text: items that were edited, and those whose usual id was taken by such a one.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3

from sqlalchemy import Connection

from rb_dspy.bank.sqlite import failpoints

_TABLES = (
    "ALTER TABLE items RENAME TO old_items",
    "DROP INDEX items_of_id",
    "DROP INDEX items_of_text",
    "DROP INDEX items_of_experience",
    # What is checked when a transaction ends needs no copy of each page that a statement of many rows changes.
    """CREATE TABLE items (
        key INTEGER PRIMARY KEY, scope_id INTEGER NOT NULL, id TEXT NOT NULL, ended INTEGER,
        experience INTEGER NOT NULL REFERENCES experiences (key) DEFERRABLE INITIALLY DEFERRED, digest TEXT NOT NULL,
        title TEXT NOT NULL, description TEXT NOT NULL, content TEXT NOT NULL, apart INTEGER)""",
    """INSERT INTO items SELECT key, scope_id, id, ended, experience, digest, title, description, content, NULL
        FROM old_items ORDER BY key""",
    "DROP TABLE old_items",
)

_INDEXES = (
    "CREATE INDEX items_of_id ON items (scope_id, id, ended)",
    "CREATE INDEX items_of_text ON items (scope_id, digest, ended) WHERE apart = 1",
    "CREATE INDEX items_of_experience ON items (experience, ended)",
)


def apply(connection: Connection) -> None:
    """Make the table of items anew, each row with whether its id is another than that of its text."""
    database = connection.connection.driver_connection
    if not isinstance(database, sqlite3.Connection):
        raise TypeError(f"{database!r}: expected a connection of sqlite3")
    for statement in _TABLES:
        database.execute(statement)
    failpoints.reached("mid-migration")
    strict = database.text_factory
    database.text_factory = lambda data: data.decode("utf-8", "replace")
    found = database.execute(
        "SELECT i.key, s.name, i.id, i.digest FROM items AS i JOIN scopes AS s ON s.id = i.scope_id"
    )
    apart = [(key,) for key, scope, id, digest in found if id != _usual(scope, digest)]
    database.text_factory = strict
    database.executemany("UPDATE items SET apart = 1 WHERE key = ?", apart)
    for statement in _INDEXES:
        database.execute(statement)


def _usual(scope: object, digest: object) -> str:
    """``admission.item_id`` of a scope, as it was; empty where a cell is damaged."""
    if not (isinstance(scope, str) and isinstance(digest, str)):
        return ""
    said = json.dumps(["item", scope, digest], separators=(",", ":"))
    return f"m{hashlib.sha256(said.encode('ascii')).hexdigest()[:20]}"
