"""Run calls side by side, and run a blocking call under asyncio.

Everything in this package is synchronous: environments, SQLite, FAISS and local models block. Several calls run in
threads; an ``await`` runs the synchronous call in a thread of its own. Each thread gets a copy of the caller's context,
so dspy's settings, callbacks, usage and MLflow's spans carry over. ``dspy.streamify`` gets the tokens of one call at a
time, not those of calls side by side.

Cancellation is cooperative: an interrupted or canceled caller sets a flag, and ``check_cancelled`` raises in the
threads that work for it before their next model call or environment step.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import threading
from asyncio import CancelledError
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any, ParamSpec, TypeVar

import anyio.to_thread
import dspy

from rb_dspy.errors import InfrastructureError, RBError, describe_error

P = ParamSpec("P")
T = TypeVar("T")


class Cancelled(BaseException):
    """The caller was interrupted (Ctrl-C) or canceled. Like ``KeyboardInterrupt``, it is not an ``Exception``."""


_flags: contextvars.ContextVar[tuple[threading.Event, ...]] = contextvars.ContextVar("rb_dspy_cancelled", default=())
_loop: contextvars.ContextVar[asyncio.AbstractEventLoop | None] = contextvars.ContextVar("rb_dspy_loop", default=None)


def check_cancelled() -> None:
    """Raise ``Cancelled`` if a caller of this work was interrupted or canceled."""
    if any(flag.is_set() for flag in _flags.get()):
        raise Cancelled


def guarded(what: str, call: Callable[[], T]) -> T:
    """Call code of the user's; turn its exceptions into an ``InfrastructureError`` of this task. ``what``: for errors.

    Raises ``Cancelled`` instead, as ``check_cancelled`` does.
    """
    check_cancelled()
    try:
        return call()
    except RBError:
        raise
    except (Exception, SystemExit, CancelledError) as exc:  # the last two of the user's own code
        raise InfrastructureError(f"{what} failed: {describe_error(exc, 300)}") from exc


@contextmanager
def _cancellable() -> Iterator[None]:
    """Set the flag of the work that is started in this block if an exception leaves the block."""
    flag = threading.Event()
    token = _flags.set((*_flags.get(), flag))
    try:
        yield
    except BaseException:
        flag.set()
        raise
    finally:
        _flags.reset(token)


def run_parallel(
    jobs: Sequence[Callable[[], T]], limit: int | None = None, *, wait: bool = False
) -> list[T | Exception]:
    """Run ``jobs`` in threads and return their results in the order of the jobs.

    The trace of dspy is merged in the order of the jobs, so optimizers see the same trace every time.

    Args:
        jobs: Functions without arguments.
        limit: Maximum number of jobs at the same time; None: all of them.
        wait: After Ctrl-C, return only when the running jobs have stopped.

    Returns:
        The result of each job, or the exception that it raised.

    Raises:
        KeyboardInterrupt: On Ctrl-C. Queued jobs never start; running ones stop at their next model call or step.
    """
    if len(jobs) <= 1:
        return [_result(job) for job in jobs]
    outer = dspy.settings.trace
    traces: list[list[Any] | None] = [None if outer is None else [] for _ in jobs]

    def run(job: Callable[[], T], trace: list[Any] | None) -> T | Exception:
        with dspy.context(trace=trace, send_stream=None):  # dspy's stream takes tokens from threads of AnyIO only
            return _result(job)

    pool = ThreadPoolExecutor(max_workers=limit or len(jobs), thread_name_prefix="rb-dspy")
    try:
        with _cancellable():
            futures = [
                pool.submit(contextvars.copy_context().run, run, job, trace)
                for job, trace in zip(jobs, traces, strict=True)
            ]
            results = [future.result() for future in futures]
    finally:
        pool.shutdown(wait=wait, cancel_futures=True)
    if outer is not None:
        for trace in traces:
            outer.extend(trace or [])
    return results


def _result(job: Callable[[], T]) -> T | Exception:
    try:
        return job()
    except Exception as exc:  # noqa: BLE001 (an exception is a result; the caller decides which of them it raises)
        return exc


async def run_in_thread(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Await a blocking function, which runs in a thread of its own with the caller's context.

    The pools of asyncio and AnyIO have few threads; here k rollouts of many tasks may wait for a server at once. If the
    await is canceled, the function stops at its next model call or environment step.
    """
    token = _loop.set(asyncio.get_running_loop())
    call, own = partial(function, *args, **kwargs), anyio.CapacityLimiter(1)
    try:
        with _cancellable():
            return await anyio.to_thread.run_sync(call, abandon_on_cancel=True, limiter=own)
    finally:
        _loop.reset(token)


def resolve(value: T | Awaitable[T]) -> T:
    """Return ``value``, or the result of an awaitable, such as the verdict of an async judge.

    It runs on the event loop of the caller that awaits the program, else on a new loop: in a thread of its own if this
    thread has a running one, as in a notebook.
    """
    if not inspect.isawaitable(value):
        return value
    loop = _loop.get()

    async def wait() -> T:
        return await value

    def alone() -> T:
        _loop.set(None)
        with dspy.context(send_stream=None):  # a stream belongs to the loop that made it
            return asyncio.run(wait())

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return alone() if loop is None else asyncio.run_coroutine_threadsafe(wait(), loop).result()
    with ThreadPoolExecutor(max_workers=1) as pool:
        return pool.submit(contextvars.copy_context().run, alone).result()
