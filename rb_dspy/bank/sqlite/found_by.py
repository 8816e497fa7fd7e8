"""What rows are found by, derived from them: whether it is what it should be, and made anew."""

from __future__ import annotations

import sqlite3
import zlib

from rb_dspy.bank.sqlite import ids, keys

_NAMED = "typeof(id) = 'text'"
"""Whether a row has an id at all."""

_FOUND = (
    f"SELECT id_key(key >> {keys.BITS}, CAST(id AS BLOB)) AS id_key, key FROM experiences WHERE {_NAMED}"
    f" UNION ALL SELECT id_key(key >> {keys.BITS}, CAST(id AS BLOB)), key FROM items WHERE {_NAMED}"
)
"""The entries that ``ids`` and ``recent_ids`` should hold together."""

_AGAIN = (
    f"iif(key IN (SELECT min(key) FROM items WHERE {_NAMED} GROUP BY key >> {keys.BITS}, id), NULL,"
    f" id_key(key >> {keys.BITS}, CAST(id AS BLOB)))"
)
"""``items.again`` of a row, as it should be."""

_OTHER_AGAIN = f"{_NAMED} AND again IS NOT {_AGAIN}"

_WRONG = (
    f"SELECT EXISTS (SELECT 1 FROM ({_FOUND}) AS f WHERE NOT EXISTS (SELECT 1 FROM ids AS s WHERE s.id_key = f.id_key"
    " AND s.key = f.key) AND NOT EXISTS (SELECT 1 FROM recent_ids AS s WHERE s.id_key = f.id_key AND s.key = f.key))"
    " OR (SELECT count(*) FROM ids) + (SELECT count(*) FROM recent_ids)"
    f" <> (SELECT count(*) FROM experiences WHERE {_NAMED}) + (SELECT count(*) FROM items WHERE {_NAMED})"
    f" OR EXISTS (SELECT 1 FROM items WHERE {_OTHER_AGAIN})"
)


def is_wrong(connection: sqlite3.Connection) -> bool:
    """Whether an entry is missing, is another's, or too many."""
    _teach(connection)
    return bool(connection.execute(_WRONG).fetchone()[0])


def make_anew(connection: sqlite3.Connection) -> None:
    """Both tables, and which rows are not the first of their items. Inside the caller's transaction."""
    _teach(connection)
    connection.execute("DELETE FROM ids")
    connection.execute("DELETE FROM recent_ids")
    connection.execute(f"INSERT INTO ids (id_key, key) SELECT id_key, key FROM ({_FOUND}) ORDER BY 1, 2")
    connection.execute(f"UPDATE items SET again = {_AGAIN} WHERE {_OTHER_AGAIN}")


def _teach(connection: sqlite3.Connection) -> None:
    connection.create_function("id_key", 2, _id_key, deterministic=True)


def _id_key(scope_id: int, id: bytes) -> int:
    """``ids.of_id``, of the bytes of a text, which may be damaged."""
    return ids.of_hash(scope_id, zlib.crc32(id))
