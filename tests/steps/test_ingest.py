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


def test_what_stands_beside_the_messages_is_kept_where_a_trajectory_has_it() -> None:
    said = [{"role": "assistant", "content": "Paris"}]
    beside = {"answer": "Lyon", "rollout_id": "r7", "stop_reason": "max_steps", "model": "m", "tools": []}
    found = as_trajectory(TASK, {"messages": said, **beside})
    assert (found.answer, found.rollout_id, found.stop_reason) == ("Lyon", "r7", "max_steps")
    assert found.steps == as_trajectory(TASK, said).steps
    with pytest.raises(InvalidTrajectory, match="of the task 'other'"):
        as_trajectory(TASK, {"messages": said, "task_id": "other"})
    with pytest.raises(InvalidTrajectory, match="stop_reason"):
        as_trajectory(TASK, {"messages": said, "stop_reason": "tired"})


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
        ({}, "empty"),
        ({"first_observation": "a map"}, "empty"),
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


def _steps(given: Any) -> list[tuple[str, str, str]]:
    return [(step.thought, step.action, step.observation) for step in as_trajectory(TASK, given).steps]


REFUND = [
    ("I will look it up", 'lookup({"order": 1})', "charged twice"),
    ("", 'refund({"order": 1})', "ERROR refused"),
    ("", "Done!", ""),
]
"""The same conversation, as each format below keeps it."""


@pytest.mark.parametrize(
    "messages",
    [
        pytest.param(
            [
                {"role": "user", "content": "Refund order 1"},
                {
                    "role": "assistant",
                    "content": [
                        {"type": "text", "text": "I will look it up"},
                        {"type": "tool_use", "id": "a", "name": "lookup", "input": {"order": 1}},
                    ],
                },
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": "charged twice"}]},
                {
                    "role": "assistant",
                    "content": [{"type": "tool_use", "id": "b", "name": "refund", "input": {"order": 1}}],
                },
                {
                    "role": "user",
                    "content": [
                        {
                            "type": "tool_result",
                            "tool_use_id": "b",
                            "content": [{"type": "text", "text": "ERROR refused"}],
                        }
                    ],
                },
                {"role": "assistant", "content": [{"type": "text", "text": "Done!"}]},
            ],
            id="anthropic",
        ),
        pytest.param(
            [
                {"role": "user", "content": "Refund order 1"},
                {
                    "role": "assistant",
                    "content": "I will look it up",
                    "function_call": {"name": "lookup", "arguments": '{"order": 1}'},
                },
                {"role": "function", "name": "lookup", "content": "charged twice"},
                {
                    "role": "assistant",
                    "content": None,
                    "function_call": {"name": "refund", "arguments": '{"order": 1}'},
                },
                {"role": "function", "name": "refund", "content": "ERROR refused"},
                {"role": "assistant", "content": "Done!"},
            ],
            id="openai before tools",
        ),
        pytest.param(
            [
                {"role": "user", "content": "Refund order 1"},
                {
                    "type": "message",
                    "role": "assistant",
                    "content": [{"type": "output_text", "text": "I will look it up"}],
                },
                {"type": "function_call", "call_id": "a", "name": "lookup", "arguments": '{"order": 1}'},
                {"type": "function_call_output", "call_id": "a", "output": "charged twice"},
                {"type": "function_call", "call_id": "b", "name": "refund", "arguments": '{"order": 1}'},
                {"type": "function_call_output", "call_id": "b", "output": "ERROR refused"},
                {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Done!"}]},
            ],
            id="openai responses",
        ),
        pytest.param(
            [
                {"type": "human", "content": "Refund order 1"},
                {
                    "type": "ai",
                    "content": "I will look it up",
                    "tool_calls": [{"name": "lookup", "args": {"order": 1}, "id": "a", "type": "tool_call"}],
                },
                {"type": "tool", "content": "charged twice", "tool_call_id": "a"},
                {"type": "ai", "content": "", "tool_calls": [{"name": "refund", "args": {"order": 1}, "id": "b"}]},
                {"type": "tool", "content": "ERROR refused", "tool_call_id": "b"},
                {"type": "ai", "content": "Done!"},
            ],
            id="langchain",
        ),
        pytest.param(
            [
                {"type": "system", "data": {"type": "system", "content": "You are an agent."}},
                {"type": "human", "data": {"type": "human", "content": "Refund order 1", "additional_kwargs": {}}},
                {
                    "type": "ai",
                    "data": {
                        "type": "ai",
                        "content": "I will look it up",
                        "tool_calls": [{"name": "lookup", "args": {"order": 1}, "id": "a", "type": "tool_call"}],
                        "invalid_tool_calls": [],
                        "id": None,
                    },
                },
                {"type": "tool", "data": {"type": "tool", "content": "charged twice", "tool_call_id": "a"}},
                {
                    "type": "AIMessageChunk",
                    "data": {"content": "", "tool_calls": [{"name": "refund", "args": {"order": 1}, "id": "b"}]},
                },
                {"type": "tool", "data": {"type": "tool", "content": "ERROR refused", "tool_call_id": "b"}},
                {"type": "chat", "data": {"type": "chat", "role": "assistant", "content": "Done!"}},
            ],
            id="langchain's messages_to_dict",
        ),
    ],
)
def test_every_common_format_gives_the_same_steps(messages: Any) -> None:
    assert _steps(messages) == REFUND
    found = as_trajectory(TASK, messages)
    assert (found.answer, found.first_observation) == ("Done!", "Refund order 1")


def test_thanks_at_the_end_do_not_take_the_answer_away() -> None:
    said = [{"role": "assistant", "content": "Paris"}, {"role": "user", "content": "thanks"}]
    assert as_trajectory(TASK, said).answer == "Paris"


def test_thinking_is_thought_and_pictures_are_named() -> None:
    said = [
        {
            "role": "user",
            "content": [{"type": "text", "text": "What is this?"}, {"type": "image_url", "image_url": {}}],
        },
        {
            "role": "assistant",
            "content": [{"type": "thinking", "thinking": "Hm."}, {"type": "tool_use", "name": "zoom"}],
        },
    ]
    assert _steps(said) == [("Hm.", "zoom()", "")]
    assert as_trajectory(TASK, said).first_observation == "What is this?\n[image_url]"


def test_a_part_that_is_not_understood_is_refused_not_dropped() -> None:
    with pytest.raises(InvalidTrajectory, match="message 0: a part of type 'hologram' is not understood"):
        as_trajectory(TASK, [{"role": "assistant", "content": [{"type": "hologram"}]}])


def test_a_trajectory_of_another_task_is_refused() -> None:
    with pytest.raises(InvalidTrajectory, match="is of the task 'other'"):
        as_trajectory(TASK, Trajectory(task_id="other", steps=(Step(action="x"),)))


def test_langchain_over_anthropic_gives_each_call_once() -> None:
    said = [
        {
            "type": "ai",
            "content": [
                {"type": "text", "text": "think"},
                {"type": "tool_use", "id": "a", "name": "f", "input": {"x": 1}},
            ],
            "tool_calls": [{"name": "f", "args": {"x": 1}, "id": "a"}],
        },
        {"type": "tool", "tool_call_id": "a", "content": "R", "status": "error"},
        {"type": "ai", "content": "done"},
    ]
    assert _steps(said) == [("think", 'f({"x": 1})', "[error] R"), ("", "done", "")]


def test_no_text_is_lost_or_given_to_another_call() -> None:
    call = {"role": "assistant", "tool_calls": [{"id": "a", "function": {"name": "refund", "arguments": "1"}}]}
    result = {"role": "tool", "tool_call_id": "a", "content": "R"}
    assert _steps([call, {"role": "user", "content": "STOP"}, result])[0][2] == "STOP\nR"
    assert (
        as_trajectory(TASK, [{"role": "assistant", "content": None, "refusal": "I will not."}]).answer == "I will not."
    )
    assert _steps([{**call, "reasoning_content": "Hm."}]) == [("Hm.", "refund(1)", "")]
    with pytest.raises(InvalidTrajectory, match="without a tool call before it, id 'zzz'"):
        as_trajectory(TASK, [call, {**result, "tool_call_id": "zzz"}])
    with pytest.raises(InvalidTrajectory, match="no JSON form"):
        as_trajectory(TASK, [{"action": "x", "observation": "y", 1: 2, "a": 3}])


def _call(name: str, id: str | None = None) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "arguments": "{}"}, **({} if id is None else {"id": id})}


def _done(messages: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return [(step.action, step.observation) for step in as_trajectory(TASK, messages).steps]


@pytest.mark.parametrize("key", ["name", "tool_name"])
@pytest.mark.parametrize("id", [None, ""])
def test_results_without_ids_are_of_the_calls_they_name(key: str, id: str | None) -> None:
    said = {"role": "assistant", "content": None, "tool_calls": [_call("f", id), _call("g", id), _call("f", id)]}
    results = [{"role": "tool", key: name, "content": f"of {name}"} for name in ("g", "f")]
    last = {"role": "tool", key: "f", "content": "of the other f"}
    found = _done([said, *results, last])
    assert found == [("f({})", "of f"), ("g({})", "of g"), ("f({})", "of the other f")]


def test_results_whose_name_no_call_has_come_in_the_order_of_the_calls() -> None:
    said = {"role": "assistant", "content": None, "tool_calls": [_call("f"), _call("g")]}
    results = [{"role": "tool", "name": "tools", "content": "one"}, {"role": "tool", "content": "two"}]
    assert _done([said, *results]) == [("f({})", "one"), ("g({})", "two")]


def test_calls_that_share_an_id_get_each_their_result() -> None:
    said = {"role": "assistant", "content": None, "tool_calls": [_call("f", "call_0"), _call("g", "call_0")]}
    one, two = ({"role": "tool", "tool_call_id": "call_0", "content": text} for text in ("one", "two"))
    assert _done([said, one, two]) == [("f({})", "one"), ("g({})", "two")]
    assert _done([said, {**one, "name": "g"}, two]) == [("f({})", "two"), ("g({})", "one")]
    with pytest.raises(InvalidTrajectory, match="message 3: a tool's result without a tool call before it"):
        _done([said, one, two, one])


def test_items_that_share_an_id_get_each_their_result() -> None:
    calls = [{"type": "function_call", "call_id": "0", "name": name, "arguments": "{}"} for name in "fg"]
    results = [{"type": "function_call_output", "call_id": "0", "output": text} for text in ("one", "two")]
    assert _done([*calls, *results]) == [("f({})", "one"), ("g({})", "two")]


def test_an_id_that_comes_again_is_of_the_call_that_was_made_last() -> None:
    said = {"role": "assistant", "content": None, "tool_calls": [_call("f", "call_0")]}
    result = {"role": "tool", "tool_call_id": "call_0", "content": "R"}
    assert _done([said, {"role": "user", "content": "Stop."}, said, result]) == [("f({})", "Stop."), ("f({})", "R")]
    assert _done([said, result, said, result]) == [("f({})", "R"), ("f({})", "R")]
