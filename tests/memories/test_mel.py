"""MEL: a right and a wrong rollout teach together, from their first fork, what neither tells alone."""

from __future__ import annotations

import re
from typing import Any

import pytest

from rb_dspy import MaTTS
from rb_dspy.memories.mel import fork
from rb_dspy.schema import Step, Trajectory
from rb_dspy.testing import Prompt
from rb_dspy.testing.locks import code_of, hall, lock, locksmith
from tests.memories.worlds import new_bank, program


def visitor(prompt: Prompt) -> Any:
    """Plays the halls; names the first action after the fork of the attempt that succeeded."""
    if "heuristic" not in prompt.wants:
        return locksmith(prompt)
    maker = re.search(r"that (\w+) made", prompt["task"])
    assert maker
    did = re.findall(r"action: (.+)", prompt["right"])
    assert "It opens" in prompt["right"]
    assert "It stays shut" in prompt["wrong"]
    return {
        "situation": f"In a hall that {maker[1]} made.",
        "cause": "Only this door was another.",
        "heuristic": f"What {maker[1]} made opens with {did[0]}.",
    }


def test_the_first_fork_tells_which_door_opens_the_chest() -> None:
    with new_bank() as bank:
        scaled = MaTTS(program("mel", visitor), k=3)
        first = scaled(task=hall("Abus", 1), bank=bank, run_id="r")
        assert {each.label for each in first.verdicts} == {"success", "failure"}
        second = scaled(task=hall("Abus", 2), bank=bank, run_id="r")
        assert [each.label for each in second.verdicts] == ["success"] * 3
        assert all(each.steps[0].action == "open the blue door" for each in second.trajectories)
        assert [item.kind for item in second.memory.items] == ["heuristic"]


def test_a_rollout_alone_teaches_a_lesson() -> None:
    with new_bank() as bank:
        done = program("mel", visitor)
        done(task=lock("Abus", 1, tells=True), bank=bank, run_id="r")
        second = done(task=lock("Abus", 2), bank=bank, run_id="r")
        assert second.answer == code_of("Abus")
        assert [item.kind for item in second.memory.items] == ["lesson"]


@pytest.mark.parametrize(
    ("one", "other", "shared"),
    [("abc", "abd", 2), ("abc", "xbc", 0), ("abc", "ab", 2), ("ab", "ab", None), ("", "", None)],
)
def test_the_fork_is_where_the_actions_differ(one: str, other: str, shared: int | None) -> None:
    rollouts = [Trajectory(task_id="t", steps=tuple(Step(action=each) for each in every)) for every in (one, other)]
    assert fork(*rollouts) == shared
