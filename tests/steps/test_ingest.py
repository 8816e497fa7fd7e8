"""Trajectories of other agents."""

from __future__ import annotations

from typing import Any

import pytest

from rb_dspy import Step, Task, Trajectory
from rb_dspy.errors import InvalidTask, InvalidTrajectory
from rb_dspy.steps import as_task, as_trajectory

TASK = Task(id="t", instruction="Find the capital.")


def test_messages_with_tool_calls() -> None:
    found = as_trajectory(
        TASK,
        [
            {"role": "system", "content": "You are an agent."},
            {"role": "user", "content": "Find the capital."},
            {
                "role": "assistant",
                "content": "Two searches.",
                "tool_calls": [
                    {"id": "a", "type": "function", "function": {"name": "search", "arguments": '{"q": "x"}'}},
                    {"id": "b", "type": "function", "function": {"name": "search", "arguments": {"q": "y"}}},
                ],
            },
            {"role": "tool", "tool_call_id": "b", "content": "second"},
            {"role": "tool", "tool_call_id": "a", "content": [{"type": "text", "text": "first"}]},
            {"role": "assistant", "content": "It is Paris."},
        ],
    )
    assert found.steps == (
        Step(thought="Two searches.", action='search({"q": "x"})', observation="first"),
        Step(thought="", action='search({"q": "y"})', observation="second"),
        Step(action="It is Paris."),
    )
    assert found.answer == "It is Paris."
    assert found.first_observation == "Find the capital."
    assert found.stop_reason == "external"


def test_a_conversation_without_tools() -> None:
    found = as_trajectory(
        TASK,
        [
            {"role": "user", "content": "Hi"},
            {"role": "assistant", "content": "Which country?"},
            {"role": "user", "content": "France"},
            {"role": "assistant", "content": "Paris"},
        ],
    )
    assert [(s.action, s.observation) for s in found.steps] == [("Which country?", "France"), ("Paris", "")]
    assert found.answer == "Paris"


def test_steps_and_dicts_and_our_own() -> None:
    steps = [{"thought": "hm", "action": "look", "observation": "a map"}]
    ours = Trajectory(task_id="t", steps=(Step(action="look"),))
    assert as_trajectory(TASK, ours) is ours
    assert as_trajectory(TASK, steps).steps[0].observation == "a map"
    assert as_trajectory(TASK, {"steps": steps, "answer": "Paris"}).answer == "Paris"
    assert as_trajectory(TASK, {"messages": [{"role": "assistant", "content": "Paris"}]}).answer == "Paris"


def test_equal_content_is_the_same_rollout_and_other_content_is_not() -> None:
    one = as_trajectory(TASK, [{"action": "look"}])
    assert one.rollout_id == as_trajectory(TASK, [{"action": "look"}]).rollout_id
    assert one.rollout_id != as_trajectory(TASK, [{"action": "wait"}]).rollout_id


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([], "empty"),
        ("text", "got str"),
        (7, "got int"),
        ([7], "element 0 is a int"),
        ([{"role": "wizard", "content": "x"}], "message 0: unknown role 'wizard'"),
        ([{"role": "tool", "content": "x"}], "without a tool call before it"),
        ([{"role": "user", "content": "x"}], "nothing that the assistant said"),
        ([{"role": "assistant", "tool_calls": [{"id": "1", "function": {}}]}], "a tool call without a name"),
        ([{"role": "assistant", "content": 7}], "content is a int"),
        ([{"role": "assistant", "content": "x"}, {"action": "y"}], "'role' in each"),
        ({"steps": [{"thought": "x"}]}, "steps.0.action"),
        ({"stepz": []}, "stepz"),
    ],
)
def test_what_cannot_be_read_is_named_in_one_line(given: Any, message: str) -> None:
    with pytest.raises(InvalidTrajectory) as caught:
        as_trajectory(TASK, given)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_task_from_text_is_the_same_task_each_time() -> None:
    assert as_task("Find it.") == as_task("Find it.")
    assert as_task("Find it.").id != as_task("Find that.").id
    assert as_task(TASK) is TASK
    with pytest.raises(InvalidTask):
        as_task(" ")
