"""Our own format, identity, and what is refused."""

from __future__ import annotations

from typing import Any

import dspy
import pytest
from dspy.utils import DummyLM
from hypothesis import given, strategies as st

from rb_dspy.errors import InvalidTrajectory
from rb_dspy.importers import to_trajectory
from rb_dspy.schema import Check, RoleUsage, Step, Task, Trajectory

TASK = Task(id="t", instruction="Find the capital.")
SAID = [{"role": "assistant", "content": "Paris"}]


def test_steps_and_fields() -> None:
    steps = [{"thought": "hm", "action": "look", "observation": "a map"}]
    ours = Trajectory(task_id="t", steps=(Step(action="look"),))
    assert to_trajectory(TASK, ours) is ours
    assert to_trajectory(TASK, steps).steps == (Step(thought="hm", action="look", observation="a map"),)
    assert to_trajectory(TASK, {"steps": steps, "answer": "Paris"}).answer == "Paris"
    assert to_trajectory(TASK, {"answer": {"city": "Paris"}}).answer == '{"city": "Paris"}'
    (step,) = to_trajectory(TASK, [{"thought": None, "action": {"go": "north"}, "observation": [1]}]).steps
    assert (step.thought, step.action, step.observation) == ("", '{"go": "north"}', "[1]")
    said = "<think>Lyon?</think>Paris"
    thinking = to_trajectory(TASK, {"steps": [{"thought": "hm", "action": said}], "answer": said})
    assert (thinking.steps, thinking.answer) == ((Step(thought="hm\nLyon?", action="Paris"),), "Paris")


def test_our_own_dump_is_read_again() -> None:
    ours = Trajectory(
        task_id="t",
        steps=(Step(thought="hm", action="look", observation="a map"), Step(action="Paris")),
        answer="Paris",
        first_observation="Where?",
        rollout_id="7",
        stop_reason="max_steps",
        checks=(Check(after=1, findings="fine", decision="confirm"),),
        usage={"agent": RoleUsage(calls=2)},
    )
    assert to_trajectory(TASK, ours.model_dump()) == ours
    assert to_trajectory(TASK, ours.model_dump(mode="json")) == ours


def test_equal_content_is_the_same_rollout_and_other_content_is_not() -> None:
    rollouts: list[Any] = [SAID, [{"role": "assistant", "content": "Lyon"}], [{"action": "Paris"}], {"answer": "Paris"}]
    assert len({to_trajectory(TASK, rollout).rollout_id for rollout in rollouts}) == len(rollouts)
    assert to_trajectory(TASK, SAID).rollout_id == to_trajectory(TASK, list(map(dict, SAID))).rollout_id
    assert to_trajectory(TASK, {"messages": SAID, "now": 1}).rollout_id == to_trajectory(TASK, SAID).rollout_id
    assert to_trajectory(TASK, {"answer": "Paris", "rollout_id": "mine"}).rollout_id == "mine"


def test_fields_beside_the_messages_are_kept_if_a_trajectory_has_them() -> None:
    beside = {"answer": "Lyon", "rollout_id": "r7", "stop_reason": "max_steps", "model": "m", "usage": {"tokens": 3}}
    trajectory = to_trajectory(TASK, {"messages": SAID, **beside})
    assert (trajectory.answer, trajectory.rollout_id, trajectory.stop_reason) == ("Lyon", "r7", "max_steps")
    assert trajectory.steps == to_trajectory(TASK, SAID).steps
    assert to_trajectory(TASK, {"messages": SAID, "stop_reason": "end_turn"}).stop_reason == "external"


@pytest.mark.parametrize(
    ("reply", "answer"),
    [
        ({"response": "Lyon"}, "Lyon"),
        ({"response": {"role": "assistant", "content": "Lyon"}}, "Lyon"),
        ({"response": {"output": {"message": {"role": "assistant", "content": [{"text": "Lyon"}]}}}}, "Lyon"),
        ({"response": {"output": [{"type": "message", "role": "assistant", "content": "Lyon"}]}}, "Lyon"),
        ({"response": {"candidates": [{"content": {"role": "model", "parts": [{"text": "Lyon"}]}}]}}, "Lyon"),
        ({"response": {"messages": [{"role": "assistant", "content": "Lyon"}]}}, "Lyon"),
        ({"response": {"message": {"role": "assistant", "content": "Lyon"}}}, "Lyon"),
        ({"choices": [{"message": {"content": "Lyon"}}, {"message": {"content": "Nice"}}]}, "Lyon"),
        ({"choices": [{"text": "Lyon"}]}, "Lyon"),
        ({"outputs": ["Lyon", "Nice"]}, "Lyon"),
        ({"outputs": [{"text": "Lyon", "reasoning_content": "Hm."}], "response": None}, "Lyon"),
        ({"output": "<think>Hm.</think>Lyon"}, "Lyon"),
        ({"outputs": [{"text": None, "tool_calls": [{"function": {"name": "f", "arguments": ""}}]}]}, None),
    ],
    ids=str,
)
def test_the_reply_beside_the_messages_is_the_last_message(reply: dict[str, Any], answer: str | None) -> None:
    asked = [{"role": "user", "content": "Where?"}]
    trajectory = to_trajectory(TASK, {"messages": asked, **reply})
    assert (trajectory.answer, trajectory.first_observation, len(trajectory.steps)) == (answer, "Where?", 1)
    assert len(to_trajectory(TASK, {"messages": [*asked, *SAID], **reply}).steps) == 2
    assert len(to_trajectory(TASK, {"messages": [*asked, *SAID], "response": "Paris"}).steps) == 1
    if "response" in reply and isinstance(reply["response"], dict):
        assert to_trajectory(TASK, reply["response"]).answer == answer


def test_a_request_of_gemini_is_read() -> None:
    said = {"candidates": [{"content": {"role": "model", "parts": [{"text": "Paris"}]}}]}
    asked, known = {"parts": [{"text": "Where?"}]}, {"role": "model", "parts": [{"text": "Paris"}]}
    for rollout in ({"contents": "Where?", "response": said}, {"contents": [asked, known]}):
        trajectory = to_trajectory(TASK, rollout)
        assert (trajectory.first_observation, trajectory.answer) == ("Where?", "Paris")


def test_an_entry_of_dspys_history_is_read() -> None:
    lm = DummyLM([{"answer": "Paris"}])
    with dspy.context(lm=lm):
        dspy.Predict("question -> answer")(question="Which is the capital?")
    for rollout in (lm.history, lm.history[0], {"prompt": "Which is the capital?", "outputs": ["Paris"]}):
        trajectory = to_trajectory(TASK, rollout)
        assert "Which is the capital?" in trajectory.first_observation
        assert "Paris" in str(trajectory.answer)
        assert len(trajectory.steps) == 1


SWE_STEP = {
    "action": "pytest -q",
    "observation": "1 failed",
    "thought": "I run it.",
    "response": "I run it.\npytest -q",
}
SWE_STEP |= {"state": {"working_dir": "/repo"}, "execution_time": 0.4, "query": [{"role": "user", "content": "Fix."}]}


def test_a_trajectory_file_of_swe_agent_is_read() -> None:
    unparsed = {**SWE_STEP, "thought": "", "action": "", "observation": "No command found.", "response": "Hm."}
    file = {"trajectory": [SWE_STEP, unparsed], "history": [{"role": "system", "content": "You fix bugs."}]}
    trajectory = to_trajectory(TASK, {**file, "environment": "main", "info": {"submission": "diff --git"}})
    ran = Step(thought="I run it.", action="pytest -q", observation="1 failed")
    assert trajectory.steps == (ran, Step(thought="Hm.", action="", observation="No command found."))
    assert trajectory.answer == "diff --git"
    assert to_trajectory(TASK, {**file, "info": {"submission": None}}).answer is None
    assert to_trajectory(TASK, [SWE_STEP]).steps == (ran,)


def test_a_trajectory_file_of_mini_swe_agent_is_read() -> None:
    messages = [{"role": "user", "content": "Fix."}, {"role": "assistant", "content": "```bash\npytest\n```"}]
    last = {"role": "exit", "content": "diff --git", "extra": {"exit_status": "Submitted"}}
    file = {"messages": [*messages, last], "info": {"submission": "diff --git"}, "trajectory_format": "x"}
    trajectory = to_trajectory(TASK, file)
    assert (trajectory.steps[0].observation, trajectory.answer) == ("diff --git", "diff --git")
    stopped = [*messages, {"role": "exit", "content": "LimitsExceeded"}]
    assert (
        to_trajectory(TASK, {"messages": stopped, "info": {"submission": ""}}).steps[0].observation == "LimitsExceeded"
    )


def test_a_rollout_of_another_task_is_refused() -> None:
    step = Step(action="x")
    rollouts: list[Any] = [
        Trajectory(task_id="other", steps=(step,)),
        {"task_id": "other", "answer": "x"},
        {"task_id": "other", "messages": SAID},
    ]
    for rollout in rollouts:
        with pytest.raises(InvalidTrajectory, match="'other'"):
            to_trajectory(TASK, rollout)


_LOOP: list[Any] = []
_LOOP.append({"role": "user", "content": _LOOP})


@pytest.mark.parametrize(
    ("rollout", "value"),
    [
        ([], "empty"),
        ({}, "empty"),
        ({"messages": []}, "empty"),
        ({"first_observation": "a map"}, "empty"),
        ("text", "str"),
        (7, "int"),
        (None, "NoneType"),
        ([{"action": "x"}, 7], "element 1"),
        ({"messages": "hi"}, "str"),
        ([*SAID, {"role": "wizard", "content": "x"}], "message 1"),
        ([{"role": "tool", "content": "x"}], "assistant"),
        ([*SAID, {"role": "assistant", "said": "Lyon"}], "message 1: a message has no content (its fields: 'said')"),
        ([{"role": "assistant", "content": [{"type": "hologram", "words": "Paris"}]}], "'hologram'"),
        ({"messages": SAID, "response": {"verdict": "x"}}, "the reply under 'response' is a dict"),
        ({"messages": SAID, "outputs": [7]}, "the reply under 'outputs' is a list"),
        ([{"role": "user", "content": "x"}], "assistant"),
        ([{"role": "assistant", "tool_calls": [{"id": "1", "function": {}}]}], "name"),
        ([{"role": "assistant", "tool_calls": 7}], "int"),
        ([{"role": "assistant", "content": 7}], "int"),
        ([*SAID, {"type": "telepathy_output", "output": "x"}], "element 1"),
        ([*SAID, {"action": "y"}], "element 1"),
        ({"steps": [{"thought": "x"}]}, "steps.0.action"),
        ({"steps": [{"action": "x"}, {"action": "y", "reward": 1}]}, "steps.1.reward"),
        ({"steps": "x"}, "steps"),
        ({"trajectory": {"steps": None}}, "steps"),
        ({"stepz": []}, "stepz"),
        ([{"role": "user", "content": 10**5000}], "digits"),
        (_LOOP, "nested"),
    ],
)
def test_what_cannot_be_read_is_refused_in_one_line_that_says_where(rollout: Any, value: str) -> None:
    with pytest.raises(InvalidTrajectory) as caught:
        to_trajectory(TASK, rollout)
    assert value in str(caught.value)
    assert "\n" not in str(caught.value)


KEYS = """role type content tool_calls function name arguments args input id tool_call_id call_id text output steps
    action thought observation messages trajectory history data kwargs source file additional_kwargs summary audio usage
    answer reasoning tool_name_0 observation_0 code function_call invalid_tool_calls tool_call_results parts response
    outputs choices toolUse toolResult functionCall toolInvocation toolInvocations toolCallId state result message
    attachment prompt info images isError json""".split
WORDS = """assistant user tool system ai human chat text image file tool_use tool_result function_call message thinking
    function_call_output web_search_call reasoning model tool-lookup dynamic-tool tool-invocation tool-result tool-call
    step-start queued_command resource""".split
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(WORDS()) | st.text(max_size=5),
    lambda parts: (
        st.lists(parts, max_size=4) | st.dictionaries(st.sampled_from(KEYS()) | st.text(max_size=3), parts, max_size=5)
    ),
    max_leaves=25,
)


@given(JSON)
def test_any_json_gives_a_trajectory_or_the_one_error(rollout: Any) -> None:
    try:
        trajectory = to_trajectory(TASK, rollout)
    except InvalidTrajectory:
        return
    assert trajectory.steps or trajectory.answer is not None
    assert to_trajectory(TASK, trajectory.model_dump()) == trajectory
