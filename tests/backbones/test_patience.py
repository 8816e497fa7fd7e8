"""When a call of a hosted model that failed is made again. Nobody here sleeps: what would be waited is counted."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import dspy
import pytest
from dspy import lm15

from rb_dspy import Backbones, MemoryBank, ReasoningBank
from rb_dspy.backbones.check import unusable
from rb_dspy.backbones.hosted import HostedLM
from rb_dspy.backbones.patience import Patience
from rb_dspy.backbones.stop import stopping
from rb_dspy.errors import InfrastructureError
from rb_dspy.testing import Lock
from tests.backbones.served import Server
from tests.worlds import lock


async def ask(lm: dspy.LM, asynchronous: bool) -> Any:
    return await lm.acall("hello") if asynchronous else lm("hello")


both = pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])


@both
async def test_a_wait_longer_than_the_patience_is_not_begun_and_is_told(server: Server, asynchronous: bool) -> None:
    server.failing = lambda waited: (429, {"Retry-After": "3600"})
    with pytest.raises(dspy.LMRateLimitError, match="too many requests, the server asks for a wait of 3,600 s"):
        await ask(server.lm(), asynchronous)
    assert (server.asked, server.waited) == (1, 0)


def test_such_a_wait_breaks_the_task_and_says_how_long_it_is(bank: MemoryBank, server: Server) -> None:
    server.failing = lambda waited: (429, {"Retry-After": "3600"})
    program = ReasoningBank(backbones=Backbones(agent=server.config()), environments=Lock.make)
    with pytest.raises(
        InfrastructureError, match=r"^agent \(openai/large\): .*asks for a wait of 3,600 s: try"
    ) as told:
        program(task=lock("acme", 4711), bank=bank)
    assert "slow down" in str(told.value)
    assert server.asked == 1


@both
@pytest.mark.parametrize("status", [429, 503])
async def test_a_wait_that_the_server_asks_for_is_kept_and_a_little_more(
    server: Server, asynchronous: bool, status: int
) -> None:
    server.failing = lambda waited: None if waited >= 7 else (status, {"Retry-After": "7"})
    assert await ask(server.lm(chance=0.5), asynchronous) == ["ready"]
    assert (server.asked, round(server.waited, 6)) == (2, 7.75)


@both
async def test_a_server_that_fails_is_asked_three_times_more(server: Server, asynchronous: bool) -> None:
    server.failing = lambda waited: (500, {})
    with pytest.raises(dspy.LMServerError, match=r"slow down$"):
        await ask(server.lm(), asynchronous)
    assert (server.asked, round(server.waited, 6)) == (4, 1 + 2 + 4)
    server.waited = 0
    server.failing = lambda waited: None if waited else (500, {})
    assert await ask(server.lm(chance=0), asynchronous) == ["ready"]
    assert server.waited == 0.5


@pytest.mark.parametrize("status", [400, 401, 402, 404, 413])
def test_what_will_not_pass_is_not_asked_again(server: Server, status: int) -> None:
    server.failing = lambda waited: (status, {})
    with pytest.raises(dspy.LMError):
        server.lm()("hello")
    assert (server.asked, server.waited) == (1, 0)


@both
async def test_who_waits_hears_a_stop_at_once(server: Server, asynchronous: bool) -> None:
    server.failing = lambda waited: (429, {"Retry-After": "60"})
    stop = threading.Event()

    def sleep(seconds: float) -> None:
        server.sleep(seconds)
        stop.set()

    async def asleep(seconds: float) -> None:
        sleep(seconds)

    lm = server.lm()
    lm.patience = Patience(sleep=sleep, asleep=asleep)
    with stopping(stop), pytest.raises(InfrastructureError, match=r"^stopped while it waited for a server"):
        await ask(lm, asynchronous)
    assert server.asked == 1
    assert server.waited <= 0.5


def test_who_waits_is_interrupted_by_the_keyboard(server: Server) -> None:
    server.failing = lambda waited: (429, {})

    def sleep(seconds: float) -> None:
        raise KeyboardInterrupt

    lm = server.lm()
    lm.patience = Patience(sleep=sleep)
    with pytest.raises(KeyboardInterrupt):
        lm("hello")
    assert server.asked == 1


async def test_who_waits_is_cancelled_under_asyncio(server: Server) -> None:
    server.failing = lambda waited: (429, {})
    waiting = asyncio.Event()

    async def asleep(seconds: float) -> None:
        waiting.set()
        await asyncio.Event().wait()

    lm = server.lm()
    lm.patience = Patience(asleep=asleep)
    asked = asyncio.create_task(lm.acall("hello"))
    await waiting.wait()
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked
    assert server.asked == 1


def test_a_check_waits_for_nothing(server: Server) -> None:
    for failure in ((429, {}), (429, {"Retry-After": "5"}), (500, {})):
        server.sent.clear()
        server.failing = lambda waited, failure=failure: failure  # type: ignore[misc]
        assert unusable(Backbones(agent=server.lm())) == ""
        assert (server.asked, server.waited) == (1, 0)


def test_what_somebody_has_read_already_is_not_asked_again() -> None:
    calls: list[int] = []

    class Breaks:
        """Shows a word, and fails."""

        def complete(self, request: lm15.Request) -> lm15.Response:
            raise AssertionError("asked for a whole answer")

        def stream(self, request: lm15.Request) -> Iterator[Any]:
            calls.append(1)
            yield lm15.StreamStartEvent(id="1", model="large")
            yield lm15.StreamDeltaEvent(lm15.TextDelta(text="[[ ## answer ## ]]\nsome words of it", part_index=0))
            raise lm15.ServerError("broke off")

    lm = HostedLM("scripted/large", engine=Breaks(), cache=False, patience=Patience(sleep=lambda seconds: None))
    streamed = dspy.streamify(dspy.Predict("question -> answer"), async_streaming=False)
    with dspy.context(lm=lm, adapter=dspy.ChatAdapter(use_json_adapter_fallback=False)), pytest.raises(BaseException):  # noqa: B017
        list(streamed(question="?"))
    assert len(calls) == 1
