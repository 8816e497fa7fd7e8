"""Steve: a diagnosis that needs no model tells what to avoid, and guardrails stand apart from skills."""

from __future__ import annotations

import re
from typing import Any

import pytest

from rb_dspy.config import ActConfig, ProgramConfig
from rb_dspy.memories.steve import diagnose
from rb_dspy.schema import Step, Trajectory
from rb_dspy.testing import Prompt
from rb_dspy.testing.locks import corridor, locksmith
from tests.memories.worlds import new_bank, program


def rollout(*steps: tuple[str, str]) -> Trajectory:
    done = tuple(Step(action=action, observation=observation) for action, observation in steps)
    return Trajectory(task_id="t", first_observation="A hall.", steps=done)


@pytest.mark.parametrize(
    ("steps", "found"),
    [
        ([("go north", "A kitchen."), ("go south", "A hall.")], []),
        ([("look", "A  hall.")], ["step 1, 'look': nothing changed"]),
        ([("look", ""), ("look", "")], ["step 2, 'look': the same as step 1"]),
        ([("fly", "You can't do that.")], ["step 1, 'fly': refused"]),
        ([("f(1)", "Error: there is no function f.")], ["step 1, 'f(1)': refused"]),
        ([("read", f"{'A long page. ' * 40} No error was found.")], []),
        (
            [("a", "1"), ("b", "2"), ("A", "1"), ("b", "2")],
            ["step 3, 'a': the same as step 1", "step 4, 'b': the same as step 2"],
        ),
        ([("forward", "Room 1."), ("forward", "Room 2.")], []),
    ],
)
def test_steps_are_diagnosed(steps: list[tuple[str, str]], found: list[str]) -> None:
    assert diagnose(rollout(*steps)) == found


def walker(prompt: Prompt) -> Any:
    """Does what a skill says, and nothing that a guardrail forbids; writes rules from the diagnosis alone."""
    if "action" in prompt.wants:
        skills, _, rails = prompt.get("memory").partition("Guardrails")
        good, bad = re.findall(r"- (\w+)", skills), re.findall(r"Never: (\w+)", rails)
        ideas = [each for each in ("run", "wait", "forward") if each not in bad]
        return {"thought": "So it is.", "action": (good or ideas)[0]}
    if "label" in prompt.wants:
        return locksmith(prompt)
    when = {"when": "Walking through a corridor."}
    if "never" not in prompt.wants:
        return {**when, "steps": ["forward, until the end"], "check": "You are through."}
    blamed = re.findall(r"'(\w+)': ", prompt["diagnosis"])
    return {**when, "never": blamed[0] if blamed else "give up", "instead": "Try something else."}


def test_what_was_diagnosed_is_not_done_again_and_what_worked_is() -> None:
    config = ProgramConfig(act=ActConfig(max_steps=3))
    with new_bank() as bank:
        done = program("steve", walker, config)
        results = [done(task=corridor(number), bank=bank, run_id="r") for number in range(1, 5)]
        assert [each.trajectory.steps[0].action for each in results] == ["run", "wait", "forward", "forward"]
        memory = done.recall(corridor(9), bank)
        assert [item.kind for item in memory.items] == ["skill", "guardrail", "guardrail"]
        skills, rails = memory.block.split("Guardrails")
        assert "Never" not in skills
        assert "forward" not in rails
