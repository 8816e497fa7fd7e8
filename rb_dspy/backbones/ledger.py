"""Who used how much: LM calls, tokens and seconds per role, right under threads.

dspy's own tracker is copied for each of its threads, and what is counted there is lost. Here every call reports to the
ledgers that were open, in its context, when it was made. They ride on dspy's settings, which reach copied contexts and
the threads that dspy starts.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Self

import dspy

from rb_dspy.schema import RoleUsage, Usage


class Ledger:
    """A sum per role. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._roles: Usage = {}
        self._unreadable: Counter[str] = Counter()

    def add(self, role: str, usage: RoleUsage, *, unreadable: bool = False) -> None:
        """Add ``usage`` to what ``role`` has used. ``unreadable``: its answer could not be read, nor its repair."""
        with self._lock:
            self._roles[role] = self._roles.get(role, RoleUsage()) + usage
            self._unreadable[role] += unreadable

    def usage(self) -> Usage:
        """Role -> what it used so far; a copy."""
        with self._lock:
            return dict(self._roles)

    def unreadable(self) -> dict[str, int]:
        """Role -> how many of its answers could not be read; roles that were always understood are left out."""
        with self._lock:
            return dict(+self._unreadable)


@contextmanager
def metered(ledger: Ledger | None = None) -> Iterator[Ledger]:
    """A ledger, fresh or ``ledger``, for the calls made inside the block, in this context and in copies of it.

    Blocks nest: an inner block's calls count in the outer one too.
    """
    ledger = Ledger() if ledger is None else ledger
    with dspy.context(rb_dspy_ledgers=(*_open(), ledger)):
        yield ledger


def report(role: str, usage: RoleUsage, *, unreadable: bool = False) -> None:
    """``Ledger.add`` for every ledger that is open in this context."""
    for ledger in _open():
        ledger.add(role, usage, unreadable=unreadable)


def _open() -> tuple[Ledger, ...]:
    found: tuple[Ledger, ...] = dspy.settings.get("rb_dspy_ledgers", ())
    return found


class Meter:
    """Stands in as dspy's ``usage_tracker`` for one call; passes on to the one that was there before.

    dspy calls ``add_usage`` once for each response that was not served from its cache.
    """

    def __init__(self, outer: Any = None) -> None:
        self._outer = outer
        self._lock = threading.Lock()
        self.billed_calls = 0
        self.prompt_tokens = 0
        self.completion_tokens = 0

    def add_usage(self, lm: str, usage_entry: Mapping[str, Any]) -> None:
        """Count one response; the name and the arguments are dspy's."""
        with self._lock:
            self.billed_calls += 1
            self.prompt_tokens += int(usage_entry.get("prompt_tokens") or usage_entry.get("input_tokens") or 0)
            self.completion_tokens += int(usage_entry.get("completion_tokens") or usage_entry.get("output_tokens") or 0)
        if self._outer is not None:
            self._outer.add_usage(lm, usage_entry)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self  # dspy copies it for each of its threads, and forgets what is counted there

    def used(self, attempts: int, unanswered: int, seconds: float) -> RoleUsage:
        """What ``attempts`` at a call used. dspy tells nobody of an answer that came from its cache, so those are what
        is left: neither billed nor among the ``unanswered``, which ended in an error.
        """
        return RoleUsage(
            calls=max(attempts, self.billed_calls),  # an adapter of the caller's may ask again by itself
            prompt_tokens=self.prompt_tokens,
            completion_tokens=self.completion_tokens,
            cached_calls=max(0, attempts - unanswered - self.billed_calls),
            seconds=seconds,
        )
