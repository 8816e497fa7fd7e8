"""Numbered migrations; ``PRAGMA user_version`` is how many a file has had. One that was released never changes."""

from __future__ import annotations

from collections.abc import Callable

from sqlalchemy import Connection

from rb_dspy.bank.sqlite.fourth import fourth
from rb_dspy.bank.sqlite.second import second
from rb_dspy.bank.sqlite.third import third
from rb_dspy.errors import CorruptBank, SchemaTooNew

APPLICATION_ID = 0x72624253
"""``PRAGMA application_id``: tells a bank from every other SQLite file."""


def _first(connection: Connection) -> None:
    """Scopes, experiences, items, their vectors, and what was shown to whom."""
    # Vectors stand apart from text: the index reads all of them and nothing else, and another embedder replaces them.
    # Sequence numbers are counted in `scopes`, not by SQLite, so that a scope's numbers tell nothing of another's.
    for statement in (
        "CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL)",
        "CREATE TABLE scopes (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, seq INTEGER NOT NULL DEFAULT 0)",
        """CREATE TABLE experiences (
            scope_id INTEGER NOT NULL REFERENCES scopes (id), seq INTEGER NOT NULL, id TEXT NOT NULL,
            task_id TEXT NOT NULL, template TEXT, instruction TEXT NOT NULL, label TEXT NOT NULL, run_id TEXT NOT NULL,
            state TEXT NOT NULL, note TEXT NOT NULL, created_at TEXT NOT NULL, payload BLOB NOT NULL,
            UNIQUE (scope_id, seq), UNIQUE (scope_id, id))""",
        "CREATE INDEX experiences_of_task ON experiences (scope_id, task_id, seq)",
        """CREATE TABLE items (
            scope_id INTEGER NOT NULL, seq INTEGER NOT NULL, experience_seq INTEGER NOT NULL, id TEXT NOT NULL,
            digest TEXT NOT NULL, title TEXT NOT NULL, description TEXT NOT NULL, content TEXT NOT NULL,
            polarity TEXT NOT NULL, distiller TEXT NOT NULL,
            UNIQUE (scope_id, seq), UNIQUE (scope_id, id),
            FOREIGN KEY (scope_id, experience_seq) REFERENCES experiences (scope_id, seq))""",
        "CREATE INDEX items_of_experience ON items (scope_id, experience_seq)",
        """CREATE TABLE vectors (
            scope_id INTEGER NOT NULL, unit TEXT NOT NULL, seq INTEGER NOT NULL, experience_seq INTEGER NOT NULL,
            data BLOB NOT NULL, UNIQUE (scope_id, unit, seq),
            FOREIGN KEY (scope_id, experience_seq) REFERENCES experiences (scope_id, seq))""",
        """CREATE TABLE exposures (
            scope_id INTEGER NOT NULL, item_id TEXT NOT NULL, experience_seq INTEGER NOT NULL, task_id TEXT NOT NULL,
            run_id TEXT NOT NULL, label TEXT NOT NULL, created_at TEXT NOT NULL,
            FOREIGN KEY (scope_id, experience_seq) REFERENCES experiences (scope_id, seq))""",
        "CREATE INDEX exposures_of_item ON exposures (scope_id, item_id)",
    ):
        connection.exec_driver_sql(statement)


MIGRATIONS: tuple[Callable[[Connection], None], ...] = (_first, second, third, fourth)


def pending(connection: Connection, location: str) -> bool:
    """Whether a file needs ``migrate``. Reads only.

    Raises ``SchemaTooNew`` for one that a newer rb_dspy wrote and ``CorruptBank`` for somebody else's database.
    """
    application = connection.exec_driver_sql("PRAGMA application_id").scalar_one()
    version = connection.exec_driver_sql("PRAGMA user_version").scalar_one()
    if application != APPLICATION_ID:
        if application or version or connection.exec_driver_sql("SELECT count(*) FROM sqlite_master").scalar_one():
            raise CorruptBank(f"{location}: a database, but not a bank; give another path")
        return True
    if version > len(MIGRATIONS):
        raise SchemaTooNew(
            f"{location}: written by a newer rb_dspy (bank schema {version}; this one knows {len(MIGRATIONS)});"
            " upgrade it"
        )
    return bool(version < len(MIGRATIONS))


def migrate(connection: Connection, location: str) -> None:
    """Bring a file up to date, inside the caller's write transaction: all of it or nothing."""
    if not pending(connection, location):
        return  # another process did it while this one waited to write
    version = connection.exec_driver_sql("PRAGMA user_version").scalar_one()
    for migration in MIGRATIONS[version:]:
        migration(connection)
    connection.exec_driver_sql(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.exec_driver_sql(f"PRAGMA user_version = {len(MIGRATIONS)}")
