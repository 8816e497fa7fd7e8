"""Whether the work at hand has been given up, for whoever does it: a routine between two steps, a model between two
tokens.

A flag holds for the block that it is set up for, and for what is begun there in other threads, when these get a copy of
the context. Flags add up: work is given up when any block around it is, or when the program ends.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from threading import Event

_ending = Event()
_stops: ContextVar[tuple[Event, ...]] = ContextVar("rb_dspy_stops", default=(_ending,))


class stopping:
    """Work that is begun inside the block is given up once ``stop`` is set. No generator: every job passes here."""

    def __init__(self, stop: Event) -> None:
        self._stop = stop

    def __enter__(self) -> None:
        self._token = _stops.set((*_stops.get(), self._stop))

    def __exit__(self, *raised: object) -> None:
        _stops.reset(self._token)


def watch() -> Callable[[], bool]:
    """A function that says, in any thread, whether the work at hand here and now has been given up."""
    stops = _stops.get()
    return lambda: any(stop.is_set() for stop in stops)


def stopped() -> bool:
    """Whether the work at hand has been given up."""
    return watch()()


def stop_all() -> None:
    """Give up all work of this process, for good: it ends."""
    _ending.set()
