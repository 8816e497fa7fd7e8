"""A command that is told to end, as ``kill``, ``docker stop`` or a batch system does, ends as with Ctrl-C."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType

TERMINATED = 128 + signal.SIGTERM
"""The exit code that shells expect of it."""


class Ending:
    """Whether SIGTERM came."""

    def __init__(self) -> None:
        self.told = False

    def hear(self, number: int, frame: FrameType | None) -> None:
        """The signal's handler. Raises ``KeyboardInterrupt`` in the main thread, wherever that is."""
        self.told = True
        raise KeyboardInterrupt


@contextlib.contextmanager
def told_to_end() -> Iterator[Ending]:
    """SIGTERM interrupts what is done inside the block; who has chosen something else for it keeps that."""
    ending = Ending()
    mine = threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    if mine:
        signal.signal(signal.SIGTERM, ending.hear)
    try:
        yield ending
    finally:
        if mine:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
