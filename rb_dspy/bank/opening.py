"""From an address to a store that belongs to the embedder and holds the scope."""

from __future__ import annotations

import difflib
import re
from pathlib import Path

from rb_dspy.bank.interface import BankStore
from rb_dspy.errors import EmbedderMismatch, InputError, RBError, UnknownScope
from rb_dspy.protocols import Embedder


def open_store(url: str | Path | None, scope: str, embedder: Embedder, *, create: bool) -> tuple[BankStore, int]:
    """The store at ``url``, and the dimension of its vectors. See ``MemoryBank.open`` for what can go wrong."""
    path = _path(url)
    identity = embedder.id, embedder.dimension

    from rb_dspy.bank.store import SqliteStore  # here, so that importing the bank does not import SQLAlchemy

    store = SqliteStore(path, create=create)
    try:
        if path is not None and not create and scope not in store.scopes():
            raise UnknownScope(_unknown(store, scope))
        bound = store.bind(*identity)
        if bound != identity:
            raise EmbedderMismatch(
                f"{store.location}: filled with the embedder {bound[0]} ({bound[1]} dimensions), opened with"
                f" {identity[0]} ({identity[1]}); open it with the first, or use another bank"
            )
        store.add_scope(scope)
    except BaseException:
        store.close()
        raise
    return store, bound[1]


def _path(url: str | Path | None) -> Path | None:
    if url is None or url == ":memory:":
        return None
    text = str(url)
    scheme = re.match(r"([A-Za-z][A-Za-z0-9+.-]+)://", text) if isinstance(url, str) else None
    if scheme and scheme[1].lower().startswith("postgres"):
        raise RBError("banks on PostgreSQL are not there yet; give a path, or :memory:")
    if scheme or not text.strip() or not text.isprintable():
        raise InputError(f"bank {text[:80]!r}: expected a path, or :memory:")
    return Path(url).expanduser()


def _unknown(store: BankStore, scope: str) -> str:
    known = store.scopes()
    near = difflib.get_close_matches(scope, known, n=1)
    listed = ", ".join(known[:10]) + (", …" if len(known) > 10 else "")
    hint = f"did you mean {near[0]!r}? " if near else ""
    return f"{store.location}: no scope {scope!r}; {hint}known: {listed or 'none yet'}"
