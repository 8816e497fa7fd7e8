"""A thread of our own that does one job after the other, and does not hold up the end of the process.

The threads of ``concurrent.futures`` are waited for when Python ends, so that Ctrl-C would last as long as the longest
answer of a language model.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import signal
import sys
from collections.abc import Callable
from concurrent.futures import Future, wait
from queue import SimpleQueue
from threading import Thread
from typing import Any, TypeVar

from rb_dspy.backbones.stop import stop_all

T = TypeVar("T")

_MOMENT = 0.3
"""Seconds that jobs under way are given when Python ends: enough to end between two tokens, or two steps."""

_under_way: dict[Future[Any], Worker] = {}


class Worker:
    """One daemon thread; jobs are done in the order they came.

    ``calls_back``: its jobs are native code that calls Python, and may be long in doing so.
    """

    def __init__(self, name: str, *, calls_back: bool = False) -> None:
        self.calls_back = calls_back
        self._jobs: SimpleQueue[_Job] = SimpleQueue()
        self._thread = Thread(target=_work, args=(self._jobs,), name=name, daemon=True)
        self._thread.start()

    def submit(self, function: Callable[..., T], *args: object) -> Future[T]:
        """Call ``function`` when the jobs before are done; the future holds whatever it raises."""
        future: Future[T] = Future()
        _under_way[future] = self
        future.add_done_callback(lambda done: _under_way.pop(done, None))
        self._jobs.put((future, function, args))
        return future

    def hang(self) -> None:
        """Let the thread do nothing any more, and the process end without a crash; for a Python that is ending.

        Before 3.14, Python ends a thread that comes back to it then, which C++ between the two answers with an abort
        ("FATAL: exception not rethrown"); later ones let it hang, as is done here. And native threads that still
        compute would fall over what the process tears down last, which is therefore left out. Only with glibc:
        elsewhere the end of a thread is no exception to C++.
        """
        if sys.platform != "linux":
            return
        libc = ctypes.PyDLL(None)  # keeps the interpreter's lock, so that the thread cannot hang with it
        if hasattr(libc, "on_exit") and self._thread.ident is not None:
            libc.on_exit(libc._exit, None)  # as the first of what is done after Python, with its exit code
            libc.signal(signal.SIGRTMAX, libc.pause)  # a handler of Python's own would not run in that thread
            signal.pthread_kill(self._thread.ident, signal.SIGRTMAX)


_Job = tuple[Future[Any], Callable[..., Any], tuple[object, ...]]


def _work(jobs: SimpleQueue[_Job]) -> None:
    while True:
        _do(*jobs.get())


def _do(future: Future[Any], function: Callable[..., Any], args: tuple[object, ...]) -> None:
    try:
        if future.set_running_or_notify_cancel():
            future.set_result(function(*args))
    except BaseException as exc:  # noqa: BLE001 (whoever waits for the job gets it, Ctrl-C too)
        future.set_exception(exc)
    finally:
        del future, function, args  # else the error would hold them, and they the error


def _end() -> None:
    """Give jobs under way a moment to close what they hold."""
    stop_all()
    _, late = wait(list(_under_way), timeout=_MOMENT)
    for worker in {_under_way.get(future) for future in late}:
        if worker is not None and worker.calls_back:
            worker.hang()


atexit.register(_end)
os.register_at_fork(after_in_child=_under_way.clear)
