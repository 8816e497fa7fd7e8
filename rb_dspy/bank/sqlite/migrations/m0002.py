"""The second migration: rows that begin and end, a journal, snapshots, ingestions, vectors of half precision.

What it needs of other modules it keeps as private copies: a migration that was released never changes.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
import zlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from sqlalchemy import Connection

from rb_dspy.bank.sqlite import failpoints

_BITS = 40

_TABLES = (
    "ALTER TABLE scopes ADD COLUMN head BLOB NOT NULL DEFAULT x''",
    # One integer key for scope and number (see ``keys``) instead of a rowid, a pair of columns and an index over them.
    """CREATE TABLE experiences (
        key INTEGER PRIMARY KEY, scope_id INTEGER NOT NULL REFERENCES scopes (id), id TEXT NOT NULL, ended INTEGER,
        task_id TEXT NOT NULL, template TEXT, instruction TEXT NOT NULL, label TEXT NOT NULL, polarity TEXT NOT NULL,
        run_id TEXT NOT NULL, origin TEXT NOT NULL, distiller TEXT NOT NULL, note TEXT NOT NULL,
        created_at TEXT NOT NULL, payload BLOB NOT NULL, UNIQUE (scope_id, id))""",
    "CREATE INDEX experiences_of_task ON experiences (scope_id, task_id, ended)",
    """CREATE TABLE items (
        key INTEGER PRIMARY KEY, scope_id INTEGER NOT NULL, id TEXT NOT NULL, ended INTEGER,
        experience INTEGER NOT NULL REFERENCES experiences (key), digest TEXT NOT NULL, title TEXT NOT NULL,
        description TEXT NOT NULL, content TEXT NOT NULL)""",
    "CREATE INDEX items_of_id ON items (scope_id, id, ended)",
    "CREATE INDEX items_of_text ON items (scope_id, digest, ended)",
    "CREATE INDEX items_of_experience ON items (experience, ended)",
    # A table for each unit: the index reads all vectors of one unit and nothing else.
    *(
        statement
        for unit in ("experience", "item")
        for statement in (
            f"""CREATE TABLE {unit}_vectors (
                key INTEGER PRIMARY KEY, ended INTEGER, task INTEGER NOT NULL, success INTEGER NOT NULL,
                crc INTEGER NOT NULL, data BLOB NOT NULL)""",
            f"CREATE INDEX {unit}_vectors_ended ON {unit}_vectors (key >> {_BITS}, ended) WHERE ended IS NOT NULL",
        )
    ),
    """CREATE TABLE exposures (
        experience INTEGER NOT NULL REFERENCES experiences (key), position INTEGER NOT NULL, item_id TEXT NOT NULL,
        PRIMARY KEY (experience, position)) WITHOUT ROWID""",
    "CREATE INDEX exposures_of_item ON exposures (item_id, experience)",
    # Subject, note and time of an append are those of the experience with the same key.
    """CREATE TABLE journal (
        key INTEGER PRIMARY KEY, kind TEXT NOT NULL, subject TEXT, note TEXT, created_at TEXT, hash BLOB NOT NULL)""",
    """CREATE TABLE snapshots (
        scope_id INTEGER NOT NULL REFERENCES scopes (id), name TEXT NOT NULL, seq INTEGER NOT NULL,
        digest TEXT NOT NULL, created_at TEXT NOT NULL, PRIMARY KEY (scope_id, name)) WITHOUT ROWID""",
    """CREATE TABLE ingestions (
        position INTEGER PRIMARY KEY, scope_id INTEGER NOT NULL REFERENCES scopes (id), id TEXT NOT NULL,
        run_id TEXT NOT NULL, origin TEXT NOT NULL, stage INTEGER NOT NULL, payload BLOB NOT NULL,
        UNIQUE (scope_id, id))""",
)


def apply(connection: Connection) -> None:
    """Make the new tables and move what the old ones hold.

    Experiences get entries in the journal as if they had just been appended. Those that were only recorded, of which
    nothing was learned, become ingestions, under the id that learning from them would give.
    """
    database = connection.connection.driver_connection
    if not isinstance(database, sqlite3.Connection):
        raise TypeError(f"{database!r}: expected a connection of sqlite3")
    strict = database.text_factory
    database.text_factory = lambda data: data.decode("utf-8", "replace")  # a damaged text shows by its digest
    for table in ("experiences", "items", "vectors", "exposures"):
        database.execute(f"ALTER TABLE {table} RENAME TO old_{table}")
    for index in ("experiences_of_task", "items_of_experience", "exposures_of_item"):
        database.execute(f"DROP INDEX {index}")
    for statement in _TABLES:
        database.execute(statement)
    for scope_id, scope in database.execute("SELECT id, name FROM scopes").fetchall():
        _move_experiences(database, scope_id, scope)
        _move_vectors(database, scope_id)
        failpoints.reached("mid-migration")
    for table in ("exposures", "vectors", "items", "experiences"):  # those that refer to others first
        database.execute(f"DROP TABLE old_{table}")
    database.text_factory = strict


def _move_experiences(database: sqlite3.Connection, scope_id: int, scope: str) -> None:
    base, head = scope_id << _BITS, b""
    found = database.execute(
        "SELECT seq, id, task_id, template, instruction, label, run_id, state, note, created_at, payload"
        " FROM old_experiences WHERE scope_id = ? ORDER BY seq",
        (scope_id,),
    )
    for seq, id, task_id, template, instruction, label, run_id, state, note, created_at, payload in found:
        if state == "recorded" and _record(database, scope_id, scope, seq, run_id, note, created_at, payload):
            continue
        items = database.execute(
            "SELECT seq, id, digest, title, description, content, polarity, distiller FROM old_items"
            " WHERE scope_id = ? AND experience_seq = ? ORDER BY seq",
            (scope_id, seq),
        ).fetchall()
        polarity = items[0][6] if items else "success" if label == "success" else "failure"
        distiller = items[0][7] if items else ""
        database.execute(
            f"INSERT INTO experiences VALUES ({', '.join('?' * 15)})",
            (
                *(base + seq, scope_id, id, None, task_id, template, instruction, label, polarity, run_id, ""),
                *(distiller, note, created_at, payload),
            ),
        )
        database.executemany(
            "INSERT INTO items VALUES (?, ?, ?, NULL, ?, ?, ?, ?, ?)",
            [(base + item[0], scope_id, item[1], base + seq, *item[2:6]) for item in items],
        )
        shown = _shown(database, scope_id, seq)
        database.executemany(
            "INSERT INTO exposures VALUES (?, ?, ?)", [(base + seq, at, item_id) for at, item_id in enumerate(shown)]
        )
        said = [id, run_id, distiller, "", label, polarity, shown, [(item[1], item[2]) for item in items]]
        try:
            told = zlib.decompress(payload)
        except zlib.error:  # damaged before: the entry cannot vouch for it, and its row says so when it is read
            told = b""
        content = hashlib.sha256(_json(said).encode("ascii") + b"\n" + told).hexdigest()
        entry = _json([seq, "append", id, note, created_at, content])
        head = hashlib.sha256(head + entry.encode("ascii")).digest()
        database.execute("INSERT INTO journal VALUES (?, 'append', NULL, NULL, NULL, ?)", (base + seq, head))
    database.execute("UPDATE scopes SET head = ? WHERE id = ?", (head, scope_id))


def _record(
    database: sqlite3.Connection,
    scope_id: int,
    scope: str,
    seq: int,
    run_id: str,
    note: str,
    created_at: str,
    payload: bytes,
) -> bool:
    """Keep an experience of which nothing was learned as an ingestion; False where it cannot be read."""
    try:
        told: dict[str, Any] = json.loads(zlib.decompress(payload))
        rollouts = sorted(told["trajectories"], key=lambda trajectory: trajectory["rollout_id"])
        without_usage = [{name: value for name, value in one.items() if name != "usage"} for one in rollouts]
        ids = [one["rollout_id"] for one in rollouts]
        identity = ["experience", scope, run_id or without_usage, told["task"]["id"], ids]
        id = f"e{hashlib.sha256(_json(identity).encode('ascii')).hexdigest()[:20]}"
        kept = {
            "id": id,
            "scope": scope,
            "task": told["task"],
            "trajectories": told["trajectories"],
            "verdicts": None,
            "drafts": None,
            "run_id": run_id,
            "distiller": "",
            "note": note,
            "origin": "",
            "shown": _shown(database, scope_id, seq),
            "created_at": created_at,
        }
    except (zlib.error, ValueError, KeyError, TypeError):
        return False
    known = "SELECT 1 FROM old_experiences WHERE scope_id = ? AND id = ? AND state != 'recorded'"
    if database.execute(known, (scope_id, id)).fetchone() is None:  # else it was learned from since
        database.execute(
            "INSERT OR IGNORE INTO ingestions (scope_id, id, run_id, origin, stage, payload)"
            " VALUES (?, ?, ?, '', 0, ?)",
            (scope_id, id, run_id, zlib.compress(_json(kept).encode("ascii"))),
        )
    return True


def _shown(database: sqlite3.Connection, scope_id: int, seq: int) -> list[str]:
    query = "SELECT item_id FROM old_exposures WHERE scope_id = ? AND experience_seq = ? ORDER BY rowid"
    return [item_id for (item_id,) in database.execute(query, (scope_id, seq))]


def _move_vectors(database: sqlite3.Connection, scope_id: int) -> None:
    for unit in ("experience", "item"):
        found = database.execute(
            "SELECT v.seq, e.task_id, e.polarity, v.data FROM old_vectors v"
            " JOIN experiences e ON e.key = (v.scope_id << ?) + v.experience_seq"
            " WHERE v.scope_id = ? AND v.unit = ? ORDER BY v.seq",
            (_BITS, scope_id, unit),
        )
        database.executemany(f"INSERT INTO {unit}_vectors VALUES (?, NULL, ?, ?, ?, ?)", _halved(found, scope_id))


def _halved(found: Iterator[Sequence[Any]], scope_id: int) -> Iterator[tuple[int, int, int, int, bytes]]:
    for seq, task_id, polarity, data in found:
        # A damaged row stays as it is; its length gives it away.
        with np.errstate(all="ignore"):
            half = data if len(data) % 4 else np.frombuffer(data, "<f4").astype("<f2").tobytes()
        hashed = hashlib.blake2b(task_id.encode("utf-8"), digest_size=8).digest()
        task = int.from_bytes(hashed, "little", signed=True)
        yield (scope_id << _BITS) + seq, task, int(polarity == "success"), zlib.crc32(half), half


def _json(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))
