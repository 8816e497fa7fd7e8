"""A thread of our own that does one job after the other, and does not hold up the end of the process.

The threads of ``concurrent.futures`` are waited for when Python ends, so that Ctrl-C would last as long as the longest
answer of a language model.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from contextlib import contextmanager
from queue import SimpleQueue
from threading import Thread
from time import monotonic
from typing import Any, TypeVar

from rb_dspy.backbones.ending import hang
from rb_dspy.backbones.stop import stop_all

T = TypeVar("T")

_MOMENT = 0.3
"""Seconds that jobs under way are given when Python ends: enough to end between two tokens, or two steps."""

_LOOK = 0.2
"""Seconds. A Ctrl-C that comes just before Python begins to wait is noticed only when it has waited."""

_under_way: dict[Future[Any], Worker] = {}


class Worker:
    """One daemon thread; jobs are done in the order they came."""

    def __init__(self, name: str) -> None:
        self._native = False
        self._jobs: SimpleQueue[_Job] = SimpleQueue()
        self.thread = Thread(target=_work, args=(self._jobs,), name=name, daemon=True)
        self.thread.start()

    @contextmanager
    def in_native_code(self) -> Iterator[None]:
        """For a job that is in native code which may call Python, or come back to it, and be long in doing so."""
        self._native = True
        try:
            yield
        finally:
            self._native = False

    def leave(self) -> None:
        """At the end of Python: a job that is in native code is not to come back from it. See ``ending.hang``."""
        if self._native:
            hang(self.thread)

    def submit(self, function: Callable[..., T], *args: object) -> Future[T]:
        """Call ``function`` when the jobs before are done; the future holds whatever it raises."""
        future: Future[T] = Future()
        _under_way[future] = self
        future.add_done_callback(lambda done: _under_way.pop(done, None))
        self._jobs.put((future, function, args))
        return future


_Job = tuple[Future[Any], Callable[..., Any], tuple[object, ...]]


def wait_for(futures: Iterable[Future[T]], seconds: float | None = None) -> bool:
    """Wait until all are done, or one of them has raised, which is raised; Ctrl-C is raised soon.

    False where they are not done in ``seconds``.
    """
    waiting, end = set(futures), None if seconds is None else monotonic() + seconds
    while waiting:
        left = _LOOK if end is None else min(_LOOK, end - monotonic())
        if left <= 0:
            return False
        done, waiting = wait(waiting, timeout=left, return_when=FIRST_EXCEPTION)
        for future in done:
            future.result()
    return True


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
    wait(list(_under_way), timeout=_MOMENT)
    for worker in set(_under_way.values()):
        worker.leave()


atexit.register(_end)
if hasattr(os, "register_at_fork"):  # not on Windows, which does not fork
    os.register_at_fork(after_in_child=_under_way.clear)
