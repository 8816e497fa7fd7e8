"""Which embedder a bank belongs to."""

from __future__ import annotations

import sqlite3
from collections.abc import Set
from typing import NamedTuple

from rb_dspy.bank import refusals
from rb_dspy.bank.vectors import check_lengths

StoredEmbedder = tuple[str, int] | None
"""Id and dimension; None where there is none yet."""

UNKNOWN = "(unknown)"
"""What the embedder of a bank is called that does not say which it is."""

_SAMPLE = 100
"""Vectors of a unit that are asked how long they are."""


class Told(NamedTuple):
    """What a file tells of its embedder; None for what it does not, as where rows of it are lost or damaged."""

    id: str | None
    dimension: int | None
    """That of its vectors, where its own row does not tell."""
    whole: bool
    """Whether both stand where they should."""

    def fits(self, embedder: tuple[str, int]) -> bool:
        """Whether it may be this one."""
        id, dimension = embedder
        return self.id in (None, id) and self.dimension in (None, dimension)


def told(connection: sqlite3.Connection) -> Told:
    """What a file tells. It is nothing at all for a new one."""
    id, dimension = rows_of(connection)
    if id is not None and dimension is not None:
        return Told(id, dimension, whole=True)
    return Told(id, _of_vectors(connection) or dimension, whole=False)


def rows_of(connection: sqlite3.Connection) -> tuple[str | None, int | None]:
    """What the rows say that were made for it; None for one that is missing or damaged."""
    found = dict(connection.execute("SELECT key, value FROM meta WHERE key IN ('embedder', 'dimension')"))
    return read(found.get("embedder"), found.get("dimension"))


def read(id: object, dimension: object) -> tuple[str | None, int | None]:
    """What two cells say; None for one that is missing or damaged."""
    number = int(dimension) if isinstance(dimension, str) and dimension.isdecimal() and len(dimension) < 10 else 0
    return id if isinstance(id, str) and id else None, number or None


def _of_vectors(connection: sqlite3.Connection) -> int | None:
    """The dimension that most of the first vectors have."""
    sampled = " UNION ALL ".join(
        f"SELECT * FROM (SELECT data FROM {unit}_vectors ORDER BY key LIMIT {_SAMPLE})"
        for unit in ("experience", "item")
    )
    found = connection.execute(
        f"SELECT length(data) / 2 FROM ({sampled}) WHERE typeof(data) = 'blob' AND length(data) > 1"
        " GROUP BY length(data) ORDER BY count(*) DESC LIMIT 1"
    ).fetchone()
    return found[0] if found else None


def stored(connection: sqlite3.Connection) -> StoredEmbedder:
    """The embedder of the bank as far as the file tells; None where it tells nothing."""
    found = told(connection)
    return None if found.id is None and found.dimension is None else (found.id or UNKNOWN, found.dimension or 0)


def current(connection: sqlite3.Connection) -> StoredEmbedder:
    """The embedder that the bank belongs to now; None where the file does not say both of it."""
    id, dimension = rows_of(connection)
    return None if id is None or dimension is None else (id, dimension)


def held(connection: sqlite3.Connection, embedder: tuple[str, int]) -> tuple[tuple[str, int], bool]:
    """The embedder that the bank belongs to, this one where nothing speaks against it; and whether the file says so."""
    found = told(connection)
    if found.whole or not found.fits(embedder):
        return (found.id or UNKNOWN, found.dimension or embedder[1]), found.whole
    return embedder, False


def bind(connection: sqlite3.Connection, embedder: tuple[str, int]) -> tuple[str, int]:
    """The embedder that the bank belongs to, from now on this one where it had none, or may have had this one."""
    found, says = held(connection, embedder)  # another process may have been first
    if not says and found == embedder:
        values = zip(("embedder", "dimension"), map(str, embedder), strict=True)
        connection.executemany("INSERT OR REPLACE INTO meta VALUES (?, ?)", values)
    return found


def checked_embedder(connection: sqlite3.Connection, bound: StoredEmbedder, location: str) -> StoredEmbedder:
    """The bank's. Raises ``EmbedderMismatch`` where it was re-indexed for another one since the caller opened it."""
    now = current(connection)
    refuse_another(now, bound, location)
    return now


def bound_by_writing(
    connection: sqlite3.Connection, now: StoredEmbedder, bound: StoredEmbedder, lengths: Set[int], location: str
) -> StoredEmbedder:
    """The bank's: the caller's, who is about to store something, where it has none ``now``.

    ``lengths``: those of the vectors, in bytes. Raises like ``checked_embedder``, and ``InvalidVector`` for vectors of
    another dimension.
    """
    refuse_another(now, bound, location)
    whose = now or bound
    if whose is not None:
        check_lengths(lengths, whose, location)
        if now is None:
            now = bind(connection, whose)
            refuse_another(now, bound, location)
    return now


def refuse_another(now: StoredEmbedder, bound: StoredEmbedder, location: str) -> None:
    """Raises ``EmbedderMismatch`` where the bank's embedder is not the one that the caller is bound to."""
    if bound is not None and now is not None and bound != now:
        raise refusals.another_embedder(location, now, bound)
