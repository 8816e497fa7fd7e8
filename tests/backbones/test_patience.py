"""When a call of a hosted model that failed is made again. Nobody here sleeps: what would be waited is counted."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import dspy
import pytest
from dspy import lm15

from rb_dspy import BackboneConfig, Backbones, MemoryBank, ReasoningBank, load_settings, run_stream
from rb_dspy.backbones.check import unusable
from rb_dspy.backbones.hosted import HostedLM
from rb_dspy.backbones.patience import Patience
from rb_dspy.backbones.stop import stopping
from rb_dspy.errors import ConfigError, InfrastructureError
from rb_dspy.testing import Lock
from rb_dspy.tracking.rebuilt import saved_backbones
from tests.backbones.served import KEY, Server
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


def test_a_run_waits_for_a_minutes_window_and_says_so(
    bank: MemoryBank, server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    server.failing = lambda waited: None if waited >= 40 else (429, {})
    program = ReasoningBank(backbones=Backbones(agent=server.lm()), environments=Lock.make)
    tasks = [lock("acme", code) for code in (4711, 4712)]
    report = run_stream(program, tasks, bank, run_id="r")
    assert [(result.error, result.prediction is not None) for result in report.results] == [("", True)] * 2
    assert 40 <= server.waited <= 80
    assert "openai/large: too many requests; waiting 8 s (7 of at most 120 so far)" in caplog.text
    assert "waiting 1 s" not in caplog.text


def test_a_run_gives_up_when_its_patience_is_over_and_goes_on_later(bank: MemoryBank, server: Server) -> None:
    server.failing = lambda waited: (429, {})
    program = ReasoningBank(backbones=Backbones(agent=server.lm(seconds=10)), environments=Lock.make)
    tasks = [lock("acme", code) for code in (4711, 4712, 4713, 4714)]
    told = (
        r"3 tasks in a row broke; .*too many requests after 10 s of waiting: .*raise the role's patience \(now 10 s\)"
    )
    with pytest.raises(InfrastructureError, match=told):
        run_stream(program, tasks, bank, run_id="r")
    assert round(server.waited, 6) == 30
    server.failing = lambda waited: None
    assert [result.error for result in run_stream(program, tasks, bank, run_id="r").results] == [""] * 4


@both
async def test_waits_are_spread_so_that_calls_do_not_come_back_together(server: Server, asynchronous: bool) -> None:
    waits = []
    for chance in (0.0, 0.5, 1.0):
        server.waited = 0
        server.failing = lambda waited: None if waited else (429, {})
        await ask(server.lm(chance), asynchronous)
        waits.append(round(server.waited, 6))
    assert waits == [0.5, 0.75, 1.0]


def test_patience_is_a_setting_of_a_hosted_model(server: Server) -> None:
    server.failing = lambda waited: (429, {})
    given = ["backbones.agent.model=openai/large", f"backbones.agent.api_base={server.address}"]
    settings = load_settings(None, [*given, f"backbones.agent.api_key_env={KEY}", "backbones.agent.patience=0"])
    bones = Backbones.from_settings(settings.backbones)
    with pytest.raises(dspy.LMRateLimitError, match=r"too many requests: .*raise the role's patience \(now 0 s\)"):
        bones.lm("agent")("hello")
    assert server.asked == 1
    saved = saved_backbones(bones)
    assert isinstance(saved, dict)
    assert saved["agent"]["patience"] == 0
    for value in ("-1", "inf", "nan"):
        with pytest.raises(ConfigError, match=r"^--set: backbones\.agent\.patience = "):
            load_settings(None, [*given, f"backbones.agent.patience={value}"])
    with pytest.raises(ConfigError, match="runs in this process; patience is for hosted models"):
        Backbones(agent=BackboneConfig(model="local/qwen2.5-coder-1.5b", patience=60))
