"""What a routine may yield besides an ``Ask`` or a ``Do``: a module's call, another routine, several things at once."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextvars import copy_context
from dataclasses import dataclass
from threading import Event, Semaphore
from typing import Any

import dspy

from rb_dspy.backbones.stop import stopped, stopping
from rb_dspy.backbones.worker import wait_for
from rb_dspy.steps.ask import Routine, Stopped, Wanted, adrive, drive
from rb_dspy.steps.threads import submit

Outcome = object
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
    """Wanted: the outcomes of several jobs, in their order; what a job raises is its outcome and costs no other job.

    ``run`` does the first job itself and has a thread for each other one; ``arun`` has a task for each. Each job runs
    in a copy of the caller's context, so that language models, ledgers, usage and MLflow's spans stay where they
    belong; dspy's trace is handed on job by job, in order, so that it does not depend on who was faster.
    (``dspy.Parallel`` loses usage and spans, and repeats stragglers.)

    What is no ``Exception``, such as Ctrl-C, is raised at once; then jobs under way end before their next step, and a
    local model at its next token.
    """

    jobs: Sequence[Wanted]
    most: int | None = None
    """Threads, or tasks, at a time; None: as many as there are jobs."""

    def run(self) -> list[Outcome]:
        if len(self.jobs) == 1:
            return [_outcome(self.jobs[0])]
        stop = Event()
        with _merged(len(self.jobs)) as traces:
            turn = Semaphore(self.most or len(self.jobs))
            first, *others = [(job, trace, stop, turn) for job, trace in zip(self.jobs, traces, strict=True)]
            futures: list[Future[Outcome]] = []
            try:
                futures += [submit(_job, *other) for other in others]
                done = copy_context().run(_job, *first)
                wait_for(futures)  # raises what is no Exception: see _outcome
                return [done, *(future.result() for future in futures)]
            except BaseException:
                stop.set()
                raise

    async def arun(self) -> list[Outcome]:
        if len(self.jobs) == 1:
            return [await _aoutcome(self.jobs[0])]
        turn = asyncio.Semaphore(self.most or len(self.jobs))
        with _merged(len(self.jobs)) as traces:
            tasks = [
                asyncio.ensure_future(_ajob(job, trace, turn)) for job, trace in zip(self.jobs, traces, strict=True)
            ]
            try:
                return list(await asyncio.gather(*tasks))
            except BaseException:
                for task in tasks:
                    if not task.cancelling():  # a second time, and it would not wait for blocking work under way
                        task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)  # each closes what it holds open
                raise


def values(outcomes: Sequence[Outcome]) -> list[Any]:
    """What the jobs gave; raises what the first that failed raised."""
    for outcome in outcomes:
        if isinstance(outcome, Exception):
            raise outcome
    return list(outcomes)


def _job(job: Wanted, trace: list[Any] | None, stop: Event, turn: Semaphore) -> Outcome:
    with turn, stopping(stop), _tracing(trace):
        if stopped():
            return Stopped("stopped before it began")
        try:
            return _outcome(job)
        except BaseException:
            stop.set()  # here, since the next job in line may begin before the caller hears of it
            raise


async def _ajob(job: Wanted, trace: list[Any] | None, turn: asyncio.Semaphore) -> Outcome:
    async with turn:
        with _tracing(trace):
            return await _aoutcome(job)


def _outcome(job: Wanted) -> Outcome:
    try:
        return job.run()
    except Exception as exc:  # noqa: BLE001 (it is the outcome: whoever asked for several jobs decides what it costs)
        return exc


async def _aoutcome(job: Wanted) -> Outcome:
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
