"""Calls that are interrupted or cancelled: rollouts that had ended by then wait in the bank, and nothing stays open."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from dspy import lm15

from rb_dspy.backbones.stop import stopping
from rb_dspy.bank import MemoryBank
from rb_dspy.config import MattsConfig, MattsMode
from rb_dspy.matts import MaTTS
from rb_dspy.schema import Task, Trajectory, Verdict
from rb_dspy.steps.ask import Stopped
from rb_dspy.testing import Prompt, Reply
from tests.matts.helpers import Booth, House, Script, booth_of, booth_task, called, counts, scaled, slow_lm

BOTH = pytest.mark.parametrize("asynchronous", [False, True], ids=["threads", "asyncio"])
PATIENCE = 5.0


class _InTurn(House):
    """Rollout 2 ends first, then rollout 0; then ``then`` happens in rollout 1. Ended: what ``judged`` was told."""

    def __init__(self, then: Callable[[], None]) -> None:
        super().__init__()
        self.then = then
        self.ended = {"0": threading.Event(), "2": threading.Event()}

    def judged(self, task: Task, trajectory: Trajectory) -> Verdict:
        self.ended[trajectory.rollout_id].set()
        return Verdict(label="failure")

    def breaks(self, rollout: str, where: str) -> None:
        if where == "step 0" and rollout != "2":
            assert self.ended["2"].wait(PATIENCE)
            if rollout == "1":
                assert self.ended["0"].wait(PATIENCE)
                self.then()


def _interrupt() -> None:
    raise KeyboardInterrupt


EARLY = MattsConfig.model_validate({"k": 3, "contrast": {"labels": True}})  # so that rollouts are judged as they end


def _learned_from(bank: MemoryBank, *rollouts: str) -> None:
    (kept,) = bank.pending()
    assert [trajectory.rollout_id for trajectory in kept.state.trajectories] == list(rollouts)
    assert [trajectory.answer for trajectory in kept.state.trajectories] == ["wrong"] * len(rollouts)
    assert bank.experiences() == []
    run = scaled(k=3)
    done = run.resume(kept)
    assert "agent" not in counts(run)
    assert done.launched == len(rollouts)
    assert [trajectory.rollout_id for trajectory in done.trajectories] == list(rollouts)
    assert bank.pending() == []
    assert bank.experiences() == [done.experience]


@BOTH
def test_rollouts_that_had_ended_wait_when_another_is_interrupted(bank: MemoryBank, asynchronous: bool) -> None:
    house = _InTurn(_interrupt)
    run = scaled(house=house, config=EARLY, judge=house.judged)
    with pytest.raises(KeyboardInterrupt):
        asyncio.run(called(run, asynchronous, task=booth_task(), bank=bank, run_id="night"))
    (kept,) = bank.pending()
    assert (kept.state.run_id, kept.state.task) == ("night", booth_task())
    _learned_from(bank, "0", "2")


async def test_rollouts_that_had_ended_wait_when_the_call_is_cancelled(bank: MemoryBank) -> None:
    held, opened = threading.Event(), threading.Event()

    def hold() -> None:
        held.set()
        assert opened.wait(PATIENCE)

    house = _InTurn(hold)
    run = scaled(house=house, config=EARLY, judge=house.judged)
    job = asyncio.ensure_future(run.acall(task=booth_task(), bank=bank))
    assert await asyncio.to_thread(held.wait, PATIENCE)
    job.cancel()
    opened.set()
    with pytest.raises(asyncio.CancelledError):
        await job
    assert house.closed == [1] * 3
    _learned_from(bank, "0", "1", "2")  # of the second, the last step was waited for


@BOTH
def test_they_wait_where_they_are_not_judged_as_they_end_too(bank: MemoryBank, asynchronous: bool) -> None:
    class Second(House):
        def breaks(self, rollout: str, where: str) -> None:
            if where == "reset" and len(self.made) == 2:
                raise KeyboardInterrupt

    run = scaled(house=Second(), config=MattsConfig(k=3, at_once=1))
    with pytest.raises(KeyboardInterrupt):
        asyncio.run(called(run, asynchronous, task=booth_task(), bank=bank))
    (kept,) = bank.pending()
    _learned_from(bank, kept.state.trajectories[0].rollout_id)


def test_what_had_been_shown_is_known_of_rollouts_that_wait(bank: MemoryBank) -> None:
    scaled(k=2)(task=booth_task(1), bank=bank)
    house = _InTurn(_interrupt)
    with pytest.raises(KeyboardInterrupt):
        scaled(house=house, config=EARLY, judge=house.judged)(task=booth_task(2), bank=bank)
    (kept,) = bank.pending()
    assert kept.state.shown == tuple(item.id for item in bank.items())


def _late(error: Exception | None) -> tuple[Script, House]:
    """Rollout 0 is at its last step, or its model fails, when rollout 1 is interrupted."""
    under_way, interrupted = threading.Event(), threading.Event()

    def wait() -> None:
        under_way.set()
        assert interrupted.wait(PATIENCE)
        time.sleep(0.05)  # by then its work is given up

    class Both(House):
        def breaks(self, rollout: str, where: str) -> None:
            if (rollout, where) == ("1", "step 0"):
                assert under_way.wait(PATIENCE)
                interrupted.set()
                raise KeyboardInterrupt
            if (rollout, where) == ("0", "answer") and error is None:
                wait()

    def agent(prompt: Prompt) -> Reply:
        if error is not None and booth_of(prompt["observation"]) == "0":
            wait()
            raise error
        return Script().usual(prompt)

    return Script(roles={"agent": agent}), Both()


@pytest.mark.parametrize("error", [None, lm15.ServerError("given up")], ids=["ended", "broken"])
def test_a_rollout_that_ends_when_all_is_given_up_is_closed_too(bank: MemoryBank, error: Exception | None) -> None:
    script, house = _late(error)
    with pytest.raises(KeyboardInterrupt):
        scaled(script, house, k=2)(task=booth_task(), bank=bank)
    end = time.monotonic() + 1.0
    while house.closed != [1, 1] and time.monotonic() < end:
        time.sleep(0.01)
    assert house.closed == [1, 1]


@pytest.mark.parametrize("mode", ["parallel", "sequential"])
@BOTH
def test_a_rollout_whose_closing_is_interrupted_is_kept_and_not_closed_twice(
    bank: MemoryBank, asynchronous: bool, mode: MattsMode
) -> None:
    house = House(faults={"0": ("close", KeyboardInterrupt)})
    with pytest.raises(KeyboardInterrupt):
        asyncio.run(called(scaled(house=house, k=1, mode=mode), asynchronous, task=booth_task(), bank=bank))
    assert house.closed == [1]
    _learned_from(bank, "0")


@BOTH
def test_so_it_is_with_others_beside_it(bank: MemoryBank, asynchronous: bool) -> None:
    house = House(faults={"1": ("close", KeyboardInterrupt)})
    run = scaled(house=house, config=MattsConfig(k=3, at_once=1))  # in no order, but one by one
    with pytest.raises(KeyboardInterrupt):
        asyncio.run(called(run, asynchronous, task=booth_task(), bank=bank))
    assert house.closed == [1] * len(house.made)
    _learned_from(bank, *sorted(booth.rollout for booth in house.made))


HINT = "Say the right word."


def _stuck(house: House, where: str, then: Callable[[], None], seconds: float = 0.0) -> tuple[House, MaTTS]:
    """Sequential scaling that never confirms. ``then`` happens at ``where``, a place in a booth, or a check, which
    takes so many seconds.
    """

    def here(prompt: Prompt) -> bool:
        earlier = prompt["earlier_checks"].count(HINT) if "earlier_checks" in prompt else 0
        return "decision" in prompt.wants and where == f"check {earlier}"

    def checker(prompt: Prompt) -> Reply:
        if here(prompt):
            then()
        return {"findings": HINT, "decision": "revise"}

    def breaks(rollout: str, place: str) -> None:
        if f"{rollout} {place}" == where:
            then()

    house.breaks = breaks  # type: ignore[method-assign]
    lm = slow_lm(Script(roles={"checker": checker}), lambda prompt: seconds if here(prompt) else 0.0)
    return house, scaled(lm, house, k=4, mode="sequential")


SEQUENTIAL = pytest.mark.parametrize(
    ("reopens", "where", "steps", "checks"),
    [
        (False, "0 step 0", [], []),
        (False, "0 answer", [], []),
        (False, "check 0", [1], [0]),
        (False, "0 close", [1], [1]),
        (False, "1 factory", [1], [1]),
        (False, "1 step 0", [1], [1]),
        (False, "check 1", [1, 1], [1, 0]),
        (False, "2 reset", [1, 1], [1, 1]),
        (True, "check 0", [1], [0]),
        (True, "0 reopen", [1], [1]),
        (True, "0 step 1", [1], [1]),
        (True, "check 1", [2], [1]),
        (True, "0 step 2", [2], [2]),
    ],
)


def _attempts_wait(bank: MemoryBank, house: House, steps: list[int], checks: list[int]) -> None:
    assert house.closed == [1] * len(house.made)
    assert bank.experiences() == []
    if not steps:
        assert bank.pending() == []
        return
    (kept,) = bank.pending()
    found = kept.state.trajectories
    assert kept.state.run_id == "night"
    assert [each.rollout_id for each in found] == [str(number) for number in range(len(steps))]
    assert [len(each.steps) for each in found] == steps
    assert [len(each.checks) for each in found] == checks
    assert {(each.answer, each.stop_reason) for each in found} == {("wrong", "done")}
    assert all(each.usage["agent"].calls for each in found)
    run = scaled(k=4, mode="sequential")
    done = run.resume(kept)
    assert "agent" not in counts(run)
    assert (done.answer, len(done.trajectories)) == ("wrong", len(steps))
    assert bank.pending() == []


@SEQUENTIAL
@BOTH
def test_attempts_that_had_ended_wait_when_sequential_scaling_is_interrupted(
    bank: MemoryBank, asynchronous: bool, reopens: bool, where: str, steps: list[int], checks: list[int]
) -> None:
    house, run = _stuck(House(reopens=reopens), where, _interrupt)
    with pytest.raises(KeyboardInterrupt):
        asyncio.run(called(run, asynchronous, task=booth_task(), bank=bank, run_id="night"))
    _attempts_wait(bank, house, steps, checks)


@BOTH
def test_what_a_correction_had_done_by_then_is_not_taken_for_an_attempt_that_ended(
    bank: MemoryBank, asynchronous: bool
) -> None:
    class Longer(Booth):
        """One step, and two more each time it is opened again."""

        def step(self, action: str) -> tuple[str, bool]:
            observation, _ = super().step(action)
            return observation, len(self.words) % 2 == 1

        def reopen(self) -> str:
            return "Go on."

    class Hall(House):
        def __call__(self, task: Task, rollout_id: str) -> Booth:
            self.made.append(Longer(self, rollout_id))
            return self.made[-1]

    house, run = _stuck(Hall(), "0 step 4", _interrupt)
    with pytest.raises(KeyboardInterrupt):
        asyncio.run(called(run, asynchronous, task=booth_task(), bank=bank, run_id="night"))
    assert len(house.made[0].words) == 4
    _attempts_wait(bank, house, [3], [2])


ENDED_MEANWHILE = {
    "0 step 0": ([1], [0]),
    "0 answer": ([1], [0]),
    "1 step 0": ([1, 1], [1, 0]),
    "0 step 1": ([2], [1]),
    "0 step 2": ([3], [2]),
}
"""Last steps, which a call that is cancelled waits for; those that are interrupted do not come back."""


@SEQUENTIAL
async def test_attempts_that_had_ended_wait_when_sequential_scaling_is_cancelled(
    bank: MemoryBank, reopens: bool, where: str, steps: list[int], checks: list[int]
) -> None:
    reached, opened = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def hold() -> None:
        loop.call_soon_threadsafe(reached.set)
        if not where.startswith("check"):
            assert opened.wait(PATIENCE)

    house, run = _stuck(House(reopens=reopens), where, hold, seconds=30.0)
    job = asyncio.ensure_future(run.acall(task=booth_task(), bank=bank, run_id="night"))
    await asyncio.wait_for(reached.wait(), PATIENCE)
    job.cancel()
    opened.set()
    with pytest.raises(asyncio.CancelledError):
        await job
    _attempts_wait(bank, house, *ENDED_MEANWHILE.get(where, (steps, checks)))


async def test_rollouts_are_kept_in_another_thread_when_the_call_is_cancelled(
    bank: MemoryBank, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept_in: list[int] = []
    ingest = MemoryBank.ingest

    def noted(self: MemoryBank, *args: Any, **kwargs: Any) -> Any:
        kept_in.append(threading.get_ident())
        return ingest(self, *args, **kwargs)

    monkeypatch.setattr(MemoryBank, "ingest", noted)
    await test_rollouts_that_had_ended_wait_when_the_call_is_cancelled(bank)
    assert kept_in
    assert threading.get_ident() not in kept_in


@BOTH
def test_rollouts_that_cannot_be_kept_do_not_hide_what_interrupted_the_call(
    bank: MemoryBank, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, asynchronous: bool
) -> None:
    def full(*_: Any, **__: Any) -> Any:
        raise OSError("no space left")

    monkeypatch.setattr(MemoryBank, "ingest", full)  # as a store of somebody else's may
    _, run = _stuck(House(), "check 0", _interrupt)
    with pytest.raises(KeyboardInterrupt):
        asyncio.run(called(run, asynchronous, task=booth_task(), bank=bank))
    assert "could not be kept: no space left" in caplog.text


async def test_nor_do_they_hide_that_it_was_cancelled(bank: MemoryBank, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> Any:
        raise OSError("no space left")

    reached, loop = asyncio.Event(), asyncio.get_running_loop()
    monkeypatch.setattr(MemoryBank, "ingest", full)

    def hold() -> None:
        loop.call_soon_threadsafe(reached.set)

    _, run = _stuck(House(), "check 0", hold, seconds=30.0)
    job = asyncio.ensure_future(run.acall(task=booth_task(), bank=bank))
    await asyncio.wait_for(reached.wait(), PATIENCE)
    job.cancel()
    with pytest.raises(asyncio.CancelledError):
        await job


CONFIGS = pytest.mark.parametrize(
    "given",
    [
        {},
        {"mode": "vanilla"},
        {"mode": "best_of_n"},
        {"at_once": 2},
        {"adaptive": {"enabled": True, "first": 3}},
        {"mode": "sequential"},
        {"k": 1},
    ],
    ids=str,
)


@CONFIGS
def test_rollouts_wait_when_their_keeping_is_interrupted(
    bank: MemoryBank, monkeypatch: pytest.MonkeyPatch, given: dict[str, Any]
) -> None:
    ingest, interrupts = MemoryBank.ingest, [KeyboardInterrupt]

    def interrupted(self: MemoryBank, *args: Any, **kwargs: Any) -> Any:
        if interrupts:
            raise interrupts.pop()  # as of Ctrl-C while the file is locked
        return ingest(self, *args, **kwargs)

    monkeypatch.setattr(MemoryBank, "ingest", interrupted)
    config = MattsConfig.model_validate({"k": 3, **given})
    with pytest.raises(KeyboardInterrupt):
        scaled(config=config)(task=booth_task(), bank=bank)
    (kept,) = bank.pending()
    assert len(kept.state.trajectories) == (1 if config.mode == "sequential" else config.k)


@CONFIGS
def test_rollouts_that_had_ended_wait_when_the_call_is_given_up_from_outside(
    bank: MemoryBank, given: dict[str, Any]
) -> None:
    """As when Python ends while the call is under way in a thread."""
    config = MattsConfig.model_validate({"k": 3, **given})
    last = "0" if config.k == 1 or config.mode == "sequential" else "2"
    stop = threading.Event()

    class Hall(House):
        def breaks(self, rollout: str, where: str) -> None:
            if (rollout, where) == (last, "close"):
                until = time.monotonic() + PATIENCE
                while sum(self.closed) < len(self.made) and time.monotonic() < until:
                    time.sleep(0.01)
                time.sleep(0.1)
                stop.set()

    with stopping(stop), pytest.raises(Stopped):
        scaled(house=Hall(), config=config)(task=booth_task(), bank=bank)
    assert len(bank.pending()) == 1
