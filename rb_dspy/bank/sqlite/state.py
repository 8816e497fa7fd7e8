"""What a write has to know of the file before it writes: whose bank it is, and how far a scope has come."""

from __future__ import annotations

import sqlite3
from typing import NamedTuple

from rb_dspy.bank import refusals
from rb_dspy.bank.sqlite import embedders, keys
from rb_dspy.bank.sqlite.embedders import StoredEmbedder
from rb_dspy.bank.sqlite.scoped import State

_STATE = (
    "SELECT id, seq, chain, (SELECT value FROM meta WHERE key = 'embedder'),"
    " (SELECT value FROM meta WHERE key = 'dimension'), "
    " EXISTS (SELECT 1 FROM pending_rollouts WHERE scope_id = scopes.id)"
    " FROM scopes WHERE name = ?"
)


def scope_row(connection: sqlite3.Connection, scope: str, location: str) -> tuple[int, int, bytes]:
    """Id, highest number and head of a scope. Raises ``UnknownScope``."""
    found: tuple[int, int, bytes] | None = connection.execute(
        "SELECT id, seq, chain FROM scopes WHERE name = ?", (scope,)
    ).fetchone()
    if found is None:
        raise refusals.no_scope(location, scope)
    return found


class ScopeState(NamedTuple):
    """What an append has to know."""

    id: int
    seq: int
    head: bytes
    embedder: StoredEmbedder
    waiting: bool
    """Whether rollouts wait to be learned from."""


def scope_state(connection: sqlite3.Connection, scope: str, location: str) -> ScopeState:
    """All of it with one statement. Raises ``UnknownScope``."""
    found = connection.execute(_STATE, (scope,)).fetchone()
    if found is None:
        raise refusals.no_scope(location, scope)
    id, seq, head, name, dimension, waiting = found
    name, size = embedders.read(name, dimension)
    embedder = None if name is None or size is None else (name, size)
    return ScopeState(id, seq, head, embedder, bool(waiting))


def settled(connection: sqlite3.Connection, state: State) -> int:
    """The last number of the write that the state is in: the next one's entry in the journal comes after it."""
    scope = state.scope
    query = "SELECT min(key) FROM journal WHERE key > ? AND key <= ?"
    (following,) = connection.execute(query, (scope.base + state.at, scope.base + keys.LAST)).fetchone()
    if following is not None:
        return keys.number(following) - 1
    return int(connection.execute("SELECT seq FROM scopes WHERE id = ?", (scope.id,)).fetchone()[0])
