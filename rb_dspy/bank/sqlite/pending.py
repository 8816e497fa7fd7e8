"""The table of pending rollouts: recorded, and not learned from yet."""

from __future__ import annotations

import json
import logging
import sqlite3
import zlib
from collections.abc import Collection, Iterable, Iterator, Sequence

from rb_dspy.bank import journal, refusals
from rb_dspy.bank.pending import Key, Row, Waiting
from rb_dspy.bank.sqlite import keys
from rb_dspy.bank.sqlite.compression import compressed, decompressed
from rb_dspy.bank.sqlite.ids import named
from rb_dspy.bank.sqlite.rows import damaged
from rb_dspy.bank.sqlite.scoped import Scope, State, live
from rb_dspy.bank.sqlite.state import scope_row
from rb_dspy.schema import Task, Trajectory
from rb_dspy.text import normalise

_log = logging.getLogger("rb_dspy.bank")

_KEY = "run_id, task_id, rollout_id, content"

_IS = "scope_id = ? AND run_id = ? AND task_id = ? AND rollout_id = ? AND content = ?"

_encode = json.JSONEncoder(separators=(",", ":")).encode


def payload(row: Row) -> bytes:
    """Task and trajectory as JSON, compressed."""
    values = {"task": row.task.model_dump(), "trajectory": row.trajectory.model_dump()}
    return compressed(_encode(values).encode("ascii"), row.key.task_id)


def read(data: bytes, task_id: str) -> tuple[Task, Trajectory]:
    """What ``payload`` wrote. Raises ``ValueError``, ``TypeError`` or ``zlib.error`` where it is damaged."""
    told = json.loads(decompressed(data, task_id))
    mended = journal.mended({"trajectories": [told["trajectory"]]})["trajectories"][0]
    return Task.model_validate(told["task"]), Trajectory.model_validate(mended)


def recorded(connection: sqlite3.Connection, scope: str, row: Row, payload: bytes, location: str) -> None:
    """Insert a rollout, unless it is there or was learned from. Raises ``InputError`` where that was removed since."""
    scope_id, _, _ = scope_row(connection, scope, location)
    state = State(Scope(scope_id, scope, location), keys.LAST)
    if row.key.run_id:
        found = attempt(connection, state.scope, row.key.run_id, row.key.task_id)
    else:
        query = f"SELECT e.id, e.ended IS NULL FROM experiences AS e WHERE {named('e')}"
        found = connection.execute(query, state.named(row.key.content)).fetchone()
    if found is None:
        insert(connection, scope_id, row, payload)
    elif not found[1]:
        raise refusals.removed_since(location, row.key.task_id, found[0])


def insert(connection: sqlite3.Connection, scope_id: int, row: Row, payload: bytes) -> None:
    """Insert a rollout, unless it is there."""
    connection.execute(
        f"INSERT OR IGNORE INTO pending_rollouts (scope_id, {_KEY}, shown, created_at, payload)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        (scope_id, *row.key, json.dumps(row.shown), row.created_at, payload),
    )


def attempt(connection: sqlite3.Connection, scope: Scope, run_id: str, task_id: str) -> tuple[str, bool] | None:
    """The id of what a run learned from a task, and whether it lives: the newest that does, else the newest."""
    found: tuple[str, bool] | None = connection.execute(
        "SELECT e.id, e.ended IS NULL FROM experiences AS e WHERE e.scope_id = ? AND e.task_id = ? AND e.run_id = ?"
        " ORDER BY e.ended IS NULL DESC, e.key DESC LIMIT 1",
        (scope.id, task_id, run_id),
    ).fetchone()
    return found


def pending(
    connection: sqlite3.Connection, scope: Scope, *, run_id: str | None = None, task_id: str | None = None
) -> list[Row]:
    """Those of a run and a task, oldest first; damaged ones are left out, with a warning."""
    where, given = ["scope_id = ?"], list[object]([scope.id])
    for column, value in (("run_id", run_id), ("task_id", task_id)):
        if value is not None:
            where.append(f"{column} = ?")
            given.append(value)
    found = []
    for *key, shown, created_at, tries, error, data in connection.execute(
        f"SELECT {_KEY}, shown, created_at, tries, error, payload FROM pending_rollouts WHERE {' AND '.join(where)}"
        " ORDER BY position",
        given,
    ):
        try:
            found.append(Row(Key(*key), *read(data, key[1]), tuple(json.loads(shown)), created_at, tries, error))
        except (zlib.error, ValueError, TypeError, LookupError) as exc:
            _log.warning("%s", damaged(scope.location, f"pending rollout {key[2]} of task {key[1]}", exc))
    return found


def waiting(connection: sqlite3.Connection, scope: Scope) -> list[Waiting]:
    """What is known of all without reading them, damaged ones too, oldest first."""
    found = []
    for *key, shown in connection.execute(
        f"SELECT {_KEY}, shown FROM pending_rollouts WHERE scope_id = ? ORDER BY position", (scope.id,)
    ):
        if all(isinstance(cell, str) for cell in key):
            found.append(Waiting(Key(*key), _ids(shown)))
    return found


def _ids(shown: object) -> tuple[str, ...]:
    try:
        return tuple(json.loads(shown))  # type: ignore[arg-type]
    except (ValueError, TypeError):
        return ()


def failed(
    connection: sqlite3.Connection,
    scope: str,
    run_id: str,
    task_id: str,
    rollout_ids: Collection[str],
    error: str,
    location: str,
) -> None:
    """Count a failed try, of these rollouts, or of all."""
    scope_id, _, _ = scope_row(connection, scope, location)
    connection.execute(
        "UPDATE pending_rollouts SET tries = tries + 1, error = ? WHERE scope_id = ? AND run_id = ? AND task_id = ?"
        " AND (? = '[]' OR rollout_id IN (SELECT value FROM json_each(?)))",
        (error, scope_id, run_id, task_id, *[json.dumps(list(rollout_ids))] * 2),
    )


def forgotten(connection: sqlite3.Connection, scope: str, these: Sequence[Key], location: str) -> None:
    """They are pending no more."""
    scope_id, _, _ = scope_row(connection, scope, location)
    forget(connection, scope_id, these)


def forget(connection: sqlite3.Connection, scope_id: int, these: Iterable[Key]) -> None:
    """They are pending no more."""
    connection.executemany(f"DELETE FROM pending_rollouts WHERE {_IS}", [(scope_id, *key) for key in these])


def forget_attempts(connection: sqlite3.Connection, scope_id: int, these: Iterable[tuple[str, str]]) -> None:
    """Nothing of these runs and tasks is pending any more."""
    connection.executemany(
        "DELETE FROM pending_rollouts WHERE scope_id = ? AND run_id = ? AND task_id = ?",
        [(scope_id, *attempt) for attempt in these],
    )


def learned(connection: sqlite3.Connection, state: State, *, run_id: str) -> set[str]:
    """Tasks that the run has an experience of."""
    query = (
        f"SELECT DISTINCT e.task_id FROM experiences AS e WHERE e.scope_id = :scope AND e.run_id = :run AND {live('e')}"
    )
    return {task_id for (task_id,) in connection.execute(query, state.having(run=run_id))}


def faults(connection: sqlite3.Connection, scope: Scope) -> Iterator[tuple[Key, str]]:
    """Rows that cannot be read or that say something else than their payload, and what is wrong."""
    for *key, data in connection.execute(
        f"SELECT {_KEY}, payload FROM pending_rollouts WHERE scope_id = ? ORDER BY position", (scope.id,)
    ):
        try:
            task, trajectory = read(data, key[1])
        except (zlib.error, ValueError, TypeError, LookupError) as exc:
            yield Key(*key), f"cannot be read: {type(exc).__name__}"
        else:
            if (task.id, normalise(trajectory.rollout_id)) != (key[1], key[2]):
                yield Key(*key), f"tells of rollout {trajectory.rollout_id!r} of task {task.id!r}"
