"""Calls side by side, cancellation, and blocking calls under asyncio."""

from __future__ import annotations

import asyncio
import contextvars
import queue
import signal
import threading
import time
from typing import Any

import dspy
import pytest

from rb_dspy.concurrency import Cancelled, check_cancelled, resolve, run_in_thread, run_parallel
from rb_dspy.testing import scripted_lm

NAME: contextvars.ContextVar[str] = contextvars.ContextVar("name", default="nobody")


def test_results_and_exceptions_come_in_the_order_of_the_jobs() -> None:
    broken = ValueError("second")

    def fail() -> str:
        raise broken

    assert run_parallel([lambda: "first", fail, lambda: "third"]) == ["first", broken, "third"]


def test_jobs_run_at_the_same_time_up_to_the_limit() -> None:
    active, most, lock = 0, 0, threading.Lock()

    def job() -> None:
        nonlocal active, most
        with lock:
            active += 1
            most = max(most, active)
        time.sleep(0.02)
        with lock:
            active -= 1

    run_parallel([job] * 6, limit=2)
    assert most == 2
    barrier = threading.Barrier(6, timeout=10)
    assert sorted(run_parallel([barrier.wait] * 6)) == [0, 1, 2, 3, 4, 5]


def test_jobs_see_the_context_of_the_caller_and_do_not_change_it() -> None:
    NAME.set("caller")

    def job() -> str:
        before = NAME.get()
        NAME.set("job")
        return before

    assert run_parallel([job, job]) == ["caller", "caller"]
    assert NAME.get() == "caller"


def test_the_trace_of_dspy_is_in_the_order_of_the_jobs() -> None:
    predict = dspy.Predict("number -> answer")
    lm = scripted_lm(lambda prompt: {"answer": prompt["number"]})

    def job(number: int) -> str:
        time.sleep(0.01 * (3 - number))
        return str(predict(number=str(number)).answer)

    with dspy.context(lm=lm, trace=[]):
        assert run_parallel([lambda n=n: job(n) for n in range(3)]) == ["0", "1", "2"]  # type: ignore[misc]
        assert [inputs["number"] for _, inputs, _ in dspy.settings.trace] == ["0", "1", "2"]


def test_await_runs_in_a_thread_and_many_do_so_at_once() -> None:
    async def main() -> list[int]:
        barrier = threading.Barrier(40, timeout=10)  # more than asyncio's own pool has threads
        return await asyncio.gather(*(run_in_thread(barrier.wait) for _ in range(40)))

    assert sorted(asyncio.run(main())) == list(range(40))


def test_a_cancelled_await_stops_the_work_at_its_next_step() -> None:
    stopped = threading.Event()

    def work() -> None:
        try:
            for _ in range(1000):
                check_cancelled()
                time.sleep(0.005)
        except Cancelled:
            stopped.set()
            raise

    async def main() -> None:
        task = asyncio.create_task(run_in_thread(work))
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert stopped.wait(5)


def test_awaitables_are_resolved_with_and_without_an_event_loop() -> None:
    async def answer() -> int:
        await asyncio.sleep(0)
        return 42

    assert resolve(42) == resolve(answer()) == 42

    async def main() -> int:
        return await run_in_thread(lambda: resolve(answer()))

    assert asyncio.run(main()) == 42

    async def blocks() -> int:  # a notebook
        return resolve(answer())

    async def nested() -> int:
        return await run_in_thread(lambda: resolve(blocks()))

    assert asyncio.run(blocks()) == asyncio.run(nested()) == 42


class Doubled(dspy.Module):
    """Asks in this thread, in threads side by side, or in a coroutine."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.ask = how, dspy.Predict("number -> answer")

    def forward(self, number: str) -> Any:
        if self.how == "coroutine":
            return resolve(self.ask.acall(number=number))
        (*_, last) = run_parallel([lambda: self.ask(number=number)] * (3 if self.how == "side by side" else 1))
        if isinstance(last, Exception):
            raise last
        return last

    async def aforward(self, number: str) -> Any:
        return await run_in_thread(self.forward, number)


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("how", ["this thread", "side by side", "coroutine"])
def test_streams_of_dspy_end_with_the_prediction(how: str, is_async: bool) -> None:
    streamed = dspy.streamify(Doubled(how), is_async_program=is_async)

    async def main() -> list[Any]:
        with dspy.context(lm=scripted_lm(lambda prompt: {"answer": 2 * prompt["number"] + "." * 200})):
            return [each async for each in streamed(number="21")]

    *tokens, prediction = asyncio.run(asyncio.wait_for(main(), 20))
    assert prediction.answer == "2121" + "." * 200
    assert bool(tokens) == (how == "this thread" or (how == "coroutine" and is_async))


def test_ctrl_c_stops_jobs_at_their_next_step_and_starts_no_others() -> None:
    begun: list[int] = []
    ended: queue.Queue[int] = queue.Queue()

    def job(number: int) -> None:
        begun.append(number)
        if len(begun) == 2:
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        try:
            for _ in range(2000):
                check_cancelled()
                time.sleep(0.005)
        finally:
            ended.put(number)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have it ignored
    try:
        with pytest.raises(KeyboardInterrupt):
            run_parallel([lambda n=n: job(n) for n in range(10)], limit=2)  # type: ignore[misc]
    finally:
        signal.signal(signal.SIGINT, before)
    assert {ended.get(timeout=10), ended.get(timeout=10)} == set(begun) == {0, 1}
