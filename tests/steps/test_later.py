"""What is done a little later is done in a thread, unless nobody wants it any more."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable

import pytest

from rb_dspy.steps.later import later

PATIENCE = 30.0


class Job:
    def __init__(self, then: Callable[[], object] = lambda: None) -> None:
        self.needless = False
        self.then = then
        self.done = threading.Event()
        self.thread = 0

    def run(self) -> None:
        self.thread = threading.get_ident()
        self.then()
        self.done.set()


def test_it_is_done_in_a_thread_and_the_caller_goes_on() -> None:
    job = Job()
    later(job)
    assert job.done.wait(PATIENCE)
    assert job.thread != threading.get_ident()


def test_what_has_become_needless_is_not_done() -> None:
    needless, wanted = Job(), Job()
    later(needless)
    later(wanted)
    needless.needless = True
    assert wanted.done.wait(PATIENCE)
    assert not needless.done.is_set()


def test_what_nobody_knows_of_any_more_is_not_done_and_not_held() -> None:
    done = threading.Event()
    later(Job(done.set))
    wanted = Job()
    later(wanted)
    assert wanted.done.wait(PATIENCE)
    assert not done.is_set()


def test_what_takes_long_holds_up_nobody() -> None:
    over = threading.Event()
    long, short = Job(lambda: over.wait(PATIENCE)), Job()
    later(long)
    later(short)
    assert short.done.wait(PATIENCE)
    assert not long.done.is_set()
    over.set()
    assert long.done.wait(PATIENCE)


def test_no_further_thread_waits_for_further_ones() -> None:
    def waiting() -> int:
        return sum(thread.name == "rb-dspy later" for thread in threading.enumerate())

    jobs = [Job() for _ in range(20)]
    later(jobs[0])
    before = waiting()
    for job in jobs:
        later(job)
    assert waiting() == before > 0
    for job in jobs:
        job.needless = True


@pytest.mark.skipif(not hasattr(os, "fork") or sys.version_info >= (3, 12), reason="no fork, or one that warns")
def test_a_forked_process_waits_for_itself() -> None:
    before = Job()
    later(before)  # so that the parent has its thread
    child = os.fork()
    if not child:
        job = Job()
        later(job)
        os._exit(0 if job.done.wait(PATIENCE) and not before.done.is_set() else 1)
    _, status = os.waitpid(child, 0)
    assert status == 0
    assert before.done.wait(PATIENCE)
