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

from rb_dspy.backbones.worker import Worker

T = TypeVar("T")

_idle: list[Worker] = []


def submit(function: Callable[..., T], *args: object) -> Future[T]:
    """Call ``function`` in a thread, at once, in a copy of the caller's context.

    There is always a thread for another job, so that a job may wait for jobs of its own. None is waited for when the
    program ends: see ``worker``.
    """
    try:
        worker = _idle.pop()
    except IndexError:
        worker = Worker("rb-dspy")
    future = worker.submit(copy_context().run, function, *args)
    future.add_done_callback(lambda _: _idle.append(worker))
    return future


os.register_at_fork(after_in_child=_idle.clear)  # the threads stay with the parent
