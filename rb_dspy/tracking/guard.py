"""Tracking is never in the way: what goes wrong in it is said once and costs the run nothing."""

from __future__ import annotations

import logging
from collections.abc import Callable
from threading import Event
from typing import ParamSpec, TypeVar

from rb_dspy.addresses import without_secrets_in

P = ParamSpec("P")
T = TypeVar("T")

log = logging.getLogger("rb_dspy")

MAX_FAILURES = 3
"""After so many failures in a row nothing more is tried: each may cost a time-out."""


class Guard:
    """Makes the calls that may fail. After the first failure it warns, in one line, and not again."""

    def __init__(self) -> None:
        self.failures = 0
        """In a row."""
        self._warned = Event()

    def part(self) -> Guard:
        """One for calls of another kind, which may work where these fail; what one has said the other does not."""
        made = Guard()
        made._warned = self._warned
        return made

    @property
    def given_up(self) -> bool:
        """Whether nothing is tried any more."""
        return self.failures >= MAX_FAILURES

    def __call__(self, what: str, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | None:
        """What ``function`` gives; None where it fails, or where too much has failed before."""
        if self.given_up:
            return None
        before = self.failures
        try:
            result = function(*args, **kwargs)
        except Exception as exc:  # noqa: BLE001 (MLflow, its database and its server may raise anything)
            self.failures += 1
            self.warn(f"{what}: {type(exc).__name__}: {exc}")
            return None
        if self.failures <= before:  # else a call inside of this one has failed
            self.failures = 0
        return result

    def warn(self, what: str) -> None:
        """Say that something of what was to be tracked is lost, unless that has been said."""
        if not self._warned.is_set():
            self._warned.set()
            said = without_secrets_in(" ".join(what.split()))
            log.warning("tracking: %s; the run goes on, its record in MLflow is incomplete", said[:300])
