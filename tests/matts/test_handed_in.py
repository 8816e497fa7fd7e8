"""Sequential scaling when an attempt gives no answer, or a correction nothing: what is handed in, and what stands."""

from __future__ import annotations

from typing import Any

import pytest
from dspy import lm15

from rb_dspy.bank import MemoryBank
from rb_dspy.schema import Task
from rb_dspy.testing import Prompt, Reply
from tests.matts.helpers import Booth, House, Script, booth_task, called, scaled

BOTH = pytest.mark.parametrize("asynchronous", [False, True], ids=["threads", "asyncio"])
HINT = "It stayed dark: say the right word."


def _checker(prompt: Prompt) -> Reply:
    return {"findings": HINT, "decision": "revise"}


def _speechless_from(attempt: int) -> Script:
    """An agent that says nothing that can be read from this attempt on; every check wants another one."""

    def agent(prompt: Prompt) -> Reply:
        return "I am lost." if prompt["observation"].count(HINT) >= attempt else Script().usual(prompt)

    return Script(roles={"agent": agent, "checker": _checker})


@BOTH
async def test_the_last_attempt_with_an_answer_is_handed_in(bank: MemoryBank, asynchronous: bool) -> None:
    run = scaled(_speechless_from(2), k=4, mode="sequential")
    done = await called(run, asynchronous, task=booth_task(), bank=bank)
    assert [trajectory.answer for trajectory in done.trajectories] == ["wrong", "wrong", None, None]
    assert (done.trajectory.rollout_id, done.answer) == ("1", "wrong")
    assert done.verdict is done.verdicts[1]
    assert done.experience.trajectories == done.trajectories  # all are learned from


class _Mute(Booth):
    def answer(self) -> None:
        return None


def test_an_attempt_that_ends_well_and_gives_no_answer_is_not_handed_in(bank: MemoryBank) -> None:
    def made(task: Task, rollout: str) -> Booth:
        return (Booth if rollout in "01" else _Mute)(House(), rollout)

    done = scaled(_speechless_from(9), k=4, mode="sequential")(task=booth_task(), bank=bank, environments=made)
    assert [trajectory.answer for trajectory in done.trajectories] == ["wrong", "wrong", None, None]
    assert {trajectory.stop_reason for trajectory in done.trajectories} == {"done"}
    assert (done.trajectory.rollout_id, done.answer) == ("1", "wrong")


@pytest.mark.parametrize(("speechless", "handed_in"), [(2, "1"), (0, "3"), (9, "3")])
def test_without_any_answer_it_is_the_last_that_was_not_broken_off(
    bank: MemoryBank, speechless: int, handed_in: str
) -> None:
    run = scaled(_speechless_from(speechless), k=4, mode="sequential")
    done = run(task=booth_task(), bank=bank, environments=lambda task, rollout: _Mute(House(), rollout))
    assert [trajectory.answer for trajectory in done.trajectories] == [None] * 4
    assert done.trajectory.rollout_id == handed_in


def _too_long(prompt: Prompt) -> Reply:
    raise lm15.ContextLengthError("too long")


@pytest.mark.parametrize("says", [lambda prompt: "I am lost.", _too_long], ids=["unreadable", "context"])
@BOTH
async def test_a_correction_that_cannot_be_read_leaves_the_work_as_it_stood(
    bank: MemoryBank, asynchronous: bool, says: Any
) -> None:
    def agent(prompt: Prompt) -> Reply:
        return says(prompt) if HINT in prompt["observation"] else Script().usual(prompt)

    script = Script(roles={"agent": agent, "checker": _checker})
    house = House(reopens=True)
    done = await called(scaled(script, house, k=3, mode="sequential"), asynchronous, task=booth_task(), bank=bank)
    (trajectory,) = done.trajectories
    assert (trajectory.stop_reason, trajectory.answer, len(trajectory.steps)) == ("done", "wrong", 1)
    assert [check.decision for check in trajectory.checks] == ["revise", "revise"]
    assert (done.answer, done.lost, done.launched) == ("wrong", (), 3)
    assert house.closed == [1]


def test_a_correction_that_cannot_be_read_half_way_is_broken_off(bank: MemoryBank) -> None:
    class Longer(Booth):
        def step(self, action: str) -> tuple[str, bool]:
            return super().step(action)[0], len(self.words) == 1

        def reopen(self) -> str:
            return "Go on."

    def agent(prompt: Prompt) -> Reply:
        return "I am lost." if prompt.turns == 2 else Script().usual(prompt)

    script = Script(roles={"agent": agent, "checker": _checker})
    run = scaled(script, k=2, mode="sequential")
    done = run(task=booth_task(), bank=bank, environments=lambda task, rollout: Longer(House(), rollout))
    assert (len(done.trajectory.steps), done.trajectory.stop_reason) == (2, "unreadable")
