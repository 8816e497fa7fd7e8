"""Threads that stay: always one more where it is needed, in the caller's context; and they hold up no program's end."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any

import pytest

from rb_dspy.backbones.stop import stopped, stopping, watch
from rb_dspy.steps.ask import Do, Routine
from rb_dspy.steps.threads import submit
from rb_dspy.steps.wanted import Sub, Together

MARK: ContextVar[str] = ContextVar("mark", default="nobody's")


@contextmanager
def marked(value: str) -> Iterator[None]:
    token = MARK.set(value)
    try:
        yield
    finally:
        MARK.reset(token)


def test_a_job_gives_or_raises_and_sees_the_callers_context() -> None:
    with marked("the caller's"):
        assert submit(MARK.get).result(5) == "the caller's"
    assert submit(divmod, 7, 2).result(5) == (3, 1)
    for error in (ZeroDivisionError("a bug"), KeyboardInterrupt(), SystemExit(3)):
        assert submit(_raise, error).exception(5) is error
    assert submit(MARK.get).result(5) == "nobody's"


def _raise(error: BaseException) -> None:
    raise error


def test_idle_threads_are_used_again() -> None:
    used = set()
    for _ in range(20):
        used.add(submit(threading.get_ident).result(5))
        time.sleep(0.005)  # it is idle a little later than its job is done
    assert len(used) < 4
    assert threading.get_ident() not in used


def test_there_is_always_a_thread_for_another_job() -> None:
    def nested(depth: int) -> int:
        return 1 + sum(future.result(20) for future in [submit(nested, depth - 1) for _ in range(2)]) if depth else 1

    assert submit(nested, 5).result(20) == 63
    barrier = threading.Barrier(100)
    assert sorted(future.result(20) for future in [submit(barrier.wait, 20) for _ in range(100)]) == list(range(100))


def test_many_callers_get_each_their_own() -> None:
    wrong: list[tuple[int, int]] = []

    def caller(number: int) -> None:
        for turn in range(200):
            if submit(lambda n=number, t=turn: (n, t)).result(20) != (number, turn):
                wrong.append((number, turn))

    callers = [threading.Thread(target=caller, args=(number,)) for number in range(8)]
    for thread in callers:
        thread.start()
    for thread in callers:
        thread.join(60)
    assert wrong == []
    assert not any(thread.is_alive() for thread in callers)


def test_nothing_of_a_job_is_kept() -> None:
    class Thing:
        pass

    def job(thing: Thing, fails: bool) -> Thing:
        if fails:
            raise ValueError(thing)
        return thing

    for fails in (False, True):
        thing = Thing()
        gone = weakref.ref(thing)
        gc.disable()
        try:
            wait([submit(job, thing, fails)])
            del thing
            time.sleep(0.05)  # the thread lets go after it has told
            assert gone() is None
        finally:
            gc.enable()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_a_forked_child_has_threads_of_its_own() -> None:
    assert submit(divmod, 7, 2).result(5) == (3, 1)
    time.sleep(0.05)  # its thread is idle now, and stays behind
    child = os.fork()
    if child == 0:
        good = False
        try:
            good = submit(divmod, 9, 2).result(5) == (4, 1)
        finally:
            os._exit(0 if good else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def _ends(program: str) -> tuple[int, str, float]:
    """Exit code and output of a program, and how long it went on after its last line."""
    with subprocess.Popen(
        [sys.executable, "-W", "error", "-c", program], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        late = threading.Timer(30, process.kill)
        late.start()
        first = process.stdout.readline()
        started = time.monotonic()
        said = first + process.stdout.read()
        code = process.wait()
        late.cancel()
        return code, said, time.monotonic() - started


def test_the_end_of_a_program_waits_for_no_job_that_blocks() -> None:
    code, said, seconds = _ends("""
import sys, threading, time
from rb_dspy.steps.threads import submit
begun = threading.Event()
submit(lambda: (begun.set(), time.sleep(30)))
begun.wait()
print("ends", flush=True)
sys.exit(7)
""")
    assert (code, said) == (7, "ends\n")
    assert seconds < 10


def test_at_the_end_of_a_program_routines_under_way_close_what_they_hold() -> None:
    code, said, seconds = _ends("""
import sys, threading, time
from rb_dspy.steps.ask import Do, drive
from rb_dspy.steps.threads import submit
begun = threading.Event()
def routine():
    try:
        while True:
            yield Do("a step", lambda: (begun.set(), time.sleep(0.01)))
    finally:
        print("closed", flush=True)
submit(lambda: drive(routine()))
begun.wait()
print("ends", flush=True)
""")
    assert (code, said) == (0, "ends\nclosed\n")
    assert seconds < 10


def test_work_is_given_up_with_any_block_around_it_and_with_no_other() -> None:
    outer, inner, other = threading.Event(), threading.Event(), threading.Event()
    with stopping(other):
        pass
    with stopping(outer):
        around = watch()
        with stopping(inner):
            within = watch()
            elsewhere = submit(watch).result(5)
            assert not stopped()
            other.set()
            assert not stopped()
            inner.set()
            assert stopped()
        assert not stopped()
    assert (around(), within(), elsewhere()) == (False, True, True)
    outer.set()
    assert around()
    assert not stopped()


@pytest.mark.parametrize("where", ["in a job", "while waiting"])
def test_an_interrupt_reaches_jobs_within_jobs(where: str) -> None:
    log: list[int] = []
    begun = threading.Semaphore(0)

    def steps() -> Routine[None]:
        for number in range(300):
            yield Do("a step", partial(time.sleep, 0.01))
            log.append(number)
            begun.release()

    def group() -> Routine[Any]:
        return (yield Together([Sub(steps), Sub(steps)]))

    class Interrupt:
        def run(self) -> None:
            assert begun.acquire(timeout=10)
            if where == "in a job":
                raise KeyboardInterrupt
            os.kill(os.getpid(), signal.SIGINT)  # reaches the main thread

        async def arun(self) -> None:
            raise NotImplementedError

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            Together([Sub(group), Interrupt()]).run()
    finally:
        signal.signal(signal.SIGINT, before)
    time.sleep(0.1)
    seen = len(log)
    time.sleep(0.1)
    assert len(log) == seen < 300


def test_a_future_is_that_of_the_standard_library() -> None:
    assert isinstance(submit(int), Future)  # asyncio.wrap_future and concurrent.futures.wait take no other
