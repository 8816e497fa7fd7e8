"""The fifth migration: rollouts that wait to be learned from are rows of their own, without steps."""

from __future__ import annotations

import json
import logging
import sqlite3
import zlib

from sqlalchemy import Connection

from rb_dspy.bank import pending
from rb_dspy.bank.sqlite import pending as rows
from rb_dspy.bank.sqlite.compression import decompressed
from rb_dspy.errors import RBError
from rb_dspy.schema import Task, Trajectory

_log = logging.getLogger("rb_dspy.bank")

_TABLE = """CREATE TABLE pending_rollouts (
    position INTEGER PRIMARY KEY, scope_id INTEGER NOT NULL REFERENCES scopes (id), run_id TEXT NOT NULL,
    task_id TEXT NOT NULL, rollout_id TEXT NOT NULL, content TEXT NOT NULL, shown TEXT NOT NULL,
    created_at TEXT NOT NULL, tries INTEGER NOT NULL DEFAULT 0, error TEXT NOT NULL DEFAULT '', payload BLOB NOT NULL,
    UNIQUE (scope_id, run_id, task_id, rollout_id, content))"""

_WAITING = (
    "SELECT s.id, s.name, i.payload FROM ingestions AS i JOIN scopes AS s ON s.id = i.scope_id ORDER BY i.position"
)


def apply(connection: Connection) -> None:
    """Make the table, and put into it what waits; damaged rows are lost, with a warning."""
    database = connection.connection.driver_connection
    if not isinstance(database, sqlite3.Connection):
        raise TypeError(f"{database!r}: expected a connection of sqlite3")
    database.execute(_TABLE)
    for scope_id, scope, payload in database.execute(_WAITING).fetchall():
        try:
            told = json.loads(decompressed(payload))
            task, shown = Task.model_validate(told["task"]), told.get("shown", ())
            for rollout in told["trajectories"]:
                trajectory = Trajectory.model_validate(rollout)
                row = pending.row(scope, task, trajectory, run_id=told.get("run_id", ""), shown=shown)
                rows.insert(database, scope_id, row, rows.payload(row))
        except (zlib.error, ValueError, TypeError, LookupError, RBError) as exc:
            _log.warning("a rollout that waited to be learned from is damaged and lost (%s)", type(exc).__name__)
    database.execute("DROP TABLE ingestions")
