"""New vectors for all rows: built in tables of their own, then put in the old ones' place in one transaction."""

from __future__ import annotations

import contextlib
import sqlite3
import uuid
from collections.abc import Callable, Sequence
from functools import partial

from rb_dspy.bank import vectors
from rb_dspy.bank.parts import UNITS, Unit
from rb_dspy.bank.passes import PASSES, outrun
from rb_dspy.bank.sqlite import failpoints, keys, renewals, rows
from rb_dspy.bank.sqlite.connections import Readers
from rb_dspy.bank.sqlite.writes import Body
from rb_dspy.errors import BankError, StorageError
from rb_dspy.protocols import Vectors

Unembedded = tuple[int, str]
"""The key of a row that has no new vector yet, and its text."""

_PAGE = 500
_HIGHEST = (1 << 63) - 1
"""No key is higher."""

_TEXTS = {
    "experience": "SELECT v.key, e.instruction FROM experience_vectors AS v JOIN experiences AS e ON e.key = v.key"
    " LEFT JOIN experience_vectors_next AS n ON n.key = v.key"
    " WHERE n.key IS NULL AND v.key > ? AND v.key <= ? ORDER BY v.key LIMIT ?",
    "item": "SELECT v.key, i.title || char(10) || i.description || char(10) || i.content FROM item_vectors AS v"
    " JOIN items AS i ON i.key = v.key LEFT JOIN item_vectors_next AS n ON n.key = v.key"
    " WHERE n.key IS NULL AND v.key > ? AND v.key <= ? ORDER BY v.key LIMIT ?",
}


class Reindexing:
    """One re-index of all scopes. ``write`` performs a body, ``read`` a query; see ``BankStore.reindex``."""

    def __init__(
        self,
        location: str,
        readers: Readers,
        write: Callable[[Body], object],
        embedder: tuple[str, int],
        embed: Callable[[Sequence[str]], Vectors],
    ) -> None:
        self._location = location
        self._read = readers.read
        self._write = write
        self._embedder = embedder
        self._embed = embed
        self._token = uuid.uuid4().hex

    def run(self) -> int:
        """The number of vectors that were made.

        Nothing is embedded in the swap, which holds up all who write: what came meanwhile takes another pass.
        """
        try:
            return self._made_anew()
        except BaseException:
            with contextlib.suppress(BankError):  # what it broke by says more, and ``check`` tells of what stays
                self._write(self._clear)
            raise

    def _made_anew(self) -> int:
        self._write(self._begin)
        for _ in range(PASSES):
            for unit, scopes in [(unit, self._read(partial(_scopes, unit=unit))) for unit in UNITS]:
                for first, last in scopes:
                    self._catch_up(unit, first, last)
            made = self._write(self._swap)
            if made is not None:
                return int(str(made))
        raise outrun(self._location)

    def _catch_up(self, unit: Unit, first: int, last: int) -> None:
        """Make what is missing of these keys. Rows that come meanwhile have higher ones, so this ends."""
        after = first - 1
        while page := self._read(partial(_missing, unit=unit, after=after, last=last, limit=_PAGE)):
            made = self._made(page)
            self._write(partial(self._insert, unit=unit, made=made))
            failpoints.reached("mid-reindex")
            after = page[-1][0]

    def _made(self, page: Sequence[Unembedded]) -> list[tuple[int, bytes]]:
        found = [vectors.packed(vector) for vector in self._embed([text for _, text in page])]
        vectors.check_lengths(set(map(len, found)), self._embedder, self._location)
        return [(key, data) for (key, _), data in zip(page, found, strict=True)]

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

    def _clear(self, connection: sqlite3.Connection) -> None:
        """Take away what was built; after a swap, and where another reindex began, there is nothing of ours."""
        if _token(connection) == self._token:
            for unit in UNITS:
                connection.execute(f"DROP TABLE IF EXISTS {unit}_vectors_next")
            connection.execute("DELETE FROM meta WHERE key = 'reindexing'")

    def _insert(self, connection: sqlite3.Connection, *, unit: Unit, made: Sequence[tuple[int, bytes]]) -> None:
        self._check(connection)
        table = rows.vectors_table(unit)
        connection.executemany(
            f"INSERT OR IGNORE INTO {table}_next SELECT key, NULL, task, success, ?, ? FROM {table} WHERE key = ?",
            [(rows.checksum(data), data, key) for key, data in made],
        )

    def _swap(self, connection: sqlite3.Connection) -> int | None:
        """How many vectors there are, now in place; None where one is missing, of what came in the meantime."""
        self._check(connection)
        if any(_missing(connection, unit=unit, after=0, last=_HIGHEST, limit=1) for unit in UNITS):
            return None
        total = 0
        for unit in UNITS:
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
        renewals.count(connection)  # for who is of the same embedder
        return total

    def _check(self, connection: sqlite3.Connection) -> None:
        if _token(connection) != self._token:
            raise StorageError(f"{self._location}: another reindex began and this one ends; wait for the other")


def _token(connection: sqlite3.Connection) -> object:
    found = connection.execute("SELECT value FROM meta WHERE key = 'reindexing'").fetchone()
    return found and found[0]


def _missing(connection: sqlite3.Connection, *, unit: Unit, after: int, last: int, limit: int) -> list[Unembedded]:
    return connection.execute(_TEXTS[unit], (after, last, limit)).fetchall()


def _scopes(connection: sqlite3.Connection, *, unit: Unit) -> list[tuple[int, int]]:
    """The first and the last key that each scope's vectors have; two look-ups a scope."""
    table, after = rows.vectors_table(unit), 0
    found: list[tuple[int, int]] = []
    while True:
        (first,) = connection.execute(f"SELECT min(key) FROM {table} WHERE key > ?", (after,)).fetchone()
        if first is None:
            return found
        after = first | keys.LAST  # the highest that a row of this scope may have
        (last,) = connection.execute(f"SELECT max(key) FROM {table} WHERE key <= ?", (after,)).fetchone()
        found.append((first, last))
