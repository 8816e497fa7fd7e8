"""Several things at once: results in order, in the caller's context, and nobody costs another anything."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import Any

import dspy
import pytest

from rb_dspy.errors import InfrastructureError, InputError
from rb_dspy.steps.ask import Do, Routine
from rb_dspy.steps.wanted import Call, Sub, Together, values

BOTH = pytest.mark.parametrize("asynchronous", [False, True], ids=["threads", "asyncio"])
MARK: ContextVar[str] = ContextVar("mark", default="nobody's")


async def results(jobs: Any, asynchronous: bool, most: int | None = None) -> list[Any]:
    together = Together(jobs, most)
    return await together.arun() if asynchronous else together.run()


def late(seconds: float, result: Any = None) -> Do:
    def function() -> Any:
        time.sleep(seconds)
        if isinstance(result, BaseException):
            raise result
        return result

    return Do("waiting", function)


@dataclass(frozen=True)
class Raw:
    """A job that may raise anything, which a ``Do`` would translate."""

    error: BaseException
    after: float = 0.0

    def run(self) -> None:
        time.sleep(self.after)
        raise self.error

    async def arun(self) -> None:
        raise self.error


@BOTH
@pytest.mark.parametrize("most", [None, 1, 2])
async def test_results_are_in_the_order_of_the_jobs(asynchronous: bool, most: int | None) -> None:
    jobs = [late(0.01 * (4 - n), n) for n in range(4)]
    assert await results(jobs, asynchronous, most) == [0, 1, 2, 3]


@BOTH
@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("error", [InputError("bad"), ZeroDivisionError("a bug"), dspy.LMError("down")], ids=repr)
async def test_what_a_job_raises_is_its_result(asynchronous: bool, count: int, error: Exception) -> None:
    found = await results([Raw(error), *[late(0.0, n) for n in range(1, count)]], asynchronous)
    assert found[0] is error
    assert found[1:] == list(range(1, count))
    with pytest.raises(type(error)):
        values(found)


def test_values_raises_what_the_first_that_failed_raised() -> None:
    assert values([1, None, "x"]) == [1, None, "x"]
    with pytest.raises(InputError, match="one"):
        values([1, InputError("one"), InfrastructureError("two")])


@BOTH
async def test_jobs_run_in_the_callers_context_and_leave_none_of_theirs(asynchronous: bool) -> None:
    def look(number: int) -> tuple[str, Any]:
        seen = MARK.get(), dspy.settings.get("rb_dspy_test", None)
        MARK.set(f"of {number}")
        return seen

    token = MARK.set("the caller's")
    try:
        with dspy.context(rb_dspy_test="set"):
            found = await results([Do("looking", partial(look, n)) for n in range(3)], asynchronous)
        assert found == [("the caller's", "set")] * 3
        assert MARK.get() == "the caller's"
    finally:
        MARK.reset(token)


def test_what_the_callers_own_job_sets_stays_with_it() -> None:
    seen: list[str] = []

    def own() -> Routine[None]:
        with dspy.context(rb_dspy_test="the first's"):
            token = MARK.set("the first's")
            yield Do("looking", lambda: seen.append(MARK.get()))
            MARK.reset(token)  # which a context that is not its own would refuse
            MARK.set("left behind")
            yield Do("looking", lambda: seen.append(dspy.settings.rb_dspy_test))

    assert Together([Sub(own), late(0.0)]).run() == [None, None]
    assert seen == ["the first's", "the first's"]
    assert MARK.get() == "nobody's"
    assert dspy.settings.get("rb_dspy_test", None) is None


def test_one_job_needs_no_thread() -> None:
    assert Together([Do("looking", threading.get_ident)]).run() == [threading.get_ident()]
    first, second = Together([Do("looking", threading.get_ident)] * 2).run()
    assert first == threading.get_ident() != second


@BOTH
async def test_no_more_jobs_are_under_way_than_allowed(asynchronous: bool) -> None:
    running, most, lock = 0, 0, threading.Lock()

    def count() -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        time.sleep(0.005)
        with lock:
            running -= 1

    await results([Do("counting", count)] * 6, asynchronous, most=2)
    assert most <= 2
    barrier = threading.Barrier(4)
    assert sorted(await results([Do("meeting", partial(barrier.wait, 5))] * 4, asynchronous)) == [0, 1, 2, 3]


def _steps(log: list[int], pause: float) -> Routine[int]:
    for number in range(200):
        yield Do("a step", partial(time.sleep, pause))
        log.append(number)
    return len(log)


@BOTH
def test_an_interrupt_is_raised_at_once_and_ends_the_others_before_their_next_step(asynchronous: bool) -> None:
    log: list[int] = []
    jobs = [Sub(lambda: _steps(log, 0.01)), Sub(lambda: _steps(log, 0.01)), Raw(KeyboardInterrupt())]
    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        asyncio.run(results(jobs, asynchronous))
    assert time.monotonic() - started < 1
    time.sleep(0.03)
    seen = len(log)
    time.sleep(0.05)
    assert len(log) == seen


def _busy(log: list[int], since: threading.Event) -> Routine[None]:
    """What is done once ``since`` is set."""
    for number in range(50):  # without ever letting another thread have its turn
        yield Do("a step", partial(log.append, number) if since.is_set() else int)


def test_an_interrupt_of_the_caller_waits_for_no_thread_that_blocks() -> None:
    over, waited = threading.Event(), []
    blocking = Do("waiting", lambda: waited.append(over.wait(5)))
    with pytest.raises(KeyboardInterrupt):
        Together([Raw(KeyboardInterrupt()), blocking]).run()
    assert waited == []
    over.set()


def test_an_interrupt_in_a_thread_ends_the_callers_own_job_before_its_next_step() -> None:
    log, closed, raised = [], [], threading.Event()

    def own() -> Routine[None]:
        try:
            for number in range(100):
                yield Do("a step", partial(log.append, number))
                yield Do("the step at which it is interrupted", partial(raised.wait, 5))
                yield late(0.05)  # by then it is heard of
        finally:
            closed.append(threading.get_ident())

    with pytest.raises(KeyboardInterrupt):
        Together([Sub(own), _Interrupting(int, raised)]).run()
    assert log == [0]
    assert closed == [threading.get_ident()]


@dataclass(frozen=True)
class _Pressed:
    """A job that is interrupted by a key while it waits, as a terminal does it."""

    under_way: threading.Event

    def run(self) -> None:
        assert self.under_way.wait(5)
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(5)

    async def arun(self) -> None:
        self.run()


@pytest.mark.parametrize("nested", [False, True])
def test_a_key_that_is_pressed_is_heard_of_in_the_callers_own_job(nested: bool) -> None:
    log: list[int] = []
    under_way = threading.Event()

    def steps() -> Routine[None]:
        for number in range(200):
            yield Do("a step", under_way.set)
            yield late(0.01)
            log.append(number)

    def inner() -> Routine[Any]:
        return (yield Together([_Pressed(under_way), Sub(steps)]))

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    started = time.monotonic()
    try:
        with pytest.raises(KeyboardInterrupt):
            Together([Sub(inner), Sub(steps)] if nested else [_Pressed(under_way), Sub(steps)]).run()
    finally:
        signal.signal(signal.SIGINT, before)
    assert time.monotonic() - started < 3
    time.sleep(0.05)
    seen = len(log)
    time.sleep(0.05)
    assert len(log) == seen


def test_the_callers_own_job_is_first_in_line() -> None:
    """Else the caller would wait for its turn, where it does not hear of Ctrl-C."""
    log: list[int] = []
    jobs = [Do("a step", partial(log.append, number)) for number in range(4)]
    for _ in range(20):
        log.clear()
        Together(jobs, 1).run()
        assert log[0] == 0


async def test_where_an_event_loop_runs_all_jobs_have_threads() -> None:
    """A notebook: what an environment does with asyncio must work for the first rollout too."""

    def looped() -> int:
        asyncio.run(asyncio.sleep(0))
        return threading.get_ident()

    found = Together([Do("looping", looped)] * 3).run()
    assert all(isinstance(one, int) for one in found)
    assert threading.get_ident() not in found
    with pytest.raises(KeyboardInterrupt):
        Together([late(0.0), Raw(KeyboardInterrupt())]).run()


def test_a_job_of_several_may_want_several_done() -> None:
    def inner(depth: int) -> Routine[int]:
        if not depth:
            return 1
        found = yield Together([Sub(partial(inner, depth - 1))] * 3, 1)
        return sum(values(found))

    assert Together([Sub(partial(inner, 3))] * 2, 1).run() == [27, 27]


@dataclass(frozen=True)
class _Interrupting:
    """A job that does this, and is then interrupted."""

    first: Callable[[], Any]
    over: threading.Event

    def run(self) -> None:
        self.first()
        self.over.set()
        raise KeyboardInterrupt

    async def arun(self) -> None:
        self.run()


@dataclass(frozen=True)
class _Twice:
    """A job that waits once, for as short as there is; only asyncio begins jobs one after the other."""

    name: str
    told: list[str]

    def run(self) -> None:
        raise NotImplementedError

    async def arun(self) -> None:
        self.told.append(f"{self.name} begins")
        await asyncio.sleep(0)
        self.told.append(f"{self.name} goes on")


async def test_asyncio_begins_a_job_when_the_one_before_has_had_a_moment() -> None:
    told: list[str] = []
    await results([_Twice(name, told) for name in "abc"], asynchronous=True)
    assert told == [f"{name} {what}" for name in "abc" for what in ("begins", "goes on")]


async def test_asyncio_begins_jobs_where_no_thread_is_to_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> None:
        raise RuntimeError("can't start new thread")

    raised: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: raised.append(context["exception"]))
    monkeypatch.setattr("rb_dspy.steps.wanted.moment", none)
    told: list[str] = []
    await asyncio.wait_for(results([_Twice(name, told) for name in "abc"], asynchronous=True), 10)
    assert len(told) == 6
    assert {str(each) for each in raised} == {"can't start new thread"}


async def test_asyncio_begins_jobs_while_all_threads_of_the_loop_are_busy() -> None:
    done = threading.Event()
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
    busy = asyncio.ensure_future(asyncio.to_thread(done.wait, 10))
    told: list[str] = []
    await asyncio.wait_for(results([_Twice(name, told) for name in "abc"], asynchronous=True), 5)
    done.set()
    assert await busy
    assert len(told) == 6


async def test_who_is_cancelled_in_line_never_begins() -> None:
    told: list[str] = []
    task = asyncio.ensure_future(results([_Twice(name, told) for name in "abc"], asynchronous=True))
    while not told:
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert told == ["a begins"]


@BOTH
def test_jobs_that_had_not_begun_never_do(asynchronous: bool) -> None:
    log: list[int] = []
    over = threading.Event()
    interrupting = _Interrupting(partial(time.sleep, 0.05), over)  # by then all are in line
    with pytest.raises(KeyboardInterrupt):
        asyncio.run(results([interrupting, *[Sub(lambda: _busy(log, over))] * 3], asynchronous, most=1))
    time.sleep(0.02)
    assert log == []


def test_nor_do_they_where_the_caller_is_slow_to_hear_of_the_interrupt() -> None:
    log: list[int] = []
    over, held = threading.Event(), threading.Event()

    def hold(*_: object) -> None:  # runs in the thread that waits for the jobs, its own being done
        held.set()
        time.sleep(0.2)

    def first() -> None:
        while not held.wait(0.05):  # a signal that comes just before it waits would not wake it
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, hold)
    try:
        with pytest.raises(KeyboardInterrupt):
            Together([late(0.0), _Interrupting(first, over), *[Sub(lambda: _busy(log, over))] * 3], 1).run()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert held.is_set()
    assert log == []


@BOTH
async def test_routines_nest(asynchronous: bool) -> None:
    def inner(number: int) -> Routine[int]:
        doubled = yield late(0.0, 2 * number)
        return int(doubled)

    def outer() -> Routine[int]:
        found = yield Together([Sub(partial(inner, n)) for n in range(3)])
        return sum(values(found))

    assert await results([Sub(outer), Sub(outer)], asynchronous) == [6, 6]


@BOTH
async def test_a_routine_is_closed_when_what_it_wants_breaks(asynchronous: bool) -> None:
    closed: list[int] = []

    def holding(number: int) -> Routine[None]:
        try:
            yield Raw(KeyError("a bug"))
        finally:
            closed.append(number)

    found = await results([Sub(partial(holding, n)) for n in range(3)], asynchronous)
    assert [type(one) for one in found] == [KeyError] * 3
    assert sorted(closed) == [0, 1, 2]


class _Named(dspy.Module):
    """A module that notes its calls in dspy's trace, as a predictor would."""

    def forward(self, name: str, pause: float) -> str:
        time.sleep(pause)
        dspy.settings.trace.append(name)
        return name

    async def aforward(self, name: str, pause: float) -> str:
        await asyncio.sleep(pause)
        dspy.settings.trace.append(name)
        return name


@BOTH
async def test_the_trace_is_handed_on_job_by_job(asynchronous: bool) -> None:
    module = _Named()

    def twice(name: str, pause: float) -> Routine[str]:
        yield Call(module, (f"{name}1", pause))
        return str((yield Call(module, (f"{name}2", pause))))

    jobs = [Sub(partial(twice, name, 0.02 - 0.009 * n)) for n, name in enumerate("abc")]
    with dspy.context(trace=["before"]):
        assert await results(jobs, asynchronous) == ["a2", "b2", "c2"]
        assert dspy.settings.trace == ["before", "a1", "a2", "b1", "b2", "c1", "c2"]


async def test_cancelling_waits_for_blocking_work_and_starts_no_more() -> None:
    done: list[int] = []

    def work(number: int) -> None:
        time.sleep(0.05)
        done.append(number)

    job = asyncio.ensure_future(Together([Do("working", partial(work, n)) for n in range(4)], 2).arun())
    await asyncio.sleep(0.02)
    job.cancel()
    with pytest.raises(asyncio.CancelledError):
        await job
    assert sorted(done) == [0, 1]
