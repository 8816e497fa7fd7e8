"""Waiting in one job for a point that other jobs come to."""

from __future__ import annotations

import asyncio
import threading
from functools import partial

import pytest

from rb_dspy.backbones.stop import stopping
from rb_dspy.steps.ask import Do, Routine, Stopped
from rb_dspy.steps.latch import Latch
from rb_dspy.steps.wanted import Result, Sub, Together

BOTH = pytest.mark.parametrize("asynchronous", [False, True], ids=["threads", "asyncio"])


def _counting(latch: Latch, said: list[str], name: str) -> Routine[None]:
    yield Do("saying", partial(said.append, name))
    latch.count()


def _after(latch: Latch, said: list[str]) -> Routine[None]:
    yield latch
    said.append("after")


@BOTH
@pytest.mark.parametrize("first", [False, True])
async def test_it_opens_when_all_have_counted(asynchronous: bool, first: bool) -> None:
    latch, said = Latch(3), list[str]()
    jobs = [Sub(partial(_counting, latch, said, name)) for name in "abc"]
    together = Together(
        [Sub(partial(_after, latch, said)), *jobs] if first else [*jobs, Sub(partial(_after, latch, said))]
    )
    results: list[Result] = await together.arun() if asynchronous else together.run()
    assert results == [None] * 4
    assert (sorted(said[:3]), said[3:]) == (["a", "b", "c"], ["after"])


@BOTH
async def test_one_that_is_open_is_not_waited_for(asynchronous: bool) -> None:
    latch = Latch(1)
    latch.count()
    await asyncio.wait_for(latch.arun(), 5) if asynchronous else latch.run()


def test_work_that_is_given_up_waits_no_longer() -> None:
    stop = threading.Event()
    with stopping(stop):
        threading.Timer(0.05, stop.set).start()
        with pytest.raises(Stopped):
            Latch(1).run()
