"""What the index is fed with: vectors, endings, texts."""

from __future__ import annotations

import logging
import sqlite3
import zlib

import numpy as np

from rb_dspy.bank.parts import Changes, Unit, VectorBatch
from rb_dspy.bank.sqlite import keys, rows
from rb_dspy.bank.sqlite.embedders import StoredEmbedder, checked_embedder
from rb_dspy.bank.sqlite.scoped import Row, Scope
from rb_dspy.bank.vectors import unpacked

_log = logging.getLogger("rb_dspy.bank")


def mark(connection: sqlite3.Connection, scope: Scope) -> int:
    """The highest number used."""
    (found,) = connection.execute("SELECT seq FROM scopes WHERE id = ?", (scope.id,)).fetchone()
    if not isinstance(found, int) or found > keys.LAST:  # who pages up to there would never end
        raise rows.damaged(scope.location, f"scope {scope.name!r}: its counter")
    return found


def changes(
    connection: sqlite3.Connection, scope: Scope, unit: Unit, *, after: int, limit: int, embedder: StoredEmbedder
) -> Changes:
    """Rows for the index. A damaged vector is left out, and does not end the paging (``Changes.more``).

    Raises ``EmbedderMismatch`` as ``place`` does.
    """
    _, dimension = checked_embedder(connection, embedder, scope.location) or embedder or ("", 0)
    table = rows.vectors_table(unit)
    found = connection.execute(
        f"SELECT key, task, success, crc, data FROM {table} WHERE key > ? AND key <= ? ORDER BY key LIMIT ?",
        (scope.base + after, scope.base + keys.LAST, limit),
    ).fetchall()
    more = bool(found) and len(found) == limit
    upto = keys.number(found[-1][0]) if more else mark(connection, scope)
    ended = connection.execute(
        f"SELECT key & {keys.LAST}, ended FROM {table} WHERE key >> {keys.BITS} = ? AND ended IS NOT NULL"
        " AND ended > ? AND ended <= ? ORDER BY ended, key",
        (scope.id, after, upto),
    ).fetchall()
    endings = np.array(ended, dtype=np.int64).reshape(-1, 2)
    return Changes(upto, _batch(found, scope, unit, dimension), endings, more=more)


def texts(connection: sqlite3.Connection, scope: Scope, unit: Unit, *, after: int, limit: int) -> list[tuple[int, str]]:
    """What indexed rows are found by; a damaged text is empty, so that its row is found by nothing."""
    if unit == "experience":
        query = (
            f"SELECT e.key & {keys.LAST}, e.instruction FROM experience_vectors AS v JOIN experiences AS e"
            " ON e.key = v.key WHERE v.key > ? AND v.key <= ? ORDER BY v.key LIMIT ?"
        )
    else:  # every row of an item has a vector
        query = (
            f"SELECT key & {keys.LAST}, title || char(10) || description || char(10) || content FROM items"
            " WHERE key > ? AND key <= ? ORDER BY key LIMIT ?"
        )
    found = connection.execute(query, (scope.base + after, scope.base + keys.LAST, limit)).fetchall()
    for place, (seq, text) in enumerate(found):
        if not isinstance(text, str):
            found[place] = seq, ""
            what = f"scope {scope.name!r}: the text of {unit} number {seq}"
            _log.warning("%s", rows.damaged(scope.location, what))
    return found


def _batch(found: list[Row], scope: Scope, unit: Unit, dimension: int) -> VectorBatch:
    """Vectors that are sound, with a warning for each that is not."""
    size = 2 * dimension
    whole = [
        row
        for row in found
        if isinstance(row[4], bytes)
        and len(row[4]) == size
        and zlib.crc32(row[4]) == row[3]
        and isinstance(row[1], int)
        and isinstance(row[2], int)
    ]
    vectors, sound = unpacked(b"".join([row[4] for row in whole]), dimension)
    seqs = np.array([row[0] for row in whole], dtype=np.int64) & keys.LAST
    tasks = np.array([row[1] for row in whole], dtype=np.int64)
    successes = np.array([row[2] for row in whole], dtype=np.bool_)
    if not sound.all():
        seqs, tasks, successes, vectors = seqs[sound], tasks[sound], successes[sound], vectors[sound]
    if len(seqs) < len(found):
        for key in sorted({row[0] for row in found} - {scope.base + seq for seq in seqs.tolist()}):
            what = f"scope {scope.name!r}: the vector of {unit} number {keys.number(key)}"
            _log.warning("%s", rows.damaged(scope.location, what))
    return VectorBatch(seqs, tasks, successes, vectors)
