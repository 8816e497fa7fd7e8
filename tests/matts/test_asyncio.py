"""For asyncio MaTTS does the same, and a call that is cancelled leaves nothing open."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import dspy
import pytest

from rb_dspy.bank import MemoryBank
from rb_dspy.config import MattsConfig, MattsMode
from rb_dspy.environments import ScoredEnvironments
from rb_dspy.errors import InfrastructureError
from rb_dspy.schema import Outcome, Task
from rb_dspy.testing import Prompt, Reply
from rb_dspy.testing.embedder import HashEmbedder
from tests.matts.helpers import MODES, Booth, House, Script, booth_task, role_of, scaled, slow_lm

EXTRAS: list[dict[str, Any]] = [
    {},
    {"contrast": {"labels": True}, "select": {"verdicts": True, "agreement": True, "orders": 3}},
    {"adaptive": {"enabled": True}},  # of sequential scaling: until_confirmed
    {"at_once": 1},
]


def _told(done: dspy.Prediction) -> dict[str, Any]:
    """All that a prediction says, less times, ids and the bank's clock."""
    return {
        "answer": done.answer,
        "trajectories": [t.model_dump(exclude={"usage"}) for t in done.trajectories],
        "chosen": done.trajectory.rollout_id,
        "verdicts": done.verdicts,
        "verdict": done.verdict,
        "items": [(item.title, item.content, item.polarity) for item in done.memory_items],
        "note": done.experience.note,
        "selection": done.selection,
        "lost": done.lost,
        "counts": (done.launched, done.saved),
        "calls": {role: used.calls for role, used in done.usage.items()},
    }


@pytest.mark.parametrize(("reopens", "instant"), [(False, False), (True, False), (True, True)])
@pytest.mark.parametrize("extra", EXTRAS, ids=["plain", "all told", "early", "one by one"])
@pytest.mark.parametrize("mode", MODES)
async def test_asyncio_gives_what_threads_give(
    mode: MattsMode, extra: dict[str, Any], reopens: bool, instant: bool
) -> None:
    def checker(prompt: Prompt) -> Reply:
        return {"findings": "Say it again.", "decision": "confirm" if "earlier_checks" in prompt else "revise"}

    if mode == "sequential" and "adaptive" in extra:
        extra = {"refine": {"until_confirmed": True}}
    script = Script({"1": "right", "3": "right"}, roles={"checker": checker})
    told = []
    for asynchronous in (False, True):
        house = House(steps=2, reopens=reopens, instant=instant, faults={"2": ("step 1", ValueError)})
        run = scaled(script, house, config=MattsConfig.model_validate({"k": 4, "mode": mode, **extra}))
        with MemoryBank.open(None, scope="t", embedder=HashEmbedder()) as bank:
            first = await run.acall(task=booth_task(1), bank=bank) if asynchronous else run(booth_task(1), bank)
            second = await run.acall(task=booth_task(2), bank=bank) if asynchronous else run(booth_task(2), bank)
            told.append((_told(first), _told(second), [item.content for item in bank.items()]))
        assert house.closed == [1] * len(house.made)
    assert told[0] == told[1]


async def test_calls_at_once_keep_their_rollouts_and_their_usage_apart() -> None:
    run = scaled(slow_lm(Script(), lambda prompt: 0.002), House(steps=2), k=3)
    banks = [MemoryBank.open(None, scope="t", embedder=HashEmbedder()) for _ in range(4)]
    done = await asyncio.gather(*(run.acall(task=booth_task(n), bank=bank) for n, bank in enumerate(banks)))
    for number, one in enumerate(done):
        assert {trajectory.task_id for trajectory in one.trajectories} == {f"booth/{number}"}
        assert (one.usage["agent"].calls, one.usage["judge"].calls) == (6, 3)


class _Gate(House):
    """Holds every rollout at one place until it is let through; ``reached`` tells that one is there."""

    def __init__(self, place: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.place = place
        self.reached = threading.Event()
        self.opened = threading.Event()
        self.gave_up = False
        """Somebody had waited for too long; an error may go unnoticed."""

    def hold(self) -> None:
        self.reached.set()
        if not self.opened.wait(5):
            self.gave_up = True
            raise TimeoutError("nobody let me through")

    def breaks(self, rollout: str, where: str) -> None:
        if where == self.place:
            self.hold()


PLACES = pytest.mark.parametrize("place", ["factory", "reset", "step 0", "step 1", "answer", "close"])


@PLACES
@pytest.mark.parametrize("mode", ["parallel", "sequential"])
async def test_the_event_loop_goes_on_while_an_environment_takes_its_time(
    bank: MemoryBank, mode: MattsMode, place: str
) -> None:
    house = _Gate(place, steps=2)
    job = asyncio.ensure_future(scaled(house=house, k=3, mode=mode).acall(task=booth_task(), bank=bank))
    assert await asyncio.to_thread(house.reached.wait, 5)
    house.opened.set()  # by the event loop, for which the environment waits
    assert (await job).lost == ()
    assert not house.gave_up


@pytest.mark.parametrize("mode", ["parallel", "sequential"])
async def test_the_event_loop_goes_on_while_what_broke_is_closed(bank: MemoryBank, mode: MattsMode) -> None:
    class Broken(_Gate):
        def breaks(self, rollout: str, where: str) -> None:
            super().breaks(rollout, where)
            if where == "step 0":
                raise ValueError("a fuse")

    house = Broken("close")
    job = asyncio.ensure_future(scaled(house=house, k=3, mode=mode).acall(task=booth_task(), bank=bank))
    assert await asyncio.to_thread(house.reached.wait, 5)
    house.opened.set()
    with pytest.raises(InfrastructureError, match="a fuse"):
        await job
    assert house.closed == [1] * len(house.made)
    assert not house.gave_up


@pytest.mark.parametrize("mode", ["parallel", "sequential"])
async def test_the_event_loop_goes_on_while_a_rollout_is_scored(bank: MemoryBank, mode: MattsMode) -> None:
    house = _Gate("outcome")

    class Scored(Booth):
        def outcome(self) -> Outcome:
            house.hold()
            return Outcome(reward=0.0, success=False)

    scored = ScoredEnvironments(lambda task, rollout: Scored(house, rollout))
    run = scaled(k=3, mode=mode)
    job = asyncio.ensure_future(run.acall(task=booth_task(), bank=bank, environments=scored))
    assert await asyncio.to_thread(house.reached.wait, 5)
    house.opened.set()
    await job
    assert scored.outcome("booth/1", "0") == Outcome(reward=0.0, success=False)
    assert not house.gave_up


@pytest.mark.parametrize("at_once", [None, 1])
@PLACES
@pytest.mark.parametrize("mode", ["parallel", "sequential"])
async def test_a_call_that_is_cancelled_closes_what_it_opened(
    bank: MemoryBank, mode: MattsMode, place: str, at_once: int | None
) -> None:
    house = _Gate(place, steps=2)
    run = scaled(house=house, config=MattsConfig(k=3, mode=mode, at_once=at_once))
    job = asyncio.ensure_future(run.acall(task=booth_task(), bank=bank))
    assert await asyncio.to_thread(house.reached.wait, 5)
    every = 3 if mode == "parallel" and not at_once else 1
    while place == "close" and sum(house.closed) < every:  # else those that have not ended are closed by who cancels
        await asyncio.sleep(0.005)
    job.cancel()
    await asyncio.sleep(0.01)
    assert not job.done()  # nothing is closed under a step that is under way
    house.opened.set()
    with pytest.raises(asyncio.CancelledError):
        await job
    assert house.made
    assert house.closed == [1] * len(house.made)
    if at_once or mode == "sequential":
        assert len(house.made) == 1
    assert not house.gave_up
    assert bank.experiences() == []
    assert len(bank.pending()) == (place in ("step 1", "answer", "close"))  # a rollout, or the attempt, had ended


@pytest.mark.parametrize("at_once", [None, 1])
@pytest.mark.parametrize("place", ["factory", "reset", "step 1", "answer", "model", "check"])
@pytest.mark.parametrize("mode", ["parallel", "sequential"])
async def test_what_a_cancelled_call_had_open_is_closed_in_another_thread(
    bank: MemoryBank, mode: MattsMode, place: str, at_once: int | None
) -> None:
    """The event loop goes on meanwhile, and the call returns when all is closed."""
    closed_in: list[int] = []
    thinking, let = asyncio.Event(), threading.Event()

    class Slow(Booth):
        def close(self) -> None:
            super().close()
            assert let.wait(5)
            closed_in.append(threading.get_ident())

    house = _Gate(place, steps=2)

    def made(task: Task, rollout: str) -> Booth:
        house.breaks(rollout, "factory")
        house.made.append(Slow(house, rollout))
        return house.made[-1]

    def delay(prompt: Prompt) -> float:
        if (role_of(prompt), place) not in (("agent", "model"), ("checker", "check")):
            return 0.0
        thinking.set()
        return 30.0

    run = scaled(slow_lm(Script(), delay), config=MattsConfig(k=3, mode=mode, at_once=at_once))
    job = asyncio.ensure_future(run.acall(task=booth_task(), bank=bank, environments=made))
    if place == "check" and mode == "parallel":
        assert len((await asyncio.gather(job, asyncio.to_thread(let.set)))[0].trajectories) == 3
        return  # nothing is checked there
    if place in ("model", "check"):
        await asyncio.wait_for(thinking.wait(), 5)
    else:
        assert await asyncio.to_thread(house.reached.wait, 5)
    job.cancel()
    house.opened.set()
    while not sum(house.closed):
        await asyncio.sleep(0.005)  # the loop goes on
    job.cancel()  # once more
    await asyncio.sleep(0.01)
    assert not job.done()
    let.set()
    with pytest.raises(asyncio.CancelledError):
        await job
    assert house.closed == [1] * len(house.made) == [1] * len(closed_in)
    assert threading.get_ident() not in closed_in
    assert len(bank.pending()) == (place in ("step 1", "answer", "check"))  # a rollout, or the attempt, had ended


@pytest.mark.parametrize("role", ["agent", "judge", "contraster", "selector"])
async def test_a_call_that_is_cancelled_while_a_model_thinks_keeps_what_there_is(bank: MemoryBank, role: str) -> None:
    thinking = asyncio.Event()
    asked = 0

    def delay(prompt: Prompt) -> float:
        nonlocal asked
        if role_of(prompt) == role:
            asked += 1
            if asked == 3 or role not in ("agent", "judge"):  # the first is asked, and judged, while others go on
                thinking.set()
            return 30.0
        return 0.0

    house = House()
    run = scaled(slow_lm(Script(), delay), house, k=3)
    job = asyncio.ensure_future(run.acall(task=booth_task(), bank=bank))
    await asyncio.wait_for(thinking.wait(), 5)
    job.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(job, 5)
    assert house.closed == [1] * 3
    assert len(bank.pending()) == (role != "agent")
    if role != "agent":
        again = scaled(k=3)
        assert again.resume(*bank.pending()).launched == 3


@pytest.mark.parametrize("role", ["agent", "judge", "contraster", "selector"])
def test_an_interrupt_in_any_call_leaves_no_task_behind(bank: MemoryBank, role: str) -> None:
    def interrupted(prompt: Prompt) -> Reply:
        raise KeyboardInterrupt

    left: list[asyncio.Task[Any]] = []

    async def main() -> None:
        left.append(asyncio.current_task())  # type: ignore[arg-type]
        await scaled(Script(roles={role: interrupted}), k=3).acall(task=booth_task(), bank=bank)

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(main())
    assert left[0].done()
