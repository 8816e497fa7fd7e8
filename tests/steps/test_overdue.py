"""An environment that does not come back: it costs its rollout, and nobody waits for it."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from rb_dspy.bank import MemoryBank
from rb_dspy.config import ActConfig, MattsConfig, ProgramConfig
from rb_dspy.errors import InfrastructureError
from rb_dspy.matts import MaTTS
from rb_dspy.program import ReasoningBank
from rb_dspy.schema import Task
from rb_dspy.steps import ask
from rb_dspy.stream import run_stream
from rb_dspy.testing import Corridor, Faulty, Prompt, Reply
from tests.worlds import answers, backbones, corridor

SECONDS = 0.5


class Watched(Corridor):
    """Knows in which threads it was used, and how often it was closed."""

    def __init__(self, length: int = 3) -> None:
        super().__init__(length)
        self.threads: list[int] = []
        self.closings = 0

    def reset(self, task: Task) -> str:
        self.threads.append(threading.get_ident())
        return super().reset(task)

    def step(self, action: str) -> tuple[str, bool]:
        self.threads.append(threading.get_ident())
        return super().step(action)

    def close(self) -> None:
        self.threads.append(threading.get_ident())
        self.closings += 1


class Let(threading.Event):
    """Knows that somebody waits for it."""

    def __init__(self) -> None:
        super().__init__()
        self.awaited = threading.Event()

    def wait(self, timeout: float | None = None) -> bool:
        self.awaited.set()
        return super().wait(timeout)


class House:
    """Makes environments; those of the rollouts ``hanging`` hang, until the test is over or ``let`` is set."""

    def __init__(self) -> None:
        self.let = Let()
        self.made: list[Watched] = []

    def of(self, at: Any, *, after: int = 0, hanging: str = "0123456789") -> Callable[[Task, str], Any]:
        def make(task: Task, rollout_id: str) -> Any:
            self.made.append(Watched())
            if rollout_id not in hanging:
                return self.made[-1]
            if at == "factory":
                self.let.wait()
                return self.made[-1]
            return Faulty(self.made[-1], at=at, after=after, until=self.let)

        return make


@pytest.fixture
def house() -> Iterator[House]:
    house = House()
    yield house
    house.let.set()


def program(make: Any, seconds: float | None = SECONDS, script: Any = answers) -> ReasoningBank:
    config = ProgramConfig(act=ActConfig(step_seconds=seconds))
    return ReasoningBank(config, backbones=backbones(script), environments=make)


def called(run: Any, how: str, **kwargs: Any) -> Any:
    return run(**kwargs) if how == "sync" else asyncio.run(run.acall(**kwargs))


def left_behind() -> list[str]:
    return [thread.name for thread in threading.enumerate() if "left behind" in thread.name]


def until(reached: Callable[[], bool]) -> bool:
    """Whether it is, within some seconds."""
    end = time.monotonic() + 20
    while not reached() and time.monotonic() < end:
        time.sleep(0.01)
    return reached()


HOWS = pytest.mark.parametrize("how", ["sync", "async"])


@HOWS
@pytest.mark.parametrize(
    ("at", "after", "what"),
    [
        ("factory", 0, "making the environment"),
        ("reset", 0, "making the environment"),
        ("step", 0, "a step of the environment"),
        ("step", 2, "a step of the environment"),
        ("valid_actions", 1, "a step of the environment"),
        ("answer", 0, "a step of the environment"),
    ],
)
def test_a_call_that_does_not_come_back_costs_its_task(
    bank: MemoryBank, house: House, caplog: pytest.LogCaptureFixture, how: str, at: str, after: int, what: str
) -> None:
    run = program(house.of(at, after=after))
    said = re.escape(f"{what} took more than 0.5 s (act.step_seconds)")
    with caplog.at_level(logging.WARNING, "rb_dspy"), pytest.raises(InfrastructureError, match=f"^{said}$"):
        called(run, how, task=corridor("corridor/7"), bank=bank)
    assert len(bank) == 0
    assert left_behind() == ["rb-dspy, left behind by task corridor/7, rollout 0"]
    assert left_behind()[0] in caplog.text
    assert house.made[0].closings == 0, "nothing is closed under it"

    house.let.set()
    assert until(lambda: house.made[0].closings == 1 and not left_behind())
    assert len(set(house.made[0].threads)) == 1
    assert (len(bank), bank.pending()) == (0, []), "what comes too late changes nothing"
    assert called(program(Corridor.make), how, task=corridor(), bank=bank).trajectory.steps


@HOWS
def test_a_closing_that_does_not_come_back_costs_nothing(
    bank: MemoryBank, house: House, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    with caplog.at_level(logging.WARNING, "rb_dspy"):
        done = called(program(house.of("close")), how, task=corridor(), bank=bank)
    assert (done.trajectory.stop_reason, len(bank)) == ("done", 1)
    assert "left behind by task corridor/1, rollout 0" in caplog.text
    assert len(left_behind()) == 1
    house.let.set()
    assert until(lambda: house.made[0].closings == 1 and not left_behind())


@HOWS
@pytest.mark.parametrize("mode", ["parallel", "best_of_n"])
def test_one_of_several_rollouts_is_lost_alone(bank: MemoryBank, house: House, how: str, mode: Any) -> None:
    run = MaTTS(program(house.of("step", after=1, hanging="1")), k=3, mode=mode)
    done = called(run, how, task=corridor(), bank=bank)
    assert [(lost.rollout_id, lost.error) for lost in done.lost] == [
        ("1", "a step of the environment took more than 0.5 s (act.step_seconds)")
    ]
    assert [trajectory.rollout_id for trajectory in done.trajectories] == ["0", "2"]
    assert len(bank) == 1
    house.let.set()
    assert until(lambda: sorted(made.closings for made in house.made) == [1] * 3 and not left_behind())


@HOWS
@pytest.mark.parametrize("at", ["reopen", "step"])
def test_what_was_reached_before_a_second_pass_stays(bank: MemoryBank, house: House, how: str, at: str) -> None:
    def script(prompt: Prompt) -> Reply:
        if "decision" in prompt.wants:
            wants = {"findings": "Once more.", "decision": "correct"}
            return {**wants, "decision": "revise"} if "revise" in prompt.system else wants
        if "action" in prompt.wants:
            return {"thought": "", "action": "wait"}
        return answers(prompt)

    config = ProgramConfig(act=ActConfig(step_seconds=SECONDS, max_steps=2))
    make = house.of(at, after=0 if at == "reopen" else 2)
    alone = ReasoningBank(config, backbones=backbones(script), environments=make)
    done = called(MaTTS(alone, config=MattsConfig(mode="sequential", k=2)), how, task=corridor(), bank=bank)
    assert [lost.error.partition(" took")[0] for lost in done.lost] == [
        "going on in the environment" if at == "reopen" else "a step of the environment"
    ]
    assert len(done.trajectory.steps) == 2
    assert len(bank) == 1


@HOWS
def test_a_stream_goes_on_without_the_task_that_hangs(bank: MemoryBank, house: House, how: str) -> None:
    hanging, fine = house.of("step"), Corridor.make

    def make(task: Task, rollout_id: str) -> Any:
        return (hanging if task.id == "corridor/2" else fine)(task, rollout_id)

    report = run_stream(program(make), [corridor(f"corridor/{n}") for n in (1, 2, 3)], bank, run_id="r")
    assert [result.error.partition(" took")[0] for result in report.results] == ["", "a step of the environment", ""]
    assert [result.outcome is None for result in report.results] == [False, True, False]


def test_scoring_that_does_not_come_back_is_the_tasks_error_and_its_lessons_stay(
    bank: MemoryBank, house: House
) -> None:
    report = run_stream(program(house.of("outcome")), [corridor()], bank, run_id="r")
    assert report.results[0].error == "the environment's outcome has not come back"
    assert report.results[0].outcome is None
    assert len(bank) == 1


async def test_who_is_cancelled_meanwhile_waits_no_longer_than_that(bank: MemoryBank, house: House) -> None:
    job = asyncio.ensure_future(program(house.of("step")).acall(task=corridor(), bank=bank))
    assert await asyncio.to_thread(house.let.awaited.wait, 20)
    job.cancel()
    with pytest.raises(asyncio.CancelledError):
        await job
    assert not house.let.is_set()
    assert house.made[0].closings == 0
    house.let.set()
    assert await asyncio.to_thread(until, lambda: house.made[0].closings == 1 and not left_behind())


@pytest.mark.parametrize("kind", ["ReasoningBank", "MaTTS"])
def test_a_ctrl_c_does_not_wait_for_the_limit(
    bank: MemoryBank, house: House, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(ask, "_GRACE", 0.2)
    alone = program(house.of("step"), 600.0)

    def interrupt() -> None:
        assert house.let.awaited.wait(20)
        os.kill(os.getpid(), signal.SIGINT)

    helper = threading.Thread(target=interrupt)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        helper.start()
        with pytest.raises(KeyboardInterrupt):
            (alone if kind == "ReasoningBank" else MaTTS(alone, k=3))(task=corridor(), bank=bank)
    finally:
        helper.join()
        signal.signal(signal.SIGINT, before)
    assert not house.let.is_set()
    house.let.set()
    assert until(lambda: {made.closings for made in house.made} == {1} and not left_behind())
    assert (len(bank), bank.pending()) == (0, [])


@HOWS
def test_with_a_limit_all_calls_are_in_one_thread_which_is_not_the_callers(
    bank: MemoryBank, house: House, how: str
) -> None:
    make = house.of("step", hanging="")
    called(program(make, 60.0), how, task=corridor(), bank=bank, learn=False)
    called(program(make, None), how, task=corridor(), bank=bank, learn=False)
    limited, free = (set(made.threads) for made in house.made)
    assert len(limited) == len(free) == 1
    assert threading.get_ident() not in limited
    assert (threading.get_ident() in free) == (how == "sync")
    assert [made.closings for made in house.made] == [1, 1]


@HOWS
def test_one_that_says_that_it_is_instant_has_the_limit_too(bank: MemoryBank, house: House, how: str) -> None:
    class Sure(Faulty):
        instant = True

    def make(task: Task, rollout_id: str) -> Sure:
        return Sure(Watched(), until=house.let)

    with pytest.raises(InfrastructureError, match=r"^a step of the environment took more than 0\.5 s"):
        called(program(make), how, task=corridor(), bank=bank)


@HOWS
def test_what_breaks_in_time_is_said_as_without_a_limit(bank: MemoryBank, how: str) -> None:
    for error in (TimeoutError("no answer"), asyncio.CancelledError(), ValueError("no")):
        said = []
        for seconds in (None, 60.0):
            with pytest.raises(InfrastructureError) as found:
                called(program(Faulty.of(Corridor.make, error=error), seconds), how, task=corridor(), bank=bank)
            said.append(str(found.value))
        assert said[0] == said[1]
        assert said[0].startswith(f"a step of the environment broke: {type(error).__name__}")
