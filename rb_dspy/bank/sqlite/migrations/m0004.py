"""The fourth migration: rows are found by integers in tables of their own, made of their scope and a hash of their id.

Ids are hashes, so that their index gets its entries in no order, and a page of a long append changes nearly all of its
pages (see ``ids``). The integer is not unique; that an experience's id is, is seen to when it is stored.
"""

from __future__ import annotations

import sqlite3
import zlib

from sqlalchemy import Connection

from rb_dspy.bank.sqlite import failpoints

_APART = (
    # What an older version that has the file open would write could not be found by its id: it reads this column before
    # it writes, and now fails, having changed nothing.
    "ALTER TABLE scopes RENAME COLUMN head TO chain",
    # First those that refer to others.
    "ALTER TABLE exposures RENAME TO old_exposures",
    "ALTER TABLE items RENAME TO old_items",
    "ALTER TABLE experiences RENAME TO old_experiences",
    "DROP INDEX exposures_of_item",
    "DROP INDEX items_of_id",
    "DROP INDEX items_of_text",
    "DROP INDEX items_of_experience",
    "DROP INDEX experiences_of_task",
    """CREATE TABLE experiences (
        key INTEGER PRIMARY KEY, scope_id INTEGER NOT NULL REFERENCES scopes (id), id TEXT NOT NULL, ended INTEGER,
        task_id TEXT NOT NULL, template TEXT, instruction TEXT NOT NULL, label TEXT NOT NULL, polarity TEXT NOT NULL,
        run_id TEXT NOT NULL, origin TEXT NOT NULL, distiller TEXT NOT NULL, note TEXT NOT NULL,
        created_at TEXT NOT NULL, payload BLOB NOT NULL)""",
    # ``again``: for a row that is not the first of its item, what it is found by.
    """CREATE TABLE items (
        key INTEGER PRIMARY KEY, scope_id INTEGER NOT NULL, id TEXT NOT NULL, ended INTEGER,
        experience INTEGER NOT NULL REFERENCES experiences (key) DEFERRABLE INITIALLY DEFERRED, digest TEXT NOT NULL,
        title TEXT NOT NULL, description TEXT NOT NULL, content TEXT NOT NULL, apart INTEGER, again INTEGER)""",
    """CREATE TABLE exposures (
        experience INTEGER NOT NULL REFERENCES experiences (key), position INTEGER NOT NULL, item_id TEXT NOT NULL,
        PRIMARY KEY (experience, position)) WITHOUT ROWID""",
    *(
        f"CREATE TABLE {name} (id_key INTEGER NOT NULL, key INTEGER NOT NULL, PRIMARY KEY (id_key, key)) WITHOUT ROWID"
        for name in ("ids", "recent_ids")
    ),
)

_MOVED = (
    "INSERT INTO experiences SELECT * FROM old_experiences ORDER BY key",
    "INSERT INTO items SELECT *, NULL FROM old_items ORDER BY key",
    "INSERT INTO exposures SELECT * FROM old_exposures ORDER BY experience, position",
    "DROP TABLE old_exposures",
    "DROP TABLE old_items",
    "DROP TABLE old_experiences",
    """INSERT INTO ids SELECT id_key(scope_id, CAST(id AS BLOB)), key FROM experiences
        UNION ALL SELECT id_key(scope_id, CAST(id AS BLOB)), key FROM items ORDER BY 1, 2""",
    """UPDATE items SET again = id_key(scope_id, CAST(id AS BLOB)) WHERE key IN (SELECT i.key
        FROM (SELECT id_key FROM ids GROUP BY id_key HAVING count(*) > 1) AS several
        CROSS JOIN ids AS f ON f.id_key = several.id_key CROSS JOIN items AS i ON i.key = f.key WHERE EXISTS (SELECT 1
        FROM ids AS b CROSS JOIN items AS s ON s.key = b.key WHERE b.id_key = f.id_key AND b.key < f.key
        AND s.id = i.id))""",
    "CREATE INDEX experiences_of_task ON experiences (scope_id, task_id, ended)",
    "CREATE INDEX items_of_text ON items (scope_id, digest, ended) WHERE apart = 1",
    "CREATE INDEX items_of_experience ON items (experience, ended)",
    "CREATE INDEX items_again ON items (scope_id, id, again) WHERE again IS NOT NULL",
    "CREATE INDEX exposures_of_item ON exposures (item_id, experience)",
)


def apply(connection: Connection) -> None:
    """Make the tables of experiences and items anew, and those that they are found in by their ids."""
    database = connection.connection.driver_connection
    if not isinstance(database, sqlite3.Connection):
        raise TypeError(f"{database!r}: expected a connection of sqlite3")
    for statement in _APART:
        database.execute(statement)
    failpoints.reached("mid-migration")
    database.create_function("id_key", 2, _id_key, deterministic=True)
    for statement in _MOVED:
        database.execute(statement)
    database.create_function("id_key", 2, None)


def _id_key(scope_id: object, id: object) -> int:
    """``ids.of_id``, as it was; 0 where a cell is damaged."""
    if not (isinstance(scope_id, int) and 0 <= scope_id < 1 << 31 and isinstance(id, bytes)):
        return 0
    return (scope_id << 32) + zlib.crc32(id)
