"""Tracking is never in the way: what goes wrong in it is said once and costs the run nothing."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Event
from typing import ParamSpec, TypeVar

from rb_dspy.addresses import without_secrets_in
from rb_dspy.tracking.said import said

P = ParamSpec("P")
T = TypeVar("T")

log = logging.getLogger("rb_dspy")

MAX_FAILURES = 3
"""After so many failures in a row nothing more is tried: each may cost a time-out."""
MAX_SECONDS = 20.0
"""Nor after so many seconds of failures, of a guard and all its parts together: so much a run may wait for nothing."""


@dataclass
class _Family:
    """What a guard and its parts have in common."""

    warned: Event = field(default_factory=Event)
    seconds: float = 0.0
    """Lost in calls that failed."""


class Guard:
    """Makes the calls that may fail. After the first failure it warns, in one line, and not again."""

    def __init__(self) -> None:
        self.failures = 0
        """In a row."""
        self._family = _Family()

    def part(self) -> Guard:
        """One for calls of another kind, which may work where these fail; what one has said the other does not, and the
        seconds that one loses are lost to both."""
        made = Guard()
        made._family = self._family
        return made

    @property
    def given_up(self) -> bool:
        """Whether nothing is tried any more."""
        return self.failures >= MAX_FAILURES or self._family.seconds >= MAX_SECONDS

    def __call__(self, what: str, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | None:
        """What ``function`` gives; None where it fails, or where too much has failed before."""
        if self.given_up:
            return None
        before, began, lost = self.failures, time.monotonic(), self._family.seconds
        try:
            result = function(*args, **kwargs)
        except Exception as exc:  # noqa: BLE001 (MLflow, its database and its server may raise anything)
            self.failures += 1
            self._family.seconds = max(self._family.seconds, lost + time.monotonic() - began)
            self.warn(f"{what}: {type(exc).__name__}: {said(exc)}")
            return None
        if self.failures <= before:  # else a call inside of this one has failed
            self.failures = 0
        return result

    def warn(self, what: str) -> None:
        """Say that something of what was to be tracked is lost, unless that has been said."""
        if not self._family.warned.is_set():
            self._family.warned.set()
            told = without_secrets_in(" ".join(what.split()))
            log.warning("tracking: %s; the run goes on, its record in MLflow is incomplete", told[:300])
