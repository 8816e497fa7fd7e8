"""A command that is told to end, by Ctrl-C or as ``kill`` and batch systems do it, ends once, and in order."""

from __future__ import annotations

import _thread
import contextlib
import signal
import sys
import threading
import time
from collections.abc import Iterator
from types import FrameType
from typing import Any

import typer
from rich.text import Text

from rb_dspy.cli.common import err

_HASTE = 1.0
"""Seconds after a signal in which more of them say nothing new: what it interrupted is being put in order."""

_USUAL: dict[int, Any] = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}


class Ending:
    """Whether a signal to end came, and what became of it."""

    def __init__(self) -> None:
        self._number = 0
        self._deaf_until = 0.0

    @property
    def code(self) -> int:
        """The exit code that shells expect of it; 0 where no signal came."""
        return 128 + self._number if self._number else 0

    def hear(self, number: int, frame: FrameType | None) -> None:
        """The signals' handler. Raises ``KeyboardInterrupt`` in the main thread, wherever that is."""
        if time.monotonic() < self._deaf_until:
            return
        self._number = self._number or number
        self._deaf_until = time.monotonic() + _HASTE
        raise KeyboardInterrupt

    def again(self) -> None:
        """What was raised was lost, as in a callback of C's: raise it anew."""
        if self._deaf_until < float("inf"):
            self._deaf_until = 0.0
            again = threading.Timer(0.01, _thread.interrupt_main)
            again.daemon = True
            again.start()

    def conclude(self) -> None:
        """Nothing interrupts any more."""
        self._deaf_until = float("inf")


_endings: list[Ending] = []
"""Those of the commands that run here, the innermost last."""


def interrupted(told: str) -> typer.Exit:
    """Say that the command was interrupted and ``told`` of what is left; from here on nothing interrupts it again.

    Gives what is to be raised.
    """
    for ending in _endings[-1:]:
        ending.conclude()
    err.print(Text(f"interrupted: {told}"))
    return typer.Exit(130)


@contextlib.contextmanager
def told_to_end(*, last: bool) -> Iterator[Ending]:
    """SIGINT and SIGTERM interrupt what is done inside the block; who has chosen something else for one keeps that.

    ``last``: the process ends with the block, and once it was interrupted, signals are not heard in between either.
    """
    ending = Ending()
    mine = []
    if threading.current_thread() is threading.main_thread():
        mine = [number for number, usual in _USUAL.items() if signal.getsignal(number) == usual]
    hook = sys.unraisablehook

    def unraisable(lost: sys.UnraisableHookArgs) -> None:
        if mine and issubclass(lost.exc_type, KeyboardInterrupt):
            ending.again()
        else:
            hook(lost)

    _endings.append(ending)
    sys.unraisablehook = unraisable
    for number in mine:
        signal.signal(number, ending.hear)
    try:
        yield ending
    finally:
        ending.conclude()
        over = last and ending.code
        for number in mine:
            signal.signal(number, signal.SIG_IGN if over else _USUAL[number])
        sys.unraisablehook = hook
        _endings.remove(ending)
