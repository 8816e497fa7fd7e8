"""Values refuse what cannot be used, and normalize what cannot be refused."""

from __future__ import annotations

from typing import Any

import pydantic
import pytest
from hypothesis import given, strategies as st

from rb_dspy import Outcome, Step, Task, Trajectory
from rb_dspy.errors import InvalidTask
from rb_dspy.schema import MAX_INSTRUCTION, Check, RoleUsage


@pytest.mark.parametrize("instruction", ["", " \n\t", "x" * (MAX_INSTRUCTION + 1)], ids=["empty", "blank", "long"])
def test_empty_and_too_long_instructions_are_refused(instruction: str) -> None:
    with pytest.raises(InvalidTask):
        Task(id="t", instruction=instruction)


@pytest.mark.parametrize(
    "instruction",
    [
        "Grö\xadße",  # soft hyphen
        "سلام\u200cخوش",
        "👩\u200d🚀 launch",
        "Go to\u200bthe shop",
        "\ufeffpasted",
        "\u200eleft\u202eright\u202c",
        "tab\tand\r\nnewline",
        "x" * MAX_INSTRUCTION,
    ],
    ids=["hyphen", "persian", "emoji", "zero-width", "bom", "directional", "layout", "longest"],
)
def test_text_of_any_script_is_stored_as_it_is(instruction: str) -> None:
    assert Task(id="t", instruction=instruction).instruction == instruction
    assert Step(action=instruction, observation=instruction).observation == instruction


def test_controls_and_lone_surrogates_are_normalized() -> None:
    assert Task(id="t", instruction="a\0b\x1b[31m\ud800c").instruction == "a␀b␛[31m\ufffdc"
    assert Step(action="\ud83d\ude00").action == "😀"  # a pair is one character


@pytest.mark.parametrize("bad", ["", "  ", "a\x00b", "a\u200bb", "x" * 501])
def test_bad_task_ids_are_refused(bad: str) -> None:
    with pytest.raises(InvalidTask):
        Task(id=bad, instruction="go")


@given(st.text(alphabet=st.characters()))
def test_any_text_is_read_again_as_it_was_stored(text: str) -> None:
    step = Step(thought=text, action=text, observation=text)
    assert len(step.action) <= len(text)
    again = Trajectory.model_validate_json(Trajectory(task_id="t", steps=(step,)).model_dump_json())
    assert again.steps == (step,)


def test_a_trajectory_of_the_first_edition_is_read() -> None:
    old = '{"task_id":"t","steps":[],"answer":null,"stop_reason":"unreadable","usage":{"agent":{"calls":1}}}'
    trajectory = Trajectory.model_validate_json(old)
    assert trajectory.stop_reason == "unparseable"
    assert trajectory.usage["agent"] == RoleUsage(calls=1)


def test_feedback_and_checks_are_stored_only_if_there_are_some() -> None:
    assert not {"feedback", "checks"} & Trajectory(task_id="t").model_dump().keys()
    full = Trajectory(task_id="t", feedback="wrong team", checks=(Check(after=1, decision="revise"),))
    assert Trajectory.model_validate_json(full.model_dump_json()) == full


@pytest.mark.parametrize("around", [lambda odd: odd, lambda odd: [1, odd], lambda odd: {"a": [odd]}])
@pytest.mark.parametrize(
    "odd", [10**4300, -(10**5000), float("nan"), float("inf")], ids=["long", "negative", "nan", "inf"]
)
def test_env_args_that_could_not_be_read_again_are_refused(odd: Any, around: Any) -> None:
    with pytest.raises(InvalidTask):
        Task(id="t", instruction="x", env_args={"answer": around(odd)})


def test_other_env_args_come_back_as_they_were() -> None:
    args = {"a": 10**4300 - 1, "b": [1e308, -0.0, None, True, "naïve 🎉"], "c": {"d": -(2**64)}}
    task = Task(id="t", instruction="x", env_args=args)
    assert Task.model_validate_json(task.model_dump_json()).env_args == args
    assert task.without_ground_truth().env_args == {}


@pytest.mark.parametrize("reward", [2, -0.1, float("nan"), float("inf")])
def test_a_reward_is_in_0_to_1(reward: float) -> None:
    with pytest.raises(pydantic.ValidationError):
        Outcome(reward=reward, success=True)


def test_usage_adds_up() -> None:
    assert RoleUsage(calls=1, seconds=0.5) + RoleUsage(calls=2, prompt_tokens=7) == RoleUsage(
        calls=3, prompt_tokens=7, seconds=0.5
    )
