"""A journal in PostgreSQL, which processes on many machines share: in the schema ``rb_dspy_runs`` of a database.

One connection does everything, and holds the locks of the runs that this process does. If it breaks, or the process
ends, the server drops them, and nothing more is stored under them: no two processes write to one run.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rb_dspy.errors import InputError, MissingDependency, StorageError
from rb_dspy.jsonl import encode
from rb_dspy.stream.journal import Journal, Record
from rb_dspy.text import summary_line

_MAKE = """
SELECT pg_advisory_xact_lock(hashtextextended('rb_dspy_runs', 0));
CREATE SCHEMA IF NOT EXISTS rb_dspy_runs;
CREATE TABLE IF NOT EXISTS rb_dspy_runs.runs (
    number BIGINT GENERATED ALWAYS AS IDENTITY, run TEXT PRIMARY KEY, head TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS rb_dspy_runs.entries (
    number BIGINT GENERATED ALWAYS AS IDENTITY, run TEXT, task TEXT, rollout TEXT, entry TEXT NOT NULL,
    PRIMARY KEY (run, task, rollout));
"""
"""The row of a task has the rollout '', what is attached to it '+'; other entries begin with '='. JSON as text may
hold any character."""

_BEGIN = "INSERT INTO rb_dspy_runs.runs (run, head) VALUES (%s, %s) ON CONFLICT DO NOTHING"
_STORE = """
INSERT INTO rb_dspy_runs.entries (run, task, rollout, entry) VALUES (%s, %s, %s, %s)
ON CONFLICT (run, task, rollout) DO UPDATE SET entry = excluded.entry, number = DEFAULT
"""
_READ = """
SELECT runs.run, head, entry FROM rb_dspy_runs.runs LEFT JOIN rb_dspy_runs.entries ON runs.run = entries.run
    AND rollout <> '+'
WHERE starts_with(runs.run, %s) ORDER BY runs.number, entries.number
"""
_ATTACHED = "SELECT entry FROM rb_dspy_runs.entries WHERE run = %s AND task = %s AND rollout = '+'"
_LOCK = "SELECT pg_try_advisory_lock(hashtextextended('rb_dspy_runs ' || %s, 0))"
_UNLOCK = "SELECT pg_advisory_unlock(hashtextextended('rb_dspy_runs ' || %s, 0))"


class Tables(Journal):
    """A journal in a database; its tables are made if they are missing.

    Raises:
        InputError: ``url`` is not the address of a PostgreSQL database.
        MissingDependency: The extra ``postgres`` is not installed.
        StorageError: The server cannot be reached.
    """

    def __init__(self, url: str) -> None:
        if not url.startswith(("postgresql://", "postgres://")):
            raise InputError("a journal is a folder, or a database postgresql://user:password@host:port/database")
        try:
            import psycopg
        except ImportError:
            raise MissingDependency("PostgreSQL needs psycopg: run `pip install 'rb-dspy[postgres]'`") from None
        self._error: type[Exception] = psycopg.Error
        self._held: set[str] = set()
        self._turn = threading.Lock()
        with self._translated():
            self._connection = psycopg.connect(url, autocommit=True)
            with self._connection.transaction():
                self._connection.execute(_MAKE)

    def __str__(self) -> str:
        return f"PostgreSQL database {self._connection.info.dbname}"

    def runs(self, prefix: str = "") -> list[Record]:
        with self._translated():
            rows = self._connection.execute(_READ, [prefix]).fetchall()
        found: dict[str, tuple[dict[str, Any], list[dict[str, Any]]]] = {}
        for run, head, entry in rows:
            entries = found.setdefault(run, (json.loads(head), []))[1]
            entries += [] if entry is None else [json.loads(entry)]
        return [Record(head, self).read(entries) for head, entries in found.values()]

    def run(self, run_id: str) -> Record | None:
        return next((each for each in self.runs(run_id) if each.id == run_id), None)

    def store(self, run_id: str, entry: Mapping[str, Any]) -> None:
        key = (entry["task"], "") if "task" in entry else (entry["of"], f"={entry.get('rollout', '')}")
        self._put(run_id, *key, entry)

    def attach(self, run_id: str, task_id: str, value: Mapping[str, Any]) -> None:
        self._put(run_id, task_id, "+", value)

    def attached(self, run_id: str, task_id: str) -> dict[str, Any] | None:
        with self._translated():
            row = self._connection.execute(_ATTACHED, [run_id, task_id]).fetchone()
        return None if row is None else dict(json.loads(row[0]))

    @contextmanager
    def lock(self, run_id: str) -> Iterator[bool]:
        with self._turn, self._translated():  # the server gives a connection a lock that it has
            row = None if run_id in self._held else self._connection.execute(_LOCK, [run_id]).fetchone()
            locked = bool(row and row[0])
            self._held |= {run_id} if locked else set()
        try:
            yield locked
        finally:
            if locked:
                self._held.discard(run_id)
                if not self._connection.closed:
                    with self._translated():
                        self._connection.execute(_UNLOCK, [run_id])

    def close(self) -> None:
        self._connection.close()

    def _begin(self, head: Mapping[str, Any]) -> None:
        with self._translated():
            self._connection.execute(_BEGIN, [head["run_id"], encode(head).decode()])

    def _put(self, run_id: str, task_id: str, rollout: str, entry: Mapping[str, Any]) -> None:
        with self._translated():
            self._connection.execute(_STORE, [run_id, task_id, rollout, encode(entry).decode()])

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except self._error as exc:
            raise StorageError(f"the journal in PostgreSQL: {summary_line(exc, 300)}; check the server") from exc
