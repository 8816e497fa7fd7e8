"""Open a database, and a scope in it, from a URL."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from rb_dspy import plugins
from rb_dspy.bank.search.postgres import PostgresSearcher
from rb_dspy.bank.search.searchers import Searcher, StoreSearcher
from rb_dspy.bank.store import embedders, sql
from rb_dspy.bank.store.overlay import Scope
from rb_dspy.bank.store.postgres import PostgresDatabase
from rb_dspy.bank.store.sql import Database, SqlScope
from rb_dspy.bank.store.sqlite import SqliteDatabase
from rb_dspy.errors import InputError, UnknownScope
from rb_dspy.protocols import Embedder

_POSTGRES = re.compile(r"postgres(ql)?(\+psycopg)?://")
"""How the URL of a PostgreSQL database begins."""


def open_database(url: str | Path | None, *, create: bool) -> Database:
    """Open the database at ``url``. See ``MemoryBank.open``."""
    if isinstance(url, str) and _POSTGRES.match(url):
        return PostgresDatabase(url, create=create)
    path = bank_path(url)
    return SqliteDatabase(path, create=create or path is None)


def bank_path(url: str | Path | None) -> Path | None:
    """The file of a bank; None for a bank in memory. Raises ``InputError``."""
    if url is None or url == ":memory:":
        return None
    name = os.fspath(url)
    if scheme := re.match(r"[A-Za-z][A-Za-z0-9+.-]+://", name) if isinstance(url, str) else None:
        hint = "postgresql://user@host/database"
        if _POSTGRES.match(name):
            hint = "pg_dump and pg_restore (--schema=rb_dspy) for a copy of a bank in PostgreSQL"
        raise InputError(f"bank {scheme[0]}…: expected a path, or {hint}")  # the rest may contain a password
    if not name.strip() or not name.isprintable():
        raise InputError(f"bank {name[:80]!r}: expected a path, :memory:, or postgresql://user@host/database")
    try:
        return Path(name).expanduser()
    except RuntimeError:  # no such user, or a user without a home
        raise InputError(f"bank {name[:80]!r}: the home folder is unknown; give the whole path") from None


def file_of(url: str | Path) -> Path:
    """The file of a bank. Raises ``InputError`` for a bank that is not in a file."""
    path = bank_path(url)
    if path is None:
        raise InputError(f"bank {url!r}: only a bank in a file can be copied or restored; give its path")
    return path


def embedder(value: Embedder | str) -> Embedder:
    """Return the embedder, looked up if ``value`` is a name. Raises ``InputError`` or ``MissingDependency``."""
    if isinstance(value, str):
        return plugins.embedder(value)
    if isinstance(value, type) or plugins.lacks(value, plugins.EMBEDDER):
        raise InputError(f"embedder {value!r:.80}: expected an object with id, dimension and embed, or a name")
    return value


def open_searcher(database: Database, scope: SqlScope) -> Searcher:
    """Return the searcher of a scope: the database itself for PostgreSQL, else an index in memory."""
    if isinstance(database, PostgresDatabase):
        return PostgresSearcher(database, scope)
    return StoreSearcher(scope)


def open_scope(database: Database, name: str, embedder: Embedder | None, *, create: bool) -> SqlScope:
    """Open the scope ``name``. ``embedder`` None: it is not checked whether the bank belongs to it."""
    with database.reading() as connection:
        if embedder is not None and embedders.embedder_of(connection) is not None:
            embedders.check_embedder(connection, (embedder.id, embedder.dimension), database.location)
        known = sql.scope_names(connection)
    if not create and name not in known:
        hint = _known(name, known) or "it has no scopes yet"
        raise UnknownScope(f"{database.location}: no scope {name!r}; {hint}")
    return sql.open_scope(database, name)


def scopes(url: str | Path) -> list[str]:
    """Names of the scopes of the bank at ``url``, which must exist."""
    with closing(open_database(url, create=False)) as database, database.reading() as connection:
        return sql.scope_names(connection)


def resolve_mark(scope: Scope, at: str | int) -> int:
    """Return the number of a snapshot, or the last number of the write that the number ``at`` belongs to."""
    with scope.reading() as reader:
        if isinstance(at, str):
            marks = {snapshot.name: snapshot.seq for snapshot in reader.snapshots()}
            if at not in marks:
                known = _known(at, [*marks]) or "snapshot() creates one"
                raise InputError(f"{scope.location}: scope {scope.name!r} has no snapshot {at!r}; {known}")
            return marks[at]
        mark, number = reader.mark(), int(at)
        if not 0 <= number <= mark:
            raise InputError(f"{scope.location}: no state {str(at)[:20]} of scope {scope.name!r}; expected 0 to {mark}")
        return min((entry.seq for entry in reader.journal() if entry.seq >= number), default=mark) if number else 0


def _known(name: str, names: Sequence[str]) -> str:
    """List the existing names, with a suggestion for ``name``; empty if there are none."""
    near = difflib.get_close_matches(name, names, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return f"{hint}known: {', '.join(names[:10])}{', …' if len(names) > 10 else ''}" if names else ""
