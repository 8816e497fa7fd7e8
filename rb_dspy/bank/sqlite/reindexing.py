"""New vectors for all rows: built in tables of their own, then put in the old ones' place in one transaction."""

from __future__ import annotations

import sqlite3
import uuid
from collections.abc import Callable, Sequence
from functools import partial

from rb_dspy.bank import vectors
from rb_dspy.bank.parts import UNITS, Unit
from rb_dspy.bank.sqlite import failpoints, keys, rows
from rb_dspy.bank.sqlite.writes import Body
from rb_dspy.errors import StorageError
from rb_dspy.protocols import Vectors

Unembedded = tuple[int, str]
"""The key of a row that has no new vector yet, and its text."""

_PAGE = 500
_REST = 64
"""Rows that came in the meantime are embedded under the write lock when they are no more than this …"""
_PASSES = 10
"""… or when this many passes over what came in the meantime have not caught up."""

_TEXTS = {
    "experience": "SELECT v.key, e.instruction FROM experience_vectors AS v JOIN experiences AS e ON e.key = v.key"
    " LEFT JOIN experience_vectors_next AS n ON n.key = v.key WHERE n.key IS NULL AND v.key > ? ORDER BY v.key LIMIT ?",
    "item": "SELECT v.key, i.title || char(10) || i.description || char(10) || i.content FROM item_vectors AS v"
    " JOIN items AS i ON i.key = v.key LEFT JOIN item_vectors_next AS n ON n.key = v.key"
    " WHERE n.key IS NULL AND v.key > ? ORDER BY v.key LIMIT ?",
}


class Reindexing:
    """One re-index of all scopes. ``write`` performs a body, ``read`` a query; see ``BankStore.reindex``."""

    def __init__(
        self,
        location: str,
        read: Callable[[Callable[[sqlite3.Connection], list[Unembedded]]], list[Unembedded]],
        write: Callable[[Body], object],
        embedder: tuple[str, int],
        embed: Callable[[Sequence[str]], Vectors],
    ) -> None:
        self._location = location
        self._read = read
        self._write = write
        self._embedder = embedder
        self._embed = embed
        self._token = uuid.uuid4().hex

    def run(self) -> int:
        """The number of vectors that were made."""
        self._write(self._begin)
        for pass_ in range(_PASSES + 1):
            for unit in UNITS:
                self._catch_up(unit)
            made = self._write(partial(self._swap, any_rest=pass_ == _PASSES))
            if made is not None:
                return int(str(made))
        raise AssertionError("the last pass takes any rest")

    def _catch_up(self, unit: Unit) -> None:
        after = 0
        while page := self._read(partial(_missing, unit=unit, after=after, limit=_PAGE)):
            made = self._made(page)
            self._write(partial(self._insert, unit=unit, made=made))
            failpoints.reached("mid-reindex")
            after = page[-1][0]

    def _made(self, page: Sequence[Unembedded]) -> list[tuple[int, bytes]]:
        found = self._embed([text for _, text in page])
        return [(key, vectors.packed(vector)) for (key, _), vector in zip(page, found, strict=True)]

    def _begin(self, connection: sqlite3.Connection) -> None:
        connection.execute("INSERT OR REPLACE INTO meta VALUES ('reindexing', ?)", (self._token,))
        for unit in UNITS:
            connection.execute(f"DROP TABLE IF EXISTS {unit}_vectors_next")
            connection.execute(
                f"CREATE TABLE {unit}_vectors_next (key INTEGER PRIMARY KEY, ended INTEGER, task INTEGER NOT NULL,"
                " success INTEGER NOT NULL, crc INTEGER NOT NULL, data BLOB NOT NULL)"
            )
            connection.execute(
                f"CREATE INDEX {unit}_vectors_ended_{self._token} ON {unit}_vectors_next (key >> {keys.BITS}, ended)"
                " WHERE ended IS NOT NULL"
            )

    def _insert(self, connection: sqlite3.Connection, *, unit: Unit, made: Sequence[tuple[int, bytes]]) -> None:
        self._check(connection)
        table = rows.vectors_table(unit)
        connection.executemany(
            f"INSERT OR IGNORE INTO {table}_next SELECT key, NULL, task, success, ?, ? FROM {table} WHERE key = ?",
            [(rows.checksum(data), data, key) for key, data in made],
        )

    def _swap(self, connection: sqlite3.Connection, *, any_rest: bool) -> int | None:
        """How many vectors there are, now in place; None where more came in the meantime than can be made here."""
        self._check(connection)
        rest = {unit: _missing(connection, unit=unit, after=0, limit=-1 if any_rest else _REST + 1) for unit in UNITS}
        if not any_rest and any(len(page) > _REST for page in rest.values()):
            return None
        total = 0
        for unit, page in rest.items():
            if page:
                self._insert(connection, unit=unit, made=self._made(page))
            table = rows.vectors_table(unit)
            connection.execute(
                f"UPDATE {table}_next SET ended = old.ended FROM {table} AS old"
                f" WHERE old.key = {table}_next.key AND old.ended IS NOT NULL"
            )
            connection.execute(f"DROP TABLE {table}")
            connection.execute(f"ALTER TABLE {table}_next RENAME TO {table}")
            total += connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
        connection.execute("DELETE FROM meta WHERE key = 'reindexing'")
        for key, value in zip(("embedder", "dimension"), self._embedder, strict=True):
            connection.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, str(value)))
        return total

    def _check(self, connection: sqlite3.Connection) -> None:
        found = connection.execute("SELECT value FROM meta WHERE key = 'reindexing'").fetchone()
        if found is None or found[0] != self._token:
            raise StorageError(f"{self._location}: another reindex began and this one ends; wait for the other")


def _missing(connection: sqlite3.Connection, *, unit: Unit, after: int, limit: int) -> list[Unembedded]:
    return connection.execute(_TEXTS[unit], (after, limit)).fetchall()
