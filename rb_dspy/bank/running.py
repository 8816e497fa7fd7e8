"""Runs that are at work on a bank, so that nobody takes from a living one what it goes on with itself."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from rb_dspy.bank.interface import BankStore
from rb_dspy.errors import InputError

_mine: ContextVar[frozenset[tuple[int, str, str]]] = ContextVar("rb_dspy_runs", default=frozenset())
"""The runs that this context is of: the identity of the store, the scope, the name."""


@contextmanager
def running(store: BankStore, scope: str, run_id: str) -> Iterator[None]:
    """See ``MemoryBank.running``."""
    me = id(store), scope, run_id
    if me in _mine.get():
        yield
        return
    over = store.claim(scope, run_id)
    if over is None:
        raise InputError(
            f"{store.location}: a run named {run_id!r} is at work in scope {scope!r}, here or in another process; wait"
            " until it has ended, or name this one anew"
        )
    _mine.set(_mine.get() | {me})
    try:
        yield
    finally:
        _mine.set(_mine.get() - {me})  # no token: blocks may end in another order than they began
        over()


def elsewhere(store: BankStore, scope: str, run_id: str) -> bool:
    """Whether a run of this name is at work, and this context is none of it."""
    return run_id != "" and (id(store), scope, run_id) not in _mine.get() and store.at_work(scope, run_id)
