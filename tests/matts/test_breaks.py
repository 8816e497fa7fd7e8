"""What breaks after the rollouts costs no rollout: they wait in the bank with what is known about them."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable
from typing import Any

import pytest
from dspy import lm15

from rb_dspy.backbones import Backbones
from rb_dspy.bank import MemoryBank
from rb_dspy.config import ActConfig, MattsConfig, MattsMode, ProgramConfig
from rb_dspy.errors import BackboneError, InfrastructureError
from rb_dspy.matts import MaTTS
from rb_dspy.program import ReasoningBank
from rb_dspy.schema import Task, Trajectory, Verdict
from rb_dspy.testing import Prompt, Reply, scripted_lm
from tests.matts.helpers import (
    Booth,
    House,
    Script,
    booth_of,
    booth_task,
    called,
    counts,
    role_of,
    scaled,
    wait_with_lessons,
)

BOTH = pytest.mark.parametrize("asynchronous", [False, True], ids=["threads", "asyncio"])


def _down(prompt: Prompt) -> Reply:
    raise lm15.ServerError("overloaded")


def _locked(prompt: Prompt) -> Reply:
    raise lm15.AuthError("bad key")


def _without(role: str) -> Script:
    return Script({"1": "right"}, roles={role: _down})


def _resumed(bank: MemoryBank, **kwargs: Any) -> tuple[MaTTS, Any]:
    run = scaled(Script({"1": "right"}), House(faults={}), **kwargs)
    (ingest,) = bank.pending()
    done = run.resume(ingest)
    assert bank.pending() == []
    assert len(bank.experiences()) == 1
    assert "agent" not in counts(run)
    return run, done


@BOTH
@pytest.mark.parametrize(
    ("mode", "role"),
    [
        *(("parallel", role) for role in ("judge", "contraster")),
        *((mode, role) for mode in ("vanilla", "best_of_n") for role in ("judge", "distiller")),
    ],
)
async def test_rollouts_wait_for_who_can_learn_from_them(
    bank: MemoryBank, mode: MattsMode, role: str, asynchronous: bool
) -> None:
    with pytest.raises(InfrastructureError, match="overloaded"):
        await called(scaled(_without(role), k=3, mode=mode), asynchronous, task=booth_task(), bank=bank, run_id="night")
    (kept,) = bank.pending()
    assert [trajectory.rollout_id for trajectory in kept.state.trajectories] == ["0", "1", "2"]
    assert "overloaded" in kept.state.error
    assert bank.experiences() == []

    run, done = _resumed(bank, k=3, mode=mode)
    assert done.experience.run_id == "night"
    assert done.answer == "right"
    assert done.memory_items
    assert ("judge" in counts(run)) == (role == "judge")


def _judge(says: Callable[[Prompt], Reply], *booths: str) -> Script:
    """A judge that breaks at these booths."""

    def judge(prompt: Prompt) -> Reply:
        return says(prompt) if booth_of(prompt["trajectory"]) in booths else Script().usual(prompt)

    def checker(prompt: Prompt) -> Reply:
        return {"findings": "Again.", "decision": "revise"}

    return Script({"1": "right"}, roles={"judge": judge, "checker": checker})


@BOTH
@pytest.mark.parametrize(
    "config",
    [
        {},
        {"contrast": {"labels": True}},
        {"select": {"verdicts": True}},
        {"mode": "vanilla"},
        {"mode": "best_of_n"},
        {"mode": "sequential"},
    ],
    ids=str,
)
async def test_a_judge_that_breaks_for_some_rollouts_leaves_those_unjudged(
    bank: MemoryBank, config: dict[str, Any], asynchronous: bool
) -> None:
    run = scaled(_judge(_down, "0", "2"), config=MattsConfig.model_validate({"k": 3, **config}))
    done = await called(run, asynchronous, task=booth_task(), bank=bank)
    assert [verdict.label for verdict in done.verdicts] == ["unknown", "success", "unknown"]
    unjudged = [done.verdicts[i].reasons for i in (0, 2)]
    assert all(reasons.startswith("not judged: ") and "overloaded" in reasons for reasons in unjudged)
    assert (len(done.trajectories), done.lost) == (3, ())
    assert done.memory_items
    assert bank.pending() == []
    assert bank.experiences() == [done.experience]
    assert done.experience.verdicts == done.verdicts


@pytest.mark.parametrize("mode", ["parallel", "vanilla"])
def test_a_judge_that_cannot_be_used_at_all_is_an_error(bank: MemoryBank, mode: MattsMode) -> None:
    with pytest.raises(BackboneError, match="bad key"):
        scaled(_judge(_locked, "2"), k=3, mode=mode)(task=booth_task(), bank=bank)
    (kept,) = bank.pending()
    assert (kept.state.stage, len(kept.state.trajectories)) == ("recorded", 3)
    run, _ = _resumed(bank, k=3, mode=mode)
    assert counts(run)["judge"] == 3


@pytest.mark.parametrize(
    "config", [{}, {"mode": "vanilla"}, {"contrast": {"labels": True}}, {"at_once": 2}, {"adaptive": {"enabled": True}}]
)
def test_a_judge_that_is_down_is_asked_no_more_than_once_about_each_rollout(
    bank: MemoryBank, config: dict[str, Any]
) -> None:
    run = scaled(Script(roles={"judge": _down}), config=MattsConfig.model_validate({"k": 3, **config}))
    with pytest.raises(InfrastructureError, match="overloaded"):
        run(task=booth_task(), bank=bank)
    assert counts(run)["judge"] == 3
    assert len(bank.pending()) == 1


def test_a_judge_that_breaks_once_is_asked_again_where_rollouts_are_judged_early(bank: MemoryBank) -> None:
    broken = []

    def judge(task: Task, trajectory: Trajectory) -> Verdict:
        if trajectory.rollout_id == "1" and not broken:
            broken.append(trajectory)
            raise OSError("away")
        return Verdict(label="success", reasons=trajectory.rollout_id)

    config = MattsConfig.model_validate({"k": 3, "contrast": {"labels": True}})
    run = scaled(config=config, judge=judge)
    done = run(task=booth_task(), bank=bank)
    assert [verdict.reasons for verdict in done.verdicts] == ["0", "1", "2"]
    assert done.lost == ()


def test_a_contraster_that_breaks_costs_no_verdict(bank: MemoryBank) -> None:
    with pytest.raises(InfrastructureError, match="contraster"):
        scaled(_without("contraster"), k=3)(task=booth_task(), bank=bank)
    (kept,) = bank.pending()
    assert kept.state.stage == "judged"
    run, _ = _resumed(bank, k=3)
    assert counts(run) == {"contraster": 1, "selector": 1}


@BOTH
@pytest.mark.parametrize("mode", ["parallel", "vanilla", "best_of_n"])
async def test_a_selector_that_breaks_leaves_the_choice_to_the_answers(
    bank: MemoryBank, mode: MattsMode, asynchronous: bool
) -> None:
    script = Script({"0": "right", "2": "right"}, roles={"selector": _down})
    done = await called(scaled(script, k=3, mode=mode), asynchronous, task=booth_task(), bank=bank)
    assert done.answer == "right"  # as most rollouts say
    assert "overloaded" in done.selection.note
    assert done.selection.votes == (0, 0, 0)
    assert done.memory_items
    assert bank.pending() == []


@BOTH
@pytest.mark.parametrize("mode", ["parallel", "vanilla", "best_of_n"])
async def test_a_selector_that_cannot_be_used_at_all_is_an_error(
    bank: MemoryBank, mode: MattsMode, asynchronous: bool
) -> None:
    script = Script({"1": "right"}, roles={"selector": _locked})
    with pytest.raises(BackboneError, match="bad key"):
        await called(scaled(script, k=3, mode=mode), asynchronous, task=booth_task(), bank=bank)
    (kept,) = bank.pending()
    assert len(kept.state.trajectories) == 3
    assert "bad key" in kept.state.error
    _, done = _resumed(bank, k=3, mode=mode)
    assert done.answer == "right"


def test_lessons_that_could_not_be_appended_are_not_drawn_again(bank: MemoryBank) -> None:
    wait_with_lessons(bank, scaled(k=3))
    (kept,) = bank.pending()
    assert [draft.title for draft in kept.drafts or ()] == ["Compare"]
    run, done = _resumed(bank, k=3)
    assert counts(run) == {"selector": 1}
    assert [item.title for item in done.memory_items] == ["Compare"]


def test_lessons_are_admitted_though_the_selector_breaks(bank: MemoryBank) -> None:
    wait_with_lessons(bank, scaled(k=3))
    run = scaled(Script(roles={"selector": _locked}), k=3)
    with pytest.raises(BackboneError, match="bad key"):
        run.resume(*bank.pending())
    assert bank.pending() == []
    assert [item.title for item in bank.items()] == ["Compare"]


def test_a_bug_that_is_not_ours_is_noted_too(bank: MemoryBank, monkeypatch: pytest.MonkeyPatch) -> None:
    run = scaled(k=3)
    monkeypatch.setattr(run.contrast, "predict", lambda **kwargs: 1 / 0)
    monkeypatch.setattr(run.contrast.predict, "lm", None, raising=False)
    with pytest.raises(InfrastructureError, match=r"^contraster \(scripted/lm\) broke: ZeroDivisionError"):
        run(task=booth_task(), bank=bank)
    (kept,) = bank.pending()
    assert "division by zero" in kept.state.error


def test_what_was_saved_is_not_what_was_lost(bank: MemoryBank) -> None:
    house = House(faults={"0": ("reset", ValueError)})
    with pytest.raises(InfrastructureError):
        scaled(_without("contraster"), house, k=4)(task=booth_task(), bank=bank)
    _, done = _resumed(bank, k=4)
    assert (done.launched, done.saved, done.lost) == (3, 0, ())


@BOTH
async def test_a_prediction_tells_what_this_call_did_where_the_bank_knows_rollouts_of_these_names(
    bank: MemoryBank, asynchronous: bool
) -> None:
    first = await called(scaled(k=2), asynchronous, task=booth_task(), bank=bank, run_id="monday")
    again = await called(
        scaled(Script({"1": "right"}), k=2), asynchronous, task=booth_task(), bank=bank, run_id="monday"
    )
    assert (first.answer, again.answer, again.verdict.label) == ("wrong", "right", "success")
    assert [trajectory.answer for trajectory in again.trajectories] == ["wrong", "right"]
    assert bank.experiences() == [first.experience]


class _Interrupted(Booth):
    """The first one that is made interrupts; the others have a long way to go."""

    def step(self, action: str) -> tuple[str, bool]:
        if self.house.made[0] is self:
            raise KeyboardInterrupt
        time.sleep(0.02)
        return super().step(action)


def _stepping(made: list[Booth]) -> bool:
    """Whether anybody takes a step while we look."""
    before = [len(booth.words) for booth in made]
    time.sleep(0.08)
    return before != [len(booth.words) for booth in made]


def _wait_for(what: Callable[[], bool], seconds: float = 5.0) -> bool:
    end = time.monotonic() + seconds
    while not what() and time.monotonic() < end:
        time.sleep(0.005)
    return what()


@pytest.mark.parametrize("at_once", [None, 2])
@BOTH
def test_an_interrupt_ends_the_call_at_once_and_leaves_nobody_stepping(
    bank: MemoryBank, asynchronous: bool, at_once: int | None
) -> None:
    class Long(House):
        def __call__(self, task: Task, rollout_id: str) -> Booth:
            self.made.append(_Interrupted(self, rollout_id))
            return self.made[-1]

    house = Long(steps=500)
    act = ProgramConfig(act=ActConfig(max_steps=500))
    base = ReasoningBank(act, backbones=Backbones(agent=scripted_lm(Script())), environments=house)
    run = MaTTS(base, config=MattsConfig(k=4, at_once=at_once))
    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        asyncio.run(called(run, asynchronous, task=booth_task(), bank=bank))
    assert time.monotonic() - started < 3  # the others had ten seconds to go
    assert _wait_for(lambda: house.closed == [1] * len(house.made))
    assert not _stepping(house.made)
    assert bank.pending() == []
    assert bank.experiences() == []


@BOTH
def test_a_key_that_is_pressed_ends_the_call_too(bank: MemoryBank, asynchronous: bool) -> None:
    class Pressed(House):
        def breaks(self, rollout: str, where: str) -> None:
            if (rollout, where) == ("1", "step 1"):
                os.kill(os.getpid(), signal.SIGINT)  # reaches the main thread, which waits for the rollouts
            time.sleep(0.005)

    house = Pressed(steps=30)
    run = scaled(house=house, k=3)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            asyncio.run(run.acall(booth_task(), bank)) if asynchronous else run(booth_task(), bank)
    finally:
        signal.signal(signal.SIGINT, before)
    assert _wait_for(lambda: house.closed == [1] * len(house.made))
    assert all(len(booth.words) < 30 for booth in house.made)
    assert not _stepping(house.made)
    assert (bank.pending(), bank.experiences()) == ([], [])


def test_an_interrupt_in_a_judge_ends_the_call(bank: MemoryBank) -> None:
    def judge(prompt: Prompt) -> Reply:
        if booth_of(prompt["trajectory"]) == "1":
            raise KeyboardInterrupt
        return Script().usual(prompt)

    run = scaled(Script(roles={"judge": judge}), k=3)
    with pytest.raises(KeyboardInterrupt):
        run(task=booth_task(), bank=bank)
    assert len(bank.pending()) == 1
    assert "agent" in {role_of(prompt) for prompt in run.backbones.lm("agent").engine.prompts}
