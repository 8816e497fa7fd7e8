"""Values refuse what cannot be used, and make storable what cannot be refused."""

from __future__ import annotations

import json
import unicodedata
from typing import Any

import pydantic
import pytest
from hypothesis import given, strategies as st

from rb_dspy import MemoryDraft, Outcome, Step, Task, Trajectory
from rb_dspy.errors import InvalidTask
from rb_dspy.schema import MAX_INSTRUCTION
from rb_dspy.text import MAX_TEXT, hidden_characters, visible


@pytest.mark.parametrize(
    ("instruction", "message"),
    [
        ("", "is empty"),
        (" \n\t", "is empty"),
        ("x" * 1_000_000, "1,000,000 characters; expected at most 100,000"),
        ("Go to\u200bthe shop", "hides 1 invisible character.*U\\+200B at position 5"),
        ("abc\u202edef", "U\\+202E"),
        ("nul\x00", "U\\+0000"),
        ("\ud800", "U\\+D800"),
        ("tag\U000e0041", "U\\+E0041"),
    ],
)
def test_bad_instructions_are_refused_in_one_line(instruction: str, message: str) -> None:
    with pytest.raises(InvalidTask, match=message) as caught:
        Task(id="t", instruction=instruction)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "instruction",
    ["Schalte das Licht ein", "سلام‌خوش", "👩‍🚀 launch", "tab\tand\nnewline", "x" * MAX_INSTRUCTION],
    ids=["german", "persian", "emoji", "layout", "longest"],
)
def test_ordinary_text_of_any_script_is_accepted(instruction: str) -> None:
    assert Task(id="t", instruction=instruction).instruction == instruction


@pytest.mark.parametrize("bad", ["", "  ", "a\x00b", "x" * 501])
def test_bad_task_ids_are_refused(bad: str) -> None:
    with pytest.raises(InvalidTask, match="task id"):
        Task(id=bad, instruction="go")


@given(st.text(alphabet=st.characters()))
def test_any_text_of_an_agent_or_environment_becomes_storable(text: str) -> None:
    step = Step(thought=text, action=text, observation=text)
    for kept in (step.thought, step.action, step.observation):
        assert not hidden_characters(kept)
        kept.encode("utf-8")
        assert len(kept) == len(text)
    again = Trajectory.model_validate_json(Trajectory(task_id="t", steps=(step,)).model_dump_json())
    assert again.steps == (step,)


def test_very_long_text_is_cut_and_says_so() -> None:
    kept = visible("x" * (MAX_TEXT + 7))
    assert kept.endswith("[47 characters cut]")
    assert MAX_TEXT - 50 < len(kept) <= MAX_TEXT
    assert visible(kept) == kept


def test_no_character_that_python_can_print_is_hidden() -> None:
    assert not hidden_characters("".join(filter(str.isprintable, map(chr, range(0x110000)))))


@pytest.mark.parametrize("code", range(128))
def test_of_ascii_control_characters_are_hidden_and_layout_is_not(code: int) -> None:
    one = chr(code)
    hides = unicodedata.category(one) == "Cc" and one not in "\t\n\r"
    for text in (one, f"a {one}", f"a\n{one}\nb", f"ä\n{one}"):  # of one line, of several, and of more than ASCII
        assert visible(text) == (text.replace(one, "\ufffd") if hides else text)
        assert [position for position, _ in hidden_characters(text)] == ([text.index(one)] if hides else [])


def test_the_schema_that_distillers_read_gives_no_titles_to_copy() -> None:
    assert '"Title"' not in json.dumps(MemoryDraft.model_json_schema())


@pytest.mark.parametrize(
    ("odd", "why"),
    [
        (10**4300, "more than 4,300 digits"),
        (-(10**5000), "more than 4,300 digits"),
    ],
    ids=["long", "long and negative"],
)
@pytest.mark.parametrize(
    "around", [lambda odd: odd, lambda odd: [1, odd], lambda odd: {"a": {"b": [odd]}}], ids=["bare", "listed", "deep"]
)
def test_env_args_that_would_not_be_read_as_written_are_refused(odd: Any, why: str, around: Any) -> None:
    with pytest.raises(InvalidTask, match=why):
        Task(id="t", instruction="x", env_args={"answer": around(odd)})


def test_other_env_args_come_back_as_they_were() -> None:
    args = {"a": 10**4300 - 1, "b": [1e308, -0.0, None, True, "naïve 🎉"], "c": {"d": -(2**64)}}
    task = Task(id="t", instruction="x", env_args=args)
    assert Task.model_validate_json(task.model_dump_json()).env_args == args


@pytest.mark.parametrize("reward", [2, -0.1, float("nan"), float("inf")])
def test_a_reward_is_of_0_to_1(reward: float) -> None:
    with pytest.raises(pydantic.ValidationError, match="reward"):
        Outcome(reward=reward, success=True)
    assert [Outcome(reward=each, success=False).reward for each in (0, 0.5, 1)] == [0, 0.5, 1]
