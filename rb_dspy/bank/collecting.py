"""Many new objects, none of them garbage."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """Put off garbage collection while a page of experiences is made.

    Python looks for garbage after every so many new objects; in a page everything lives, and looking through it again
    and again took more than half of the time of a long append. What waits is looked at when the page is done.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
