"""Threads that stay for the next job.

Starting a thread takes a turn of the interpreter's lock and of a processor, one after the other for all k: on a busy
machine some milliseconds each. An idle one costs nothing but its stack.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Future
from contextvars import copy_context
from typing import TypeVar

import dspy

from rb_dspy.backbones.worker import Worker

T = TypeVar("T")

_NAME = "rb-dspy"

_idle: list[Worker] = []


def submit(function: Callable[..., T], *args: object) -> Future[T]:
    """Call ``function`` in a thread, at once, in a copy of the caller's context.

    There is always a thread for another job, so that a job may wait for jobs of its own. None is waited for when the
    program ends: see ``worker``.
    """
    worker = _taken()
    future = worker.submit(copy_context().run, _apart, function, *args)
    future.add_done_callback(lambda _: _idle.append(worker))
    return future


def moment() -> Future[None]:
    """Done when threads that had something to do have had a moment to begin.

    In a thread of its own, which nobody else can keep busy: who waits for it must not wait for anything else.
    """
    if not _moments:
        _moments.append(Worker("rb-dspy moments"))
    return _moments[0].submit(_nothing)


_moments: list[Worker] = []
"""One, or none yet."""


def _nothing() -> None:
    pass


class Lane:
    """One thread for jobs that belong together, one after the other, such as all of one environment's: what it opened
    in a thread may be for that thread only, as SQLite's connections and browsers are.
    """

    def __init__(self, seconds: float | None = None, whose: str = "") -> None:
        self.seconds = seconds
        """How long a job may take; None: as long as it will."""
        self.lost = False
        """Whether a job took longer. Nobody waits for it any more, nor for those that come after it."""
        self._whose = whose
        self._worker: Worker | None = None
        self.here = False
        """Whether jobs are so short that they are done where they are asked for, also on an event loop."""

    def submit(self, function: Callable[..., T], *args: object) -> Future[T]:
        """As the function of that name, but always in the same thread, which is taken for the first job."""
        if self._worker is None:
            self._worker = _taken()
        return self._worker.submit(copy_context().run, _apart, function, *args)

    def hurry(self, seconds: float) -> None:
        """Jobs may take no more than that from now on."""
        self.seconds = seconds if self.seconds is None else min(seconds, self.seconds)

    def lose(self) -> str:
        """A job takes too long: its thread is left to it, under a name that says so, which is given."""
        assert self._worker is not None, "nothing was submitted"
        self.lost = True
        self._worker.thread.name = f"{_NAME}, left behind by {self._whose}"
        return self._worker.thread.name

    def leave(self) -> None:
        """No job comes any more: the thread is for others when it is done with those there are."""
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.submit(setattr, worker.thread, "name", _NAME).add_done_callback(lambda _: _idle.append(worker))


def _apart(function: Callable[..., T], *args: object) -> T:
    """``function`` without the stream of ``dspy.streamify``, which only dspy's own thread may write to: calls of models
    that came from others would break.
    """
    if dspy.settings.send_stream is None:
        return function(*args)
    with dspy.context(send_stream=None):
        return function(*args)


def _taken() -> Worker:
    try:
        return _idle.pop()
    except IndexError:
        return Worker(_NAME)


if hasattr(os, "register_at_fork"):  # not on Windows, which does not fork
    os.register_at_fork(after_in_child=_idle.clear)  # the threads stay with the parent
    os.register_at_fork(after_in_child=_moments.clear)
