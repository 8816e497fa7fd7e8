"""How rows are found by their ids: through integers made of their scope and a hash of the id, in two tables.

Ids are hashes, so that an index over them gets its entries in no order: a page of a long append would change nearly all
pages of a large one, and write each of them twice. So entries come into the small table ``recent_ids`` first, and go on
to ``ids`` by the ten thousand, in order. The integer takes a third of an id's bytes. It is not unique, so whoever looks
by it compares the ids as well.
"""

from __future__ import annotations

import sqlite3
import zlib

BITS = 32
"""Of the integer, those that are the id's hash; the others are the scope's number."""

_MOVED = 1 << 15
"""Numbers of a scope after which its entries go on."""


def hashed(id: str) -> int:
    """A hash of any text, 32 bits; never to be changed, since it is stored."""
    return zlib.crc32(id.encode("utf-8", "surrogatepass"))


def of_hash(scope_id: int, hash: int) -> int:
    """What a row whose id has this hash is found by."""
    return (scope_id << BITS) + hash


def of_id(scope_id: int, id: str) -> int:
    """What a row with this id is found by."""
    return of_hash(scope_id, hashed(id))


def places(id_key: str) -> str:
    """A query for the keys of all rows that are found by ``id_key``, a term."""
    return f"SELECT key FROM ids WHERE id_key = {id_key} UNION ALL SELECT key FROM recent_ids WHERE id_key = {id_key}"


def named(table: str) -> str:
    """The condition that a row has the id that ``State.named`` gives the parameters of."""
    # With a plus: SQLite would take an index that begins with the scope for a better one.
    return f"{table}.key IN ({places(':id_key')}) AND {table}.id = :id AND +{table}.scope_id = :scope"


def listed(table: str, alias: str) -> str:
    """The rows that have one of the ids that ``State.listed`` gives the parameters of."""
    return (
        f"json_each(:id_keys) AS given CROSS JOIN {table} AS {alias} ON {alias}.key IN ({places('given.value')})"
        f" AND +{alias}.scope_id = :scope AND {alias}.id IN (SELECT value FROM json_each(:ids))"
    )


def another(item: str, where: str) -> str:
    """The condition that an item may have other rows than this one; ``where``: which of them count, as ``s``.

    Answered by an index of the few rows that are not the first of their items.
    """
    return (  # CASE, since SQLite works out both sides of an OR
        f"CASE WHEN {item}.again IS NOT NULL THEN 1 ELSE EXISTS (SELECT 1 FROM items AS s"
        f" WHERE s.scope_id = {item}.scope_id AND s.id = {item}.id AND s.again IS NOT NULL AND {where}) END"
    )


def go_on(connection: sqlite3.Connection, scope_id: int, before: int, now: int) -> None:
    """Move a scope's entries on, where it has come far enough from number ``before`` to ``now``."""
    if before // _MOVED < now // _MOVED:
        these = "recent_ids WHERE id_key BETWEEN ? AND ?"
        scope = of_hash(scope_id, 0), of_hash(scope_id + 1, 0) - 1
        connection.execute(f"INSERT INTO ids SELECT id_key, key FROM {these} ORDER BY id_key, key", scope)
        connection.execute(f"DELETE FROM {these}", scope)
