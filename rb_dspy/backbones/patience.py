"""When a call that failed in passing is made again: after how long, how often, and until when.

One place for every hosted model, for sync and async calls. dspy's own retries are off there: they sleep through any
``Retry-After``, hear of no stop, and come back all at once.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Any

import dspy
from dspy.clients._http import finite_seconds
from dspy.utils.exceptions import is_retryable_lm_error

from rb_dspy.backbones.stop import stopped
from rb_dspy.errors import InfrastructureError

_log = logging.getLogger("rb_dspy")

SECONDS = 120.0
"""Of waiting, at most, where a server has too many requests: the windows of most providers are a minute long."""
_LONGEST = 30.0
"""Seconds of one wait, at most, where a server does not say how long."""
_WORTH_A_LINE = 5.0
"""Seconds of a wait that people are told of."""
_GLANCE = 0.2
"""Seconds between two looks whether the work has been given up."""


@dataclass(frozen=True)
class Patience:
    """How long one call waits for a server that may come round.

    ``seconds``: of waiting, all in all, where the server has too many requests, or says when to come again; a wait
    that does not fit is not begun. ``retries``: of calls that fail otherwise. ``sleep``, ``asleep`` and ``chance`` are
    those of ``time``, ``asyncio`` and ``random``; tests give others.
    """

    seconds: float = SECONDS
    retries: int = 3
    sleep: Callable[[float], None] = time.sleep
    asleep: Callable[[float], Awaitable[Any]] = asyncio.sleep
    chance: Callable[[], float] = random.random

    def begin(self, model: str) -> Waits:
        """For one call of ``model``."""
        return Waits(self, model)


NONE = Patience(seconds=0, retries=0)
"""Whoever has it asks once."""


class Waits:
    """The waits of one call."""

    def __init__(self, patience: Patience, model: str) -> None:
        self._patience = patience
        self._model = model
        self._tried = 0
        self._failed = 0
        self._waited = 0.0

    def after(self, exc: dspy.LMError) -> float:
        """Seconds to wait before the call is made again. Raises ``exc`` where it is not; jittered, so that calls that
        failed together do not come back together.
        """
        if not is_retryable_lm_error(exc):
            raise exc
        usual = min(2.0**self._tried, _LONGEST) * (1 + self._patience.chance()) / 2
        hint = finite_seconds(exc.retry_after)
        self._tried += 1
        if hint is None and not isinstance(exc, dspy.LMRateLimitError):
            if self._failed == self._patience.retries:
                raise exc
            self._failed += 1
            return usual
        left = self._patience.seconds - self._waited
        if left <= 0 or (hint or 0) > left:
            raise self._given_up(exc, hint)
        pause = min((hint or 0) + usual, left)
        self._tell(exc, pause)
        self._waited += pause
        return pause

    def sleep(self, seconds: float) -> None:
        """Wait. Raises ``InfrastructureError`` once the work that waits has been given up."""
        for part in _parts(seconds):
            self._patience.sleep(part)

    async def asleep(self, seconds: float) -> None:
        """``sleep`` for asyncio."""
        for part in _parts(seconds):
            await self._patience.asleep(part)

    def _tell(self, exc: dspy.LMError, pause: float) -> None:
        """A line in the log, which the command line shows where it is a warning: else a run would seem to hang."""
        most, waited = self._patience.seconds, self._waited
        level = logging.WARNING if pause >= _WORTH_A_LINE else logging.INFO
        _log.log(
            level, "%s: %s; waiting %.0f s (%.0f of at most %g so far)", self._model, _what(exc), pause, waited, most
        )

    def _given_up(self, exc: dspy.LMError, hint: float | None) -> dspy.LMError:
        """``exc``, saying for how long it would have been to wait."""
        what = _what(exc)
        waited = f" after {self._waited:,.0f} s of waiting" if self._waited else ""
        asks = f"{' and' if waited else ','} the server asks for a wait of {hint:,.0f} s" if hint else ""
        told = f"{what}{waited}{asks}: try again later, ask for less at once, or raise the role's patience"
        exc.message = f"{told} (now {self._patience.seconds:g} s): {exc.message}"
        exc.args = (f"[{exc.model}] {exc.message}" if exc.model else exc.message,)
        return exc


def _what(exc: dspy.LMError) -> str:
    return "too many requests" if isinstance(exc, dspy.LMRateLimitError) else "the server is not ready"


def _parts(seconds: float) -> Iterator[float]:
    """``seconds`` in small pieces, so that a stop is heard."""
    while True:
        if stopped():
            raise InfrastructureError(
                "stopped while it waited for a server: the work that this belonged to was given up"
            )
        if seconds <= 0:
            return
        yield min(seconds, _GLANCE)
        seconds -= _GLANCE
