"""A rollout that has ended waits in the bank while others of its call are under way, for a process that dies."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from rb_dspy.bank import Ingest, MemoryBank
from rb_dspy.config import MattsConfig
from rb_dspy.errors import InputError, StorageError
from rb_dspy.matts import MaTTS
from rb_dspy.schema import Trajectory
from rb_dspy.steps import later as steps_later
from rb_dspy.steps.later import later
from rb_dspy.testing import Prompt, Reply
from tests.matts.helpers import House, Script, booth_task, called, counts, scaled

BOTH = pytest.mark.parametrize("asynchronous", [False, True], ids=["threads", "asyncio"])
PATIENCE = 30.0

CONFIGS = pytest.mark.parametrize(
    ("given", "asynchronous"),
    [
        ({}, False),
        ({}, True),
        ({"mode": "vanilla"}, False),
        ({"mode": "best_of_n"}, True),
        ({"at_once": 2}, False),
        ({"adaptive": {"enabled": True, "first": 3}}, True),
        ({"contrast": {"labels": True}}, False),
    ],
    ids=str,
)


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test waits for it once or twice, and they are many."""
    monkeypatch.setattr(steps_later, "SECONDS", 0.1)


def until(true: Callable[[], object]) -> bool:
    """Whether it becomes so before long."""
    end = time.monotonic() + PATIENCE
    while not true() and time.monotonic() < end:
        time.sleep(0.01)
    return bool(true())


def groups(bank: MemoryBank) -> list[list[str]]:
    """The rollouts that wait, by what waits as one."""
    return [[rollout.rollout_id for rollout in ingest.state.trajectories] for ingest in bank.pending()]


class Waits(House):
    """A house in which ``then`` happens in the last step of a rollout."""

    def __init__(self, **then: Callable[[], object]) -> None:
        super().__init__()
        self.then = then

    def breaks(self, rollout: str, where: str) -> None:
        if where == "step 0" and f"r{rollout}" in self.then:
            self.then[f"r{rollout}"]()


def waits_for(bank: MemoryBank, *group: str) -> Callable[[], None]:
    def wait() -> None:
        assert until(lambda: groups(bank) == [list(group)])

    return wait


def one_by_one(bank: MemoryBank) -> Waits:
    """Rollout 0 ends; when it is in the bank, rollout 2; when both are, rollout 1."""
    return Waits(r2=waits_for(bank, "0"), r1=waits_for(bank, "0", "2"))


def passed() -> None:
    """All that was to be done later by now has begun, and has had time to end."""
    done = [Done(), Done()]
    for job in done:
        later(job)
        assert job.came.wait(PATIENCE)


class Done:
    needless = False

    def __init__(self) -> None:
        self.came = threading.Event()

    def run(self) -> None:
        self.came.set()


@CONFIGS
def test_one_that_has_ended_is_in_the_bank_while_others_go_on_and_always_as_one_group(
    bank: MemoryBank, asynchronous: bool, given: dict[str, Any]
) -> None:
    run = scaled(house=one_by_one(bank), config=MattsConfig.model_validate({"k": 3, **given}))
    done = asyncio.run(called(run, asynchronous, task=booth_task(), bank=bank))
    assert (done.lost, [rollout.rollout_id for rollout in done.trajectories]) == ((), ["0", "1", "2"])
    assert (bank.pending(), bank.experiences()) == ([], [done.experience])


@BOTH
def test_with_the_name_of_a_run_too_and_with_what_had_been_shown(bank: MemoryBank, asynchronous: bool) -> None:
    scaled(k=2)(task=booth_task(1), bank=bank)
    found: list[Ingest] = []

    def look() -> None:
        waits_for(bank, "0", "2")()
        found.extend(bank.pending())

    house = Waits(r2=waits_for(bank, "0"), r1=look)
    done = asyncio.run(called(scaled(house=house, k=3), asynchronous, task=booth_task(2), bank=bank, run_id="night"))
    (kept,) = found
    assert (kept.state.run_id, kept.state.task) == ("night", booth_task(2))
    assert kept.state.shown == done.experience.shown != ()
    assert (bank.pending(), bank.experiences()[1:]) == ([], [done.experience])


def correcting(then: Callable[[int], object]) -> Script:
    """A checker that never confirms; ``then`` happens in each check."""
    checks: list[int] = []

    def checker(prompt: Prompt) -> Reply:
        checks.append(len(checks))
        then(checks[-1])
        return {"findings": "Say the right word.", "decision": "revise"}

    return Script(roles={"checker": checker})


@pytest.mark.parametrize(
    ("asynchronous", "reopens", "run_id"),
    [(False, False, ""), (False, True, "night"), (True, True, ""), (True, False, "night")],
)
def test_an_attempt_that_has_ended_is_in_the_bank_while_it_is_checked(
    bank: MemoryBank, asynchronous: bool, reopens: bool, run_id: str
) -> None:
    def so_far() -> list[list[int]]:
        return [[len(attempt.steps) for attempt in ingest.state.trajectories] for ingest in bank.pending()]

    def then(check: int) -> None:
        assert until(lambda: so_far() == [[check + 1] if reopens else [1] * (check + 1)])

    run = scaled(correcting(then), House(reopens=reopens), k=3, mode="sequential")
    done = asyncio.run(called(run, asynchronous, task=booth_task(), bank=bank, run_id=run_id))
    assert [len(attempt.steps) for attempt in done.trajectories] == ([3] if reopens else [1, 1, 1])
    assert (bank.pending(), bank.experiences()) == ([], [done.experience])


@BOTH
def test_an_interrupt_leaves_one_group_with_those_that_ended_since(bank: MemoryBank, asynchronous: bool) -> None:
    def interrupt() -> None:
        assert until(lambda: sum(house.closed) == 2)
        raise KeyboardInterrupt

    house = Waits(r1=interrupt, r2=waits_for(bank, "0"))
    with pytest.raises(KeyboardInterrupt):
        asyncio.run(called(scaled(house=house, k=3), asynchronous, task=booth_task(), bank=bank))
    assert groups(bank) == [["0", "2"]]
    passed()
    assert groups(bank) == [["0", "2"]]
    run = scaled(k=3)
    done = run.resume(bank.pending()[0])
    assert "agent" not in counts(run)
    assert (bank.pending(), bank.experiences()) == ([], [done.experience])


async def test_a_cancelled_call_leaves_one_group_too(bank: MemoryBank) -> None:
    opened = threading.Event()
    run = scaled(house=Waits(r1=lambda: opened.wait(PATIENCE)), k=2)
    job = asyncio.ensure_future(run.acall(task=booth_task(), bank=bank))
    assert await asyncio.to_thread(until, lambda: groups(bank) == [["0"]])
    job.cancel()
    opened.set()
    with pytest.raises(asyncio.CancelledError):
        await job
    assert groups(bank) == [["0", "1"]]  # of the second, the last step was waited for


class Store:
    """Takes down what a bank is asked to keep. ``before`` happens first, and may raise."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, before: Callable[[list[str]], object] = lambda group: None):
        self.told: list[tuple[str, list[str]]] = []
        ingest = MemoryBank.ingest

        def noted(bank: MemoryBank, task: Any, rollouts: list[Trajectory], **more: Any) -> Ingest:
            group = [rollout.rollout_id for rollout in rollouts]
            self.told.append(("begin", group))
            try:
                before(group)
                return ingest(bank, task, rollouts, **more)
            finally:
                self.told.append(("end", group))

        monkeypatch.setattr(MemoryBank, "ingest", noted)

    @property
    def asked(self) -> list[list[str]]:
        return [group for what, group in self.told if what == "begin"]


@BOTH
def test_rollouts_that_end_soon_after_each_other_are_written_once(
    bank: MemoryBank, monkeypatch: pytest.MonkeyPatch, asynchronous: bool
) -> None:
    store = Store(monkeypatch)
    began = time.monotonic()
    asyncio.run(called(scaled(k=4), asynchronous, task=booth_task(), bank=bank))
    most = (time.monotonic() - began) // steps_later.SECONDS  # on a machine that stands still meanwhile
    assert len(store.asked) <= 1 + most
    assert store.asked[-1] == ["0", "1", "2", "3"]
    asked = list(store.asked)
    passed()
    assert store.asked == asked


@BOTH
def test_a_store_that_cannot_keep_them_early_costs_a_warning(
    bank: MemoryBank, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, asynchronous: bool
) -> None:
    def full(group: list[str]) -> None:
        if group == ["0"]:
            raise OSError("no space left")

    def warned() -> bool:
        return "booth/1: the rollouts that had ended could not be kept: no space left" in caplog.text

    Store(monkeypatch, full)
    house = Waits(r2=lambda: until(warned), r1=waits_for(bank, "0", "2"))
    done = asyncio.run(called(scaled(house=house, k=3), asynchronous, task=booth_task(), bank=bank))
    assert warned()
    assert len(done.trajectories) == 3
    assert (bank.pending(), bank.experiences()) == ([], [done.experience])


@BOTH
def test_what_was_kept_early_is_there_where_the_group_cannot_be_kept(
    bank: MemoryBank, monkeypatch: pytest.MonkeyPatch, asynchronous: bool
) -> None:
    def full(group: list[str]) -> None:
        if len(group) == 2:
            raise StorageError("no space left")

    store = Store(monkeypatch, full)
    run = scaled(house=Waits(r1=waits_for(bank, "0")), k=2)
    with pytest.raises(StorageError, match="no space left"):
        asyncio.run(called(run, asynchronous, task=booth_task(), bank=bank))
    passed()
    assert (store.asked, groups(bank)) == ([["0"], ["0", "1"]], [["0"]])


@pytest.mark.parametrize("given", [{}, {"contrast": {"labels": True}}], ids=str)
async def test_an_early_write_under_way_is_waited_for_and_the_event_loop_is_not_held_up(
    bank: MemoryBank, monkeypatch: pytest.MonkeyPatch, given: dict[str, Any]
) -> None:
    writing, loops = threading.Event(), threading.Event()
    looped: list[bool] = []

    def slow(group: list[str]) -> None:
        if group == ["0"]:
            writing.set()
            looped.append(loops.wait(PATIENCE))

    def last() -> None:
        assert until(lambda: sum(house.closed) == 2)
        passed()  # and the next early write stands in line

    store, house = Store(monkeypatch, slow), Waits(r2=lambda: writing.wait(PATIENCE), r1=last)
    run = scaled(house=house, config=MattsConfig.model_validate({"k": 3, **given}))
    job = asyncio.ensure_future(run.acall(task=booth_task(), bank=bank))
    while house.closed != [1, 1, 1]:
        await asyncio.sleep(0.01)
    for _ in range(20):  # so that the group would be written by now
        await asyncio.sleep(0.01)
    loops.set()
    done = await job
    passed()
    assert looped == [True]
    every = ["0", "1", "2"]
    assert store.told == [("begin", ["0"]), ("end", ["0"]), ("begin", every), ("end", every)]
    assert bank.experiences() == [done.experience]


@BOTH
def test_a_call_that_learns_nothing_keeps_nothing(
    bank: MemoryBank, monkeypatch: pytest.MonkeyPatch, asynchronous: bool
) -> None:
    def wait() -> None:
        assert until(lambda: 1 in house.closed)
        passed()

    store, house = Store(monkeypatch), Waits(r1=wait)
    done = asyncio.run(called(scaled(house=house, k=2), asynchronous, task=booth_task(), bank=bank, learn=False))
    assert len(done.trajectories) == 2
    assert (store.asked, bank.pending(), bank.experiences()) == ([], [], [])


def test_a_fork_keeps_them_for_itself(bank: MemoryBank) -> None:
    fork = bank.fork()
    done = scaled(house=one_by_one(fork), k=3)(task=booth_task(), bank=fork)
    assert (fork.pending(), fork.experiences()) == ([], [done.experience])
    assert (bank.pending(), bank.experiences()) == ([], [])


def resumed(bank: MemoryBank) -> Any:
    (kept,) = bank.pending()
    return scaled(k=2).resume(kept)


@BOTH
def test_who_learns_from_them_meanwhile_breaks_nothing(
    bank: MemoryBank, asynchronous: bool, caplog: pytest.LogCaptureFixture
) -> None:
    learned: list[Any] = []

    def resume() -> None:
        waits_for(bank, "0")()
        learned.append(resumed(bank).experience)

    run = scaled(house=Waits(r1=resume), k=2)
    done = asyncio.run(called(run, asynchronous, task=booth_task(), bank=bank))
    assert [len(each.trajectories) for each in bank.experiences()] == [1, 2]
    assert (bank.experiences(), bank.pending()) == ([*learned, done.experience], [])
    assert "somebody has learned from 1 meanwhile" in caplog.text


def test_who_is_at_it_when_the_group_comes_has_to_leave_it_to_the_call(bank: MemoryBank) -> None:
    at_it, over = threading.Event(), threading.Event()
    broken: list[str] = []

    def judge(prompt: Prompt) -> Reply:
        at_it.set()
        assert over.wait(PATIENCE)
        return Script().usual(prompt)

    def resume() -> None:
        (kept,) = bank.pending()
        try:
            scaled(Script(roles={"judge": judge}), k=2).resume(kept)
        except InputError as exc:
            broken.append(str(exc))

    thread = threading.Thread(target=resume)

    def begin() -> None:
        waits_for(bank, "0")()
        thread.start()
        assert at_it.wait(PATIENCE)

    done = scaled(house=Waits(r1=begin), k=2)(task=booth_task(), bank=bank)
    over.set()
    thread.join(PATIENCE)
    assert ["joined by others" in said for said in broken] == [True]
    assert (bank.pending(), bank.experiences()) == ([], [done.experience])


def test_what_is_deleted_meanwhile_does_not_keep_the_group_from_being_learned_from(bank: MemoryBank) -> None:
    def delete() -> None:
        waits_for(bank, "0")()
        bank.delete(bank.pending()[0].state.id)

    run: MaTTS = scaled(house=Waits(r1=delete), k=2)
    done = run(task=booth_task(), bank=bank)
    assert (bank.pending(), bank.experiences()) == ([], [done.experience])


def test_a_name_that_was_learned_from_before_is_not_taken_for_somebody_elses_work(
    bank: MemoryBank, caplog: pytest.LogCaptureFixture
) -> None:
    first = scaled(k=1)(task=booth_task(), bank=bank, run_id="night").experience

    def wait() -> None:
        assert until(lambda: 1 in house.closed)
        passed()

    house = Waits(r1=wait)
    done = scaled(house=house, k=2)(task=booth_task(), bank=bank, run_id="night")
    assert (bank.pending(), bank.experiences()) == ([], [first, done.experience])
    assert caplog.messages == []
