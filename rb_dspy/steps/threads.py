"""Threads that stay for the next job.

Starting a thread takes a turn of the interpreter's lock and of a processor, one after the other for all k: on a busy
machine some milliseconds each. An idle one costs nothing but its stack.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from functools import cache
from typing import TypeVar

T = TypeVar("T")

_MOST = 1_000_000
"""In effect no limit: there is always a thread for another job, so that a job may wait for jobs of its own."""


def submit(function: Callable[..., T], *args: object) -> Future[T]:
    """Call ``function`` in a thread, in a copy of the caller's context."""
    return kept().submit(copy_context().run, function, *args)


@cache
def kept() -> ThreadPoolExecutor:
    """The threads of this process; they end with it."""
    return ThreadPoolExecutor(_MOST, thread_name_prefix="rb-dspy")


os.register_at_fork(after_in_child=kept.cache_clear)
