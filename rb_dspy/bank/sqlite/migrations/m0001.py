"""The first migration: scopes, experiences, items, their vectors, and what was shown to whom."""

from __future__ import annotations

from sqlalchemy import Connection


def apply(connection: Connection) -> None:
    """Make the tables."""
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
