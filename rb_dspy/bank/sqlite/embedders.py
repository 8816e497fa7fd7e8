"""Which embedder a bank belongs to."""

from __future__ import annotations

import sqlite3

import sqlalchemy as sa

from rb_dspy.bank.sqlite import tables
from rb_dspy.errors import CorruptBank, EmbedderMismatch

StoredEmbedder = tuple[str, int] | None
"""Id and dimension; None where there is none yet."""


def stored(connection: sa.Connection, location: str) -> StoredEmbedder:
    """Id and dimension of the bank's embedder. Raises ``CorruptBank`` where only half of that stands."""
    found = {row.key: row.value for row in connection.execute(sa.select(tables.meta))}
    if "embedder" not in found:
        return None
    try:
        return str(found["embedder"]), int(found["dimension"])
    except (KeyError, ValueError, TypeError):
        raise CorruptBank(
            f"{location}: the embedder's dimension is damaged; restore the file from a copy (rb-dspy bank restore COPY)"
        ) from None


def current(connection: sqlite3.Connection) -> StoredEmbedder:
    """The embedder that the bank belongs to now."""
    found = dict(connection.execute("SELECT key, value FROM meta WHERE key IN ('embedder', 'dimension')"))
    return (found["embedder"], int(found["dimension"])) if len(found) == 2 else None


def bind(connection: sqlite3.Connection, embedder: tuple[str, int]) -> tuple[str, int]:
    """The embedder that the bank belongs to, from now on this one where it had none."""
    found = current(connection)  # another process may have been first
    if found is None:
        values = zip(("embedder", "dimension"), map(str, embedder), strict=True)
        connection.executemany("INSERT INTO meta VALUES (?, ?)", values)
    return found or embedder


def checked_embedder(connection: sqlite3.Connection, bound: StoredEmbedder, location: str) -> StoredEmbedder:
    """The bank's. Raises ``EmbedderMismatch`` where it was re-indexed for another one since the caller opened it."""
    now = current(connection)
    refuse_another(now, bound, location)
    return now


def refuse_another(now: StoredEmbedder, bound: StoredEmbedder, location: str) -> None:
    """Raises ``EmbedderMismatch`` where the bank's embedder is not the one that the caller is bound to."""
    if bound is not None and now is not None and bound != now:
        raise EmbedderMismatch(
            f"{location}: re-indexed for the embedder {now[0]} ({now[1]} dimensions) since it was opened with"
            f" {bound[0]} ({bound[1]}); open it again with {now[0]}"
        )
