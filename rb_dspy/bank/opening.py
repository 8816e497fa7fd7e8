"""From an address to a store that belongs to the embedder and holds the scope."""

from __future__ import annotations

import difflib
import os
import re
from pathlib import Path

from rb_dspy import plugins
from rb_dspy.bank.commands import bank_options
from rb_dspy.bank.given import file, whole_number
from rb_dspy.bank.index.sidecar import beside
from rb_dspy.bank.interface import BankStore
from rb_dspy.bank.memory.store import MemoryStore
from rb_dspy.errors import EmbedderMismatch, InputError, MissingDependency, UnknownScope
from rb_dspy.protocols import Embedder
from rb_dspy.text import summary_line

_LONG = 10**18
"""Numbers of thousands of digits cannot even be written."""


def open_store(
    url: str | Path | None, scope: str, embedder: Embedder, *, create: bool
) -> tuple[BankStore, Path | None]:
    """The store at ``url``, which holds ``scope``, and the folder for its indexes, None for one in memory.

    See ``MemoryBank.open`` for what can go wrong.
    """
    path = _path(url)
    identity = embedder.id, embedder.dimension

    store = _store(path, create=create)
    try:
        if path is not None and not create and scope not in store.scopes():
            raise UnknownScope(_unknown(store, scope))
        bound = store.bind(*identity, keep=create)
        if bound != identity:
            raise EmbedderMismatch(
                f"{store.location}: filled with the embedder {bound[0]} ({bound[1]} dimensions), opened with"
                f" {identity[0]} ({identity[1]}); open it with the first, or move it to the second with"
                f" rb-dspy bank reindex --embedder NAME{bank_options(store.location)}"
            )
        store.add_scope(scope)
    except BaseException:
        store.close()
        raise
    return store, beside(path) if path else None


def restore_store(url: str | Path, copy: str | Path) -> Path | None:
    """See ``MemoryBank.restore``."""
    path = _path(url)
    if path is None:
        raise InputError(f"bank {url!r}: only a bank in a file can be restored; give its path")
    from rb_dspy.bank.sqlite.restoring import restored  # here, as in ``_store``

    return restored(file(copy).expanduser(), path)


def copy_store(url: str | Path, to: str | Path) -> None:
    """See ``MemoryBank.backup``."""
    path = _path(url)
    if path is None:
        raise InputError(f"bank {url!r}: only a bank in a file can be copied; give its path")
    from rb_dspy.bank.sqlite.copying import copied  # here, as in ``_store``

    copied(path, file(to).expanduser())


def chosen_embedder(given: Embedder | str | object) -> Embedder:
    """An embedder, or the one of this name. Raises ``InputError`` for anything else, ``MissingDependency``."""
    if isinstance(given, str):
        return plugins.embedder(given)
    if not isinstance(given, type) and not plugins.lacks(given, plugins.EMBEDDER):
        found: Embedder = given  # type: ignore[assignment]
        return found
    name = getattr(given, "__name__", repr(given)[:40])
    hint = f": give {name}()" if isinstance(given, type) else ""
    raise InputError(
        f"embedder {name}: expected an object with id, dimension and embed, or the name of an embedder{hint}"
    )


def marked(store: BankStore, scope: str, at: str | int) -> int:
    """The sequence number that ``at`` means: that of the snapshot of this name, or the end of the write it is of."""
    mark = store.mark(scope)
    if not isinstance(at, str):
        number = whole_number(at)
        if number is None:
            raise InputError(f"at {repr(at)[:40]}: expected the name of a snapshot, or a sequence number")
        if 0 <= number <= mark:
            return store.settled(scope, number) if number else 0
        shown = number if abs(number) <= _LONG else f"of {'more' if number > 0 else 'less'} than 18 digits"
        raise InputError(f"{store.location}: no state {shown} of scope {scope!r}; expected 0 to {mark}")
    known = {snapshot.name: snapshot.seq for snapshot in store.snapshots(scope)}
    if at not in known:
        near = difflib.get_close_matches(at, known, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        makes = f"none yet; rb-dspy bank snapshot NAME{bank_options(store.location, scope)} makes one"
        listed = ", ".join(list(known)[-10:]) or makes
        raise InputError(f"{store.location}: scope {scope!r} has no snapshot {at!r}; {hint}known: {listed}")
    return known[at]


def _store(path: Path | None, *, create: bool) -> BankStore:
    if path is None:
        return MemoryStore()
    # Here, so that importing the bank does not import SQLAlchemy. That itself first: of threads that import our module
    # at the same time, most would be told that it lacks a name, and not what it lacks.
    try:
        import sqlalchemy  # noqa: F401
    except ImportError as exc:
        raise MissingDependency(
            f"a bank in a file needs SQLAlchemy ({summary_line(exc, 200)}); pip install sqlalchemy, or open :memory:"
        ) from None
    from rb_dspy.bank.sqlite.store import SqliteStore

    return SqliteStore(path, create=create)


def _path(url: str | Path | None) -> Path | None:
    if url is None or url == ":memory:":
        return None
    text = str(url)
    if not isinstance(url, str | os.PathLike):
        raise InputError(f"bank {text[:80]!r}: expected a path, or :memory:; got {type(url).__name__}")
    scheme = re.match(r"([A-Za-z][A-Za-z0-9+.-]+)://", text) if isinstance(url, str) else None
    if scheme and scheme[1].lower().startswith("postgres"):
        raise InputError("banks on PostgreSQL are not there yet; expected a path, or :memory:")
    if scheme or not text.strip() or not text.isprintable():
        raise InputError(f"bank {text[:80]!r}: expected a path, or :memory:")
    try:
        return Path(url).expanduser()
    except RuntimeError:  # no such user, or one without a home
        raise InputError(f"bank {text[:80]!r}: nobody knows where ~ is there; give the whole path") from None


def _unknown(store: BankStore, scope: str) -> str:
    known = store.scopes()
    near = difflib.get_close_matches(scope, known, n=1)
    listed = ", ".join(known[:10]) + (", …" if len(known) > 10 else "")
    hint = f"did you mean {near[0]!r}? " if near else ""
    return f"{store.location}: no scope {scope!r}; {hint}known: {listed or 'none yet'}"
