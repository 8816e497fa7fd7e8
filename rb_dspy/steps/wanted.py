"""What a routine may yield besides an ``Ask`` or a ``Do``: a module's call, another routine, several things at once."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial
from threading import Event, Semaphore
from typing import Any

import dspy

from rb_dspy.backbones.stop import stopped, stopping
from rb_dspy.backbones.worker import wait_for
from rb_dspy.steps.ask import Routine, Stopped, Wanted, adrive, drive
from rb_dspy.steps.threads import moment, submit

Result = object
"""What a job gave, or the exception that it raised."""


@dataclass(frozen=True)
class Call:
    """Wanted: what a ``dspy.Module`` gives for these arguments, called as a module is, so that it is traced."""

    module: Any
    args: tuple[Any, ...] = ()

    def run(self) -> Any:
        return self.module(*self.args)

    async def arun(self) -> Any:
        return await self.module.acall(*self.args)


@dataclass(frozen=True)
class Sub:
    """Wanted: what another routine gives; it is made when it is run."""

    make: Callable[[], Routine[Any]]

    def run(self) -> Any:
        return drive(self.make())

    async def arun(self) -> Any:
        return await adrive(self.make())


@dataclass(frozen=True)
class Together:
    """Wanted: the results of several jobs, in their order; what a job raises is its result and costs no other job.

    ``run`` does the first job itself and has a thread for each other one (for each one where the caller's thread runs
    an event loop, in which the first could do less than the others); ``arun`` has a task for each, begun in order.
    Several jobs run each in a copy of the caller's context, so that language models, ledgers, usage and MLflow's spans
    stay where they belong; dspy's trace is handed on job by job, in order, so that it does not depend on who was
    faster. (``dspy.Parallel`` loses usage and spans, and repeats stragglers.)

    What is no ``Exception``, such as Ctrl-C, ends the others before their next step, and a local model at its next
    token. It is raised at once where it meets the caller, as Ctrl-C does; from another thread once the caller's own job
    has ended so.
    """

    jobs: Sequence[Wanted]
    most: int | None = None
    """Threads, or tasks, at a time; None: as many as there are jobs."""

    def run(self) -> list[Result]:
        if len(self.jobs) == 1:
            return [_result(self.jobs[0])]
        stop = Event()
        if not _loops():
            return self._run(stop)
        with stopping(stop), _ending(stop):
            done = submit(self._run, stop)
            wait_for([done])
            return done.result()

    def _run(self, stop: Event) -> list[Result]:
        turn = Semaphore(self.most or len(self.jobs))
        with _merged(len(self.jobs)) as traces, _ending(stop):
            first, *others = [partial(_job, job, trace, stop) for job, trace in zip(self.jobs, traces, strict=True)]
            with turn, _ending(stop):  # taken before the others may, since who waits for a turn does not hear of Ctrl-C
                futures = [submit(_in_turn, turn, other) for other in others]
                done = copy_context().run(first)
            wait_for(futures)  # raises what is no Exception: see _result
            return [done, *(future.result() for future in futures)]

    async def arun(self) -> list[Result]:
        if len(self.jobs) == 1:
            return [await _aresult(self.jobs[0])]
        turn, line = asyncio.Semaphore(self.most or len(self.jobs)), _Line()
        with _merged(len(self.jobs)) as traces:
            tasks: list[asyncio.Task[Result]] = []
            for job, trace in zip(self.jobs, traces, strict=True):
                tasks.append(asyncio.ensure_future(_ajob(job, trace, turn, line, tasks)))
            try:
                return list(await asyncio.gather(*tasks))
            except BaseException:
                _cancel(tasks)
                # Each closes what it holds open.
                for result in await asyncio.gather(*tasks, return_exceptions=True):
                    if isinstance(result, _Fatal):
                        raise result.by from None
                raise


def values(results: Sequence[Result]) -> list[Any]:
    """What the jobs gave; raises what the first that failed raised."""
    for result in results:
        if isinstance(result, Exception):
            raise result
    return list(results)


def _in_turn(turn: Semaphore, job: Callable[[], Result]) -> Result:
    with turn:
        return job()


def _job(job: Wanted, trace: list[Any] | None, stop: Event) -> Result:
    with stopping(stop), _tracing(trace):
        try:
            return Stopped("stopped before it began") if stopped() else _result(job)
        except BaseException:
            stop.set()  # here, since the next job in line may begin before the caller hears of what was raised
            raise


@contextlib.contextmanager
def _ending(stop: Event) -> Iterator[None]:
    """What is raised inside the block ends all work that ``stop`` stands for."""
    try:
        yield
    except BaseException:
        stop.set()
        raise


def _loops() -> bool:
    """Whether an event loop runs in this thread, such as a notebook's."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


class _Fatal(Exception):
    """Stands for ``by`` until the other tasks have closed what they hold open: a task that raises that itself stops the
    event loop at once, and with it who waits for the task.
    """

    def __init__(self, by: BaseException) -> None:
        super().__init__(by)
        self.by = by


class _Line:
    """Jobs begin one after the other: the next when the one before waits, and other threads have had a moment.

    dspy makes a prompt on the event loop, and of it a request in another thread. All at once, all prompts would be made
    before the first request is sent: no model would be at work meanwhile, and all answers come at once, too.
    """

    def __init__(self) -> None:
        self._begins = asyncio.Lock()

    async def begun(self) -> None:
        """It is this job's turn to begin."""
        await self._begins.acquire()
        asyncio.get_running_loop().call_soon(self._pass)  # when this job waits for the first time

    def _pass(self) -> None:
        try:
            asyncio.wrap_future(moment()).add_done_callback(lambda _: self._begins.release())
        except BaseException:
            self._begins.release()
            raise


async def _ajob(
    job: Wanted, trace: list[Any] | None, turn: asyncio.Semaphore, line: _Line, tasks: Sequence[asyncio.Task[Result]]
) -> Result:
    async with turn:
        await line.begun()
        try:
            with _tracing(trace):
                return await _aresult(job)
        except (KeyboardInterrupt, SystemExit) as exc:
            _cancel(task for task in tasks if task is not asyncio.current_task())  # before the next in line begins
            raise _Fatal(exc) from None


def _cancel(tasks: Iterable[asyncio.Task[Result]]) -> None:
    for task in tasks:
        if not task.cancelling():  # a second time, and it would not wait for blocking work under way
            task.cancel()


def _result(job: Wanted) -> Result:
    try:
        return job.run()
    except Exception as exc:  # noqa: BLE001 (it is the result: whoever asked for several jobs decides what it costs)
        return exc


async def _aresult(job: Wanted) -> Result:
    try:
        return await job.arun()
    except Exception as exc:  # noqa: BLE001 (as above)
        return exc


@contextlib.contextmanager
def _merged(jobs: int) -> Iterator[Sequence[list[Any] | None]]:
    """A trace for each job; when all are done, the caller's trace gets them one after the other."""
    outer = dspy.settings.trace
    if outer is None:
        yield [None] * jobs
        return
    traces: list[list[Any]] = [[] for _ in range(jobs)]
    yield traces
    for trace in traces:
        outer.extend(trace)
    del outer[: max(0, len(outer) - dspy.settings.max_trace_size)]


def _tracing(trace: list[Any] | None) -> contextlib.AbstractContextManager[None]:
    return contextlib.nullcontext() if trace is None else dspy.context(trace=trace)
