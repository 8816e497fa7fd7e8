"""A request on its way to the thread that writes, and the caller who waits for what it gives."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

Request = TypeVar("Request")

Outcome = object
"""What a request gave, or the exception that it raised."""

_LOOK_SECONDS = 60.0


class Waiting(Generic[Request]):
    """One caller's request. Bare locks say how far it got: making a future and waiting for it takes ten times as long.

    ``taken`` and ``withdrawn`` exclude each other: whoever sets one of them holds the writer's lock.
    """

    __slots__ = ("_done", "_performed", "done", "outcome", "request", "taken", "withdrawn")

    def __init__(self, request: Request, *, early: bool) -> None:
        """``early``: whether the caller also waits until it is performed."""
        self.request = request
        self.outcome: Outcome = None
        """What it gives, once it is performed; until it is done it may still become something else."""
        self.done = False
        """Whether the outcome is final: on disk, where it is no exception."""
        self.taken = False
        self.withdrawn = False
        self._done = threading.Lock()
        self._done.acquire()
        self._performed = threading.Lock() if early else None
        if self._performed is not None:
            self._performed.acquire()

    def wait_performed(self, seconds: float) -> bool:
        """Wait until it is performed, whether it is on disk or not yet; False where that takes longer."""
        return self._performed is not None and self._performed.acquire(timeout=seconds)

    def wait_done(self, seconds: float) -> bool:
        """Wait until it is done; False where that takes longer."""
        return self.done or self._done.acquire(timeout=seconds)

    def settle(self) -> None:
        """Wait until it is done, whatever is pressed."""
        while not self.done:
            try:
                self.wait_done(_LOOK_SECONDS)
            except KeyboardInterrupt:
                continue

    def performed(self, outcome: Outcome) -> None:
        """Say what it will give if the transaction gets to the disk."""
        if self._performed is not None:
            self.outcome = outcome
            _open(self._performed)

    def finish(self, outcome: Outcome) -> None:
        """Say what it gave."""
        self.outcome = outcome
        self.done = True
        if self._performed is not None:
            _open(self._performed)
        self._done.release()


def _open(lock: threading.Lock) -> None:
    if lock.locked():
        lock.release()


def tell(taken: Sequence[Waiting[Request]], outcomes: Sequence[Outcome], missing: Callable[[], Exception]) -> None:
    """Give each caller the outcome of its request, ``missing`` where there is none."""
    for place, waiting in enumerate(taken):
        waiting.finish(outcomes[place] if place < len(outcomes) else missing())
