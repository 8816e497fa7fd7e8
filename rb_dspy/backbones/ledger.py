"""Who used how much: LM calls, tokens and seconds per role, right under threads.

dspy's own tracker lives in thread-local settings and misses calls made in other threads. Here every call reports to
the ledgers that were open, in its context, when it was made; a thread in a copied context reports to the same ones.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from rb_dspy.schema import RoleUsage, Usage

_open: ContextVar[tuple[Ledger, ...]] = ContextVar("rb_dspy_ledgers", default=())


class Ledger:
    """A sum per role. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._roles: Usage = {}

    def add(self, role: str, usage: RoleUsage) -> None:
        """Add ``usage`` to what ``role`` has used."""
        with self._lock:
            self._roles[role] = self._roles.get(role, RoleUsage()) + usage

    def usage(self) -> Usage:
        """Role -> what it used so far; a copy."""
        with self._lock:
            return dict(self._roles)


@contextmanager
def metered() -> Iterator[Ledger]:
    """A fresh ledger for the calls made inside the block, in this context and in contexts copied from it.

    Blocks nest: an inner block's calls count in the outer one too.
    """
    ledger = Ledger()
    token = _open.set((*_open.get(), ledger))
    try:
        yield ledger
    finally:
        _open.reset(token)


def report(role: str, usage: RoleUsage) -> None:
    """Add ``usage`` to every ledger that is open in this context."""
    for ledger in _open.get():
        ledger.add(role, usage)


class Meter:
    """Stands in as dspy's ``usage_tracker`` for one call; passes on to the one that was there before.

    dspy calls ``add_usage`` once for each response that was not served from its cache.
    """

    def __init__(self, outer: Any = None) -> None:
        self._outer = outer
        self.billed_calls = 0
        self.prompt_tokens = 0
        self.completion_tokens = 0

    def add_usage(self, lm: str, usage_entry: Mapping[str, Any]) -> None:
        """Count one response; the name and the arguments are dspy's."""
        self.billed_calls += 1
        self.prompt_tokens += int(usage_entry.get("prompt_tokens") or usage_entry.get("input_tokens") or 0)
        self.completion_tokens += int(usage_entry.get("completion_tokens") or usage_entry.get("output_tokens") or 0)
        if self._outer is not None:
            self._outer.add_usage(lm, usage_entry)
