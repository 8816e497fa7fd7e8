"""A request on its way to the thread that writes, and the caller who waits for what it gives."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

Request = TypeVar("Request")

Result = object
"""What a request gave, or the exception that it raised."""

_LOOK_SECONDS = 60.0


class Waiting(Generic[Request]):
    """One caller's request. Bare locks say how far it got: making a future and waiting for it takes ten times as long.

    ``taken`` and ``withdrawn`` exclude each other: whoever sets one of them holds the writer's lock.
    """

    __slots__ = ("_done", "done", "outcome", "request", "taken", "withdrawn")

    def __init__(self, request: Request) -> None:
        self.request = request
        self.outcome: Result = None
        self.done = False
        """Whether the outcome is final: on disk, where it is no exception."""
        self.taken = False
        self.withdrawn = False
        self._done = threading.Lock()
        self._done.acquire()

    def wait_done(self, seconds: float) -> bool:
        """Wait until it is done; False where that takes longer."""
        return self.done or self._done.acquire(timeout=seconds)

    def is_done(self) -> bool:
        """Whether it is done."""
        return self.done

    def settle(self) -> None:
        """Wait until it is done, whatever is pressed."""
        while not self.done:
            try:
                self.wait_done(_LOOK_SECONDS)
            except KeyboardInterrupt:
                continue

    def finish(self, outcome: Result) -> None:
        """Say what it gave."""
        self.outcome = outcome
        self.done = True
        self._done.release()


def tell(taken: Sequence[Waiting[Request]], outcomes: Sequence[Result], missing: Callable[[], Exception]) -> None:
    """Give each caller the outcome of its request, ``missing`` where there is none."""
    for place, waiting in enumerate(taken):
        waiting.finish(outcomes[place] if place < len(outcomes) else missing())
