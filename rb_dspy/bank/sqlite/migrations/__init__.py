"""Numbered migrations; ``PRAGMA user_version`` is how many a file has had. One that was released never changes.

Each stands in a module of its number, and keeps what it needs of other modules as private copies.
"""

from __future__ import annotations

from collections.abc import Callable

from sqlalchemy import Connection

from rb_dspy.bank.sqlite.migrations import m0001, m0002, m0003, m0004, m0005
from rb_dspy.errors import CorruptBank, SchemaTooNew

APPLICATION_ID = 0x72624253
"""``PRAGMA application_id``: tells a bank from every other SQLite file."""

MIGRATIONS: tuple[Callable[[Connection], None], ...] = (
    m0001.apply,
    m0002.apply,
    m0003.apply,
    m0004.apply,
    m0005.apply,
)


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
