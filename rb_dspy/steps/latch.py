"""Waiting inside one of several jobs until the others have come to a certain point."""

from __future__ import annotations

import asyncio
from threading import Event, Lock

from rb_dspy.backbones.stop import watch
from rb_dspy.steps.ask import Stopped

_LOOK = 0.2
"""Seconds after which a thread looks again whether the work was given up: then the others may never get there."""


class Latch:
    """Wanted: that ``count`` was called ``number`` times, by jobs in threads or all on the event loop that waits.

    Raises ``Stopped`` where the work is given up meanwhile.
    """

    def __init__(self, number: int) -> None:
        self._missing = number
        self._lock = Lock()
        self._open = Event()
        self._waiting: list[asyncio.Event] = []

    def count(self) -> None:
        """Another one is there."""
        with self._lock:
            self._missing -= 1
            if self._missing > 0:
                return
        self._open.set()
        for event in self._waiting:
            event.set()

    def run(self) -> None:
        stopped = watch()
        while not self._open.wait(_LOOK):
            if stopped():
                raise Stopped("stopped: what this waited for was given up")

    async def arun(self) -> None:
        event = asyncio.Event()
        self._waiting.append(event)
        if not self._open.is_set():
            await event.wait()
