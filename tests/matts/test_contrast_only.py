"""A world where no rollout alone teaches what decides, and several that are compared do."""

from __future__ import annotations

import pytest

from rb_dspy.bank import MemoryBank
from rb_dspy.config import ContrastConfig, MattsConfig, MattsMode
from rb_dspy.matts import MaTTS
from rb_dspy.program import ReasoningBank
from rb_dspy.schema import Outcome, Task
from rb_dspy.testing import Doors, Prompt, Reply
from tests.matts.helpers import called
from tests.worlds import backbones, hall, openers

LESSON = "the blue door decides"
BOTH = pytest.mark.parametrize("asynchronous", [False, True], ids=["threads", "asyncio"])


class Manor:
    """``Doors`` in the middle of a long walk."""

    def __init__(self, doors: Doors) -> None:
        self._doors = doors
        self._left = 10
        self._last = ""

    @classmethod
    def make(cls, task: Task, rollout_id: str) -> Manor:
        return cls(Doors.make(task, rollout_id))

    @property
    def action_rules(self) -> str:
        return self._doors.action_rules

    def reset(self, task: Task) -> str:
        return self._doors.reset(task)

    def valid_actions(self) -> tuple[str, ...] | None:
        return ("walk on",) if self._left > 5 or self._last else self._doors.valid_actions()

    def step(self, action: str) -> tuple[str, bool]:
        if action != "walk on":
            seen, opened = self._doors.step(action)
            self._last = seen if opened else ""
            return ("A door is open." if opened else seen), False
        self._left -= 1
        pictures = "Old pictures, none of which tells of doors. " * 12
        return (pictures, False) if self._left else (f"{pictures}{self._last}", True)

    def answer(self) -> str | None:
        return self._doors.answer()

    def outcome(self) -> Outcome:
        return self._doors.outcome()

    def close(self) -> None:
        self._doors.close()


def _walkers(prompt: Prompt) -> Reply:
    if "action" in prompt.wants and "walk on" in prompt["valid_actions"]:
        return {"thought": "On.", "action": "walk on"}
    return openers(prompt)


def _program() -> ReasoningBank:
    return ReasoningBank(backbones=backbones(openers), environments=Doors.make)


def _learned(bank: MemoryBank) -> bool:
    return any(LESSON in item.content for item in bank.items())


@BOTH
@pytest.mark.parametrize("labels", [False, True], ids=["no labels", "labels"])
async def test_parallel_scaling_finds_the_lesson_and_the_next_task_uses_it(
    bank: MemoryBank, labels: bool, asynchronous: bool
) -> None:
    run = MaTTS(_program(), config=MattsConfig(k=3, contrast=ContrastConfig(labels=labels)))
    done = await called(run, asynchronous, task=hall("Ada", 1), bank=bank)

    opened = [tuple(step.action.split()[2] for step in trajectory.steps) for trajectory in done.trajectories]
    assert len(set(opened)) == 3
    assert len({doors[0] for doors in opened}) == 1  # they differ in one action
    assert sorted(verdict.label for verdict in done.verdicts) == ["failure", "failure", "success"]
    assert _learned(bank)

    following = _program()(task=hall("Ada", 2), bank=bank.fork())
    assert following.trajectory.steps[0].action == "open the blue door"
    assert following.verdict.label == "success"
    scaled_too = await called(run, asynchronous, task=hall("Ada", 3), bank=bank)
    assert [verdict.label for verdict in scaled_too.verdicts] == ["success"] * 3


@pytest.mark.parametrize("k", [3, 5, 8])
def test_it_does_so_too_where_the_door_is_one_step_of_many(bank: MemoryBank, k: int) -> None:
    program = ReasoningBank(backbones=backbones(_walkers), environments=Manor.make)
    done = MaTTS(program, k)(task=hall("Ada", 1), bank=bank)
    assert {len(trajectory.steps) for trajectory in done.trajectories} == {12}
    assert _learned(bank)
    assert program(task=hall("Ada", 2), bank=bank).verdict.label == "success"


@BOTH
@pytest.mark.parametrize("mode", ["vanilla", "best_of_n"])
async def test_the_ablations_do_not_find_it(bank: MemoryBank, mode: MattsMode, asynchronous: bool) -> None:
    run = MaTTS(_program(), k=3, mode=mode)
    done = await called(run, asynchronous, task=hall("Ada", 1), bank=bank)
    assert sorted(verdict.label for verdict in done.verdicts) == ["failure", "failure", "success"]
    assert done.verdict.label == "success"  # the selector's part of the scaling works
    assert len(bank.items()) >= 1
    assert not _learned(bank)
    following = _program()(task=hall("Ada", 2), bank=bank)
    assert following.memory
    assert following.trajectory.steps[0].action == "open the red door"
    assert following.verdict.label == "failure"


def test_one_rollout_does_not_find_it(bank: MemoryBank) -> None:
    MaTTS(_program(), k=1)(task=hall("Ada", 1), bank=bank)
    assert len(bank.items()) == 1
    assert not _learned(bank)
