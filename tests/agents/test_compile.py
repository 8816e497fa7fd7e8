"""The prompts around an agent of the user's own are compiled; the agent stays as it is."""

from __future__ import annotations

import re

import pytest

from rb_dspy import Backbones, ReasoningBank, Task
from rb_dspy.errors import InputError
from rb_dspy.prompts import prompts_of
from rb_dspy.testing import scripted_lm, toys
from tests.compile.helpers import EVIDENCE, apprentice, compiled


def mine(task: Task, lessons: str) -> str:
    """Opens every second lock."""
    serial = re.findall(r"serial (\d+)", task.instruction)[0]
    return serial[::-1] if int(serial) % 2 or "backwards" in lessons else serial


@pytest.mark.parametrize("step", ["judge", "all"])
def test_the_prompts_around_an_agent_are_compiled(step: str) -> None:
    student = ReasoningBank(agent=mine, backbones=Backbones(agent=scripted_lm(apprentice)), environments=toys)
    before = prompts_of(student)
    assert all(not name.startswith("act") for name in before)
    found = compiled(program=student, step=step)
    assert prompts_of(student) == before  # a compile does not change the student
    after = prompts_of(found.program)
    if step == "judge":
        assert EVIDENCE in after["judge.predict"]["instructions"]
    assert after.keys() == before.keys()


def test_an_agent_without_prompts_has_no_step_to_compile() -> None:
    with pytest.raises(InputError, match="has no prompt"):
        compiled(program=ReasoningBank(agent=mine, environments=toys), step="agent")
