"""From an address to a scope of a database."""

from __future__ import annotations

import difflib
from pathlib import Path

from rb_dspy.bank import arguments
from rb_dspy.bank.search.postgres import PostgresSearcher
from rb_dspy.bank.search.searchers import Searcher, StoreSearcher
from rb_dspy.bank.store import sql
from rb_dspy.bank.store.base import Reader, Scope
from rb_dspy.bank.store.postgres import PostgresDatabase
from rb_dspy.bank.store.sql import Database, SqlScope
from rb_dspy.bank.store.sqlite import SqliteDatabase
from rb_dspy.errors import InputError, UnknownScope
from rb_dspy.protocols import Embedder


def open_database(url: str | Path | None, *, create: bool) -> Database:
    """The database at ``url``. See ``MemoryBank.open``."""
    if isinstance(url, str) and arguments.is_postgres(url):
        return PostgresDatabase(url, create=create)
    path = arguments.bank_path(url)
    return SqliteDatabase(path, create=create or path is None)


def open_searcher(database: Database, scope: SqlScope) -> Searcher:
    """What ranks the rows of a scope: the database itself if it can, else an index in memory."""
    if isinstance(database, PostgresDatabase):
        return PostgresSearcher(database, scope)
    return StoreSearcher(scope)


def open_scope(database: Database, name: str, embedder: Embedder | None, *, create: bool) -> SqlScope:
    """The scope of this name.

    Raises:
        EmbedderMismatch: The bank belongs to another embedder than this one (None: it is not compared).
        UnknownScope: There is no such scope; the message names those that are there.
    """
    with database.reading() as connection:
        if embedder is not None and sql.embedder_of(connection) is not None:
            sql.check_embedder(connection, (embedder.id, embedder.dimension), database.location)
    try:
        return sql.open_scope(database, name, create=create)
    except UnknownScope as exc:
        with database.reading() as connection:
            known = sql.scope_names(connection)
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        listed = ", ".join(known[:10]) + (", …" if len(known) > 10 else "")
        raise UnknownScope(f"{exc}; {hint}known: {listed or 'none yet'}") from None


def scopes(url: str | Path) -> list[str]:
    """Names of the scopes of the bank at ``url``, which must be there."""
    database = open_database(url, create=False)
    try:
        with database.reading() as connection:
            return sql.scope_names(connection)
    finally:
        database.close()


def resolve_mark(scope: Scope, at: str | int) -> int:
    """The number that ``at`` means: that of a snapshot, or the end of the write that a number belongs to."""
    with scope.reading() as reader:
        if isinstance(at, str):
            return _snapshot_mark(reader, scope, at)
        mark, number = reader.mark(), int(at)
        if not 0 <= number <= mark:
            raise InputError(f"{scope.location}: no state {str(at)[:20]} of scope {scope.name!r}; expected 0 to {mark}")
        return min((entry.seq for entry in reader.journal() if entry.seq >= number), default=mark) if number else 0


def _snapshot_mark(reader: Reader, scope: Scope, name: str) -> int:
    known = {snapshot.name: snapshot.seq for snapshot in reader.snapshots()}
    if name in known:
        return known[name]
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    listed = ", ".join(list(known)[-10:]) or "none yet; snapshot() makes one"
    raise InputError(f"{scope.location}: scope {scope.name!r} has no snapshot {name!r}; {hint}known: {listed}")
