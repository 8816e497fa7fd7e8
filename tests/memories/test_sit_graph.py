"""SIT-Graph: after each call, the agent sees which tool led to success from there, and how often."""

from __future__ import annotations

import re
from typing import Any

import pytest

from rb_dspy import MemoryBank, ReasoningBank
from rb_dspy.backbones import Backbones
from rb_dspy.memories.sit_graph import tool_of
from rb_dspy.protocols import Environment
from rb_dspy.schema import Outcome, Step, Task, Trajectory
from rb_dspy.testing import Prompt, scripted_lm
from tests.memories.worlds import new_bank


class Office(Environment):
    """A letter must be found, signed and sent, in this order; nothing says so."""

    action_rules = "find(), sign() or send()"

    def __init__(self) -> None:
        self.done: list[str] = []

    def reset(self, task: Task) -> str:
        return "A desk."

    def step(self, action: str) -> tuple[str, bool]:
        self.done.append(action)
        if action == "send()":
            return ("It is sent." if self.right else "It comes back."), True
        return "Done.", len(self.done) > 4

    @property
    def right(self) -> bool:
        return self.done == ["find()", "sign()", "send()"]

    def outcome(self) -> Outcome:
        return Outcome(reward=float(self.right), success=self.right)


def letter(number: int) -> Task:
    return Task(id=f"letter-{number}", instruction=f"Letter number {number}.", env="office")


def clerk(prompt: Prompt) -> Any:
    """Calls what succeeded from here, as far as it is told now; else sends."""
    if "label" in prompt.wants:
        return {"reasons": "-", "label": "success" if "It is sent" in prompt["trajectory"] else "failure"}
    now = prompt["observation"] if prompt.turns else prompt["memory"]
    known = re.findall(r"(\w+) succeeded ([1-9]\d*) of", now)
    return {"thought": "-", "action": f"{known[0][0]}()" if known else "send()"}


def office() -> ReasoningBank:
    backbones = Backbones(agent=scripted_lm(clerk))
    return ReasoningBank(memory="sit_graph", backbones=backbones, environments=lambda task, rollout_id: Office())


def show_how(done: ReasoningBank, bank: MemoryBank) -> None:
    """Learn from a rollout of somebody who knows the office."""
    steps = tuple(Step(action=f"{each}()", observation="Done.") for each in ("find", "sign", "send"))
    done.learn(letter(1), Trajectory(task_id="letter-1", steps=steps), bank, outcome=1.0)


def test_each_turn_shows_what_succeeded_after_the_last_tool() -> None:
    with new_bank() as bank:
        done = office()
        assert done(task=letter(0), bank=bank, run_id="r").verdict.label == "failure"
        show_how(done, bank)
        result = done(task=letter(2), bank=bank, run_id="r")
        assert [step.action for step in result.trajectory.steps] == ["find()", "sign()", "send()"]
        assert result.verdict.label == "success"


def test_counts_are_those_of_all_tasks() -> None:
    with new_bank() as bank:
        done = office()
        done(task=letter(0), bank=bank, run_id="r")
        show_how(done, bank)
        for number in (2, 3):
            done(task=letter(number), bank=bank, run_id="r")
        lines = done.recall(letter(9), bank).block.splitlines()
        assert lines == [
            "> 1. At the start, find succeeded 3 of 3 times",
            "> 2. At the start, send succeeded 0 of 1 times",
        ]
        assert {item.kind for item in bank.items()} == {"edge"}
        assert len(bank.items()) == 4
        bank.rollback("run:r")
        assert "find succeeded 1 of 1" in done.recall(letter(9), bank).block


@pytest.mark.parametrize(
    ("action", "tool"),
    [
        ("cd(folder='a')", "cd"),
        ("[ls(), cd('a')]", "ls"),
        ('{"arguments": {"q": "x"}, "name": "search"}', "search"),
        ("go north", "go"),
        ("0000", "0000"),
        ("!?", "(none)"),
    ],
)
def test_the_tool_of_an_action(action: str, tool: str) -> None:
    assert tool_of(action) == tool
