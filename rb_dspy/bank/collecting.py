"""Many new objects, none of them garbage."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def uncollected() -> Iterator[Callable[[], None]]:
    """Put off garbage collection while many records are made; gives what looks through them when it suits better.

    Python looks for garbage after every so many new objects; here nearly all of them live, and looking through them
    again and again took more than half of the time of a long append. What has come since the last look is looked at
    once, and all the others at the end.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield lambda: _look(was_on)
    finally:
        if was_on:
            gc.enable()


def _look(was_on: bool) -> None:
    if was_on:
        gc.collect(1)
