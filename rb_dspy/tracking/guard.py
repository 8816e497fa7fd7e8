"""Tracking is never in the way: what goes wrong in it is said once and costs the run nothing."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from threading import Lock, local
from typing import ParamSpec, TypeVar

from rb_dspy.tracking.addresses import without_secrets
from rb_dspy.tracking.said import said

P = ParamSpec("P")
T = TypeVar("T")

log = logging.getLogger("rb_dspy")

MAX_FAILURES = 3
"""After so many failures in a row nothing more is tried: each may cost a time-out."""
MAX_SECONDS = 20.0
"""Nor after so many seconds of failures, of a guard and all its parts together: so much a run may wait for nothing."""


class _Family:
    """What a guard and its parts have in common. Safe to use from threads, as they are."""

    def __init__(self) -> None:
        self.lock = Lock()
        """Of all counters, those of the guards as well."""
        self.seconds = 0.0
        """Lost in calls that failed; those that several lost at the same time count once."""
        self._warned = False
        self._lost: list[tuple[float, float]] = []
        """When calls began that failed, and when they ended: in order, and apart from each other."""

    def to_warn(self) -> bool:
        """Whether to warn; so it is once."""
        with self.lock:
            warned, self._warned = self._warned, True
        return not warned

    def lose(self, began: float) -> None:
        """Of a call that has just failed. Needs the lock."""
        ended = time.monotonic()
        while self._lost and self._lost[-1][1] >= began:  # inside of it, or beside it in another thread
            first, last = self._lost.pop()
            began = min(began, first)
            self.seconds -= last - first
        self._lost.append((began, ended))
        self.seconds += ended - began


class Guard:
    """Makes the calls that may fail. After the first failure it warns, in one line, and not again.

    Safe to use from threads.
    """

    def __init__(self) -> None:
        self.failures = 0
        """In a row, of all threads in the order in which calls end."""
        self._family = _Family()
        self._mine = local()
        """``failed``: how many calls have failed in this thread."""

    def part(self) -> Guard:
        """One for calls of another kind, which may work where these fail; what one has said the other does not, and the
        seconds that one loses are lost to both."""
        made = Guard()
        made._family = self._family
        return made

    @property
    def given_up(self) -> bool:
        """Whether nothing is tried any more."""
        with self._family.lock:
            return self.failures >= MAX_FAILURES or self._family.seconds >= MAX_SECONDS

    def __call__(self, what: str, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | None:
        """What ``function`` gives; None where it fails, or where too much has failed before."""
        if self.given_up:
            return None
        before, began = self._failed_here(), time.monotonic()
        try:
            result = function(*args, **kwargs)
        except Exception as exc:  # noqa: BLE001 (MLflow, its database and its server may raise anything)
            self._mine.failed = self._failed_here() + 1
            with self._family.lock:
                self.failures += 1
                self._family.lose(began)
            self.warn(f"{what}: {type(exc).__name__}: {said(exc)}")
            return None
        if self._failed_here() == before:  # else a call inside of this one has failed
            with self._family.lock:
                self.failures = 0
        return result

    def warn(self, what: str) -> None:
        """Say that something of what was to be tracked is lost, unless that has been said."""
        if self._family.to_warn():
            told = without_secrets(" ".join(what.split()))
            log.warning("tracking: %s; the run goes on, its record in MLflow is incomplete", told[:300])

    def _failed_here(self) -> int:
        failed: int = getattr(self._mine, "failed", 0)
        return failed
