"""What is done a little later, unless it is needless by then: one thread of the process waits for all of it."""

from __future__ import annotations

import logging
import os
import time
from queue import SimpleQueue
from threading import Thread
from typing import Protocol
from weakref import ref

from rb_dspy.steps.threads import submit

log = logging.getLogger("rb_dspy")

SECONDS = 0.5
"""How much later: no longer than anybody would mind doing again, and longer than what short work takes as a whole."""


class Job(Protocol):
    """Something to do, once."""

    @property
    def needless(self) -> bool:
        """Whether there is nothing to do any more."""
        ...

    def run(self) -> None:
        """Do it; in a thread of its own, so that it may wait. It must not raise."""
        ...


class _Clock:
    """The thread that waits. It begins with the first job, and sleeps while there is none."""

    def __init__(self) -> None:
        self._due: SimpleQueue[tuple[float, ref[Job]]] = SimpleQueue()
        self._started = False

    def later(self, job: Job) -> None:
        self._due.put((time.monotonic() + SECONDS, ref(job)))
        if not self._started:
            self._start()

    def _start(self) -> None:
        """Two threads, where two callers come at once, or one is interrupted here, do no harm."""
        try:
            Thread(target=self._wait, name="rb-dspy later", daemon=True).start()
            self._started = True
        except RuntimeError as exc:  # no more threads, or Python ends
            log.warning("nothing can be done later: %s", exc)

    def _wait(self) -> None:
        """As all wait equally long, they are due in the order they came.

        Most are needless soon, and none is to cost a turn of the interpreter's lock: asleep for one, this thread is not
        awakened by the next, and what became needless meanwhile it does not sleep for.
        """
        while True:
            due, named = self._due.get()
            _sleep(due)
            _begin(named)
            while not self._due.empty():
                due, named = self._due.get()
                if _wanted(named) is not None:
                    _sleep(due)
                    _begin(named)


def _sleep(due: float) -> None:
    time.sleep(max(0.0, due - time.monotonic()))


def _begin(named: ref[Job]) -> None:
    job = _wanted(named)
    if job is not None:
        try:
            submit(job.run)
        except RuntimeError as exc:  # as above
            log.warning("nothing can be done later: %s", exc)


def _wanted(named: ref[Job]) -> Job | None:
    job = named()
    return None if job is None or job.needless else job


_clock = _Clock()
"""The process's."""


def later(job: Job) -> None:
    """Run ``job`` in ``SECONDS``, unless it is needless, or nobody else knows of it, by then.

    Takes a microsecond, and raises nothing.
    """
    _clock.later(job)


def _anew() -> None:
    global _clock
    _clock = _Clock()


if hasattr(os, "register_at_fork"):  # not on Windows, which does not fork
    os.register_at_fork(after_in_child=_anew)  # the thread, and what it waits for, stay with the parent
