"""One conversation gives the same steps in every format; results are matched with their calls."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, strategies as st
from openai.types.chat import ChatCompletion, ChatCompletionMessage
from openai.types.chat.chat_completion import Choice
from openai.types.responses import Response

from rb_dspy.importers import to_trajectory
from rb_dspy.schema import Task
from tests.importers.conversations import ASKED, FORMATS, REFUND, SCRIPTED, LangChainMessage, Turn

TASK = Task(id="t", instruction="Refund it.")


def steps(rollout: Any) -> list[tuple[str, str, str]]:
    return [(step.thought, step.action, step.observation) for step in to_trajectory(TASK, rollout).steps]


@pytest.mark.parametrize("rollout", FORMATS.values(), ids=FORMATS)
def test_every_format_gives_the_same_steps(rollout: Callable[[], Any]) -> None:
    trajectory = to_trajectory(TASK, rollout())
    assert steps(trajectory) == REFUND
    assert (trajectory.answer, trajectory.first_observation, trajectory.stop_reason) == ("Done!", ASKED, "external")
    assert trajectory.rollout_id == to_trajectory(TASK, rollout()).rollout_id


def test_a_call_without_a_result_has_an_empty_observation() -> None:
    trajectory = to_trajectory(TASK, FORMATS["openai"]()[:-2])
    assert (steps(trajectory), trajectory.answer) == ([REFUND[0], (*REFUND[1][:2], "")], None)


def call(name: str, id: str | None = None) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "arguments": "{}"}, **({} if id is None else {"id": id})}


def observations(*messages: dict[str, Any]) -> list[tuple[str, str]]:
    return [(action, observation) for _, action, observation in steps(list(messages))]


def test_parallel_calls_are_steps_and_their_results_come_in_any_order() -> None:
    said = {"role": "assistant", "content": "Both.", "tool_calls": [call("f", "a"), call("g", "b"), call("f", "c")]}
    results = [{"role": "tool", "tool_call_id": id, "content": f"of {id}"} for id in ("c", "a")]
    assert steps([said, *results]) == [("Both.", "f({})", "of a"), ("", "g({})", ""), ("", "f({})", "of c")]


@pytest.mark.parametrize(("key", "id"), [("name", None), ("tool_name", "")])
def test_results_without_ids_belong_to_the_calls_they_name(key: str, id: str | None) -> None:
    said = {"role": "assistant", "content": None, "tool_calls": [call("f", id), call("g", id), call("f", id)]}
    results = [{"role": "tool", key: name, "content": f"{i}"} for i, name in enumerate(("g", "f", "f"))]
    assert observations(said, *results) == [("f({})", "1"), ("g({})", "0"), ("f({})", "2")]


def test_results_without_id_and_name_come_in_the_order_of_the_calls() -> None:
    said = {"role": "assistant", "content": None, "tool_calls": [call("f"), call("g")]}
    results = [{"role": "tool", "name": "tools", "content": "one"}, {"role": "tool", "content": "two"}]
    assert observations(said, *results) == [("f({})", "one"), ("g({})", "two")]


def test_calls_that_share_an_id_each_get_their_result() -> None:
    said = {"role": "assistant", "content": None, "tool_calls": [call("f", "0"), call("g", "0")]}
    one, two = ({"role": "tool", "tool_call_id": "0", "content": text} for text in ("one", "two"))
    assert observations(said, one, two) == [("f({})", "one"), ("g({})", "two")]
    assert observations(said, {**one, "name": "g"}, two) == [("f({})", "two"), ("g({})", "one")]
    assert observations(said, one, two, {**one, "content": "more"}) == [("f({})", "one"), ("g({})", "two\nmore")]


@pytest.mark.parametrize("id", ["gone", None])
def test_a_result_whose_call_was_trimmed_is_what_the_agent_sees_next(id: str | None) -> None:
    orphan = {"role": "tool", "name": "lookup", "tool_call_id": id, "content": "charged twice"}
    said = {"role": "assistant", "content": "Refunded."}
    trajectory = to_trajectory(TASK, [orphan, said])
    assert (trajectory.first_observation, trajectory.answer) == ("charged twice", "Refunded.")
    assert observations(said, orphan) == [("Refunded.", "charged twice")]


def test_an_id_that_comes_again_belongs_to_the_latest_call() -> None:
    said = {"role": "assistant", "content": None, "tool_calls": [call("f", "0")]}
    result = {"role": "tool", "tool_call_id": "0", "content": "R"}
    assert observations(said, {"role": "user", "content": "Stop."}, said, result) == [
        ("f({})", "Stop."),
        ("f({})", "R"),
    ]
    assert observations(said, result, said, result) == [("f({})", "R"), ("f({})", "R")]
    assert observations(said, {"role": "user", "content": "STOP"}, result) == [("f({})", "STOP\nR")]


def test_text_without_a_call_is_an_action_and_the_last_one_the_answer() -> None:
    texts = ["Hi", "Which country?", "France", "Paris", "Thanks"]
    messages = [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(texts)]
    trajectory = to_trajectory(TASK, messages)
    assert steps(trajectory) == [("", "Which country?", "France"), ("", "Paris", "Thanks")]
    assert (trajectory.answer, trajectory.first_observation) == ("Paris", "Hi")
    goes_on = {"role": "assistant", "content": None, "tool_calls": [call("f", "a")]}
    assert to_trajectory(TASK, [*messages, goes_on]).answer is None


@pytest.mark.parametrize(
    "thought",
    [
        {"role": "assistant", "content": "Paris", "thinking": "Hm."},
        {"role": "assistant", "content": "<think>Hm.</think>Paris"},
        {
            "role": "assistant",
            "content": [{"type": "text", "text": "<think>Hm."}, {"type": "text", "text": "</think>Paris"}],
        },
        {"role": "assistant", "content": "Hm.</think>\n\nParis"},
        {"role": "assistant", "content": [{"text": "Paris"}, {"reasoningContent": {"reasoningText": {"text": "Hm."}}}]},
        {"role": "model", "parts": [{"text": "Hm.", "thought": True}, {"text": "Paris"}]},
        LangChainMessage("ai", [{"type": "reasoning_content", "reasoning_content": {"text": "Hm."}}, "Paris"]),
        {"role": "assistant", "content": "Paris", "reasoning_content": "Hm."},
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "Hm."}, {"type": "text", "text": "Paris"}]},
        LangChainMessage("ai", "Paris", additional_kwargs={"reasoning_content": "Hm."}),
    ],
    ids=lambda thought: type(thought).__name__,
)
def test_a_thought_is_no_part_of_the_answer(thought: Any) -> None:
    trajectory = to_trajectory(TASK, [thought])
    assert [(said.strip(), *rest) for said, *rest in steps(trajectory)] == [("Hm.", "Paris", "")]
    assert trajectory.answer == "Paris"


def test_a_last_thought_is_kept_and_an_empty_one_is_no_step() -> None:
    thought = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Hm."}]}
    done = [
        {"type": "function_call", "call_id": "a", "name": "f", "arguments": ""},
        {"type": "function_call_output", "call_id": "a", "output": "R"},
    ]
    assert steps([*done, thought]) == [("", "f()", "R"), ("Hm.", "", "")]
    assert steps([*done, {**thought, "summary": []}]) == [("", "f()", "R")]


def test_calls_that_langchain_could_not_parse_are_failed_steps() -> None:
    invalid = {"type": "invalid_tool_call", "name": "refund", "args": "{bad", "id": "2", "error": "not JSON"}
    turn = LangChainMessage(
        "ai",
        [{"type": "text", "text": "Refund."}, {"type": "tool_use", "id": "2", "name": "refund", "input": "{bad"}],
        tool_calls=[{"name": "lookup", "args": {}, "id": "1"}],
        invalid_tool_calls=[invalid, {**invalid, "id": None, "error": None}],
    )
    found = steps([turn, LangChainMessage("tool", "try again", tool_call_id="2", status="error")])
    assert found[:2] == [("Refund.", "lookup({})", ""), ("", "refund({bad)", "[error] not JSON\n[error] try again")]
    assert found[2][1] == "refund({bad)"
    assert found[2][2].startswith("[error]")


def test_a_structured_response_of_langgraph_is_the_answer() -> None:
    state = {"messages": [LangChainMessage("ai", "Paris")], "structured_response": {"capital": "Paris"}}
    assert to_trajectory(TASK, state).answer == '{"capital": "Paris"}'


def test_a_whole_response_with_hosted_tools_is_read() -> None:
    output: list[dict[str, Any]] = [
        {"type": "reasoning", "id": "0", "summary": [{"type": "summary_text", "text": "Search."}]},
        {"type": "web_search_call", "id": "1", "status": "completed", "action": {"type": "search", "query": "q"}},
        {"type": "mcp_list_tools", "id": "2", "server_label": "s", "tools": []},
        {"type": "mcp_call", "id": "3", "server_label": "s", "name": "pay", "arguments": "{}", "error": "no money"},
        {
            "type": "code_interpreter_call",
            "id": "4",
            "container_id": "c",
            "status": "completed",
            "code": "print(6)",
            "outputs": [{"type": "logs", "logs": "6"}],
        },
        {"type": "image_generation_call", "id": "5", "status": "completed", "result": "aGVsbG8="},
        {
            "type": "message",
            "id": "6",
            "role": "assistant",
            "status": "completed",
            "content": [{"type": "output_text", "text": "Six.", "annotations": []}],
        },
    ]
    fields = {"id": "r", "created_at": 0, "model": "m", "object": "response", "parallel_tool_calls": True}
    response = Response.model_validate({**fields, "output": output, "tool_choice": "auto", "tools": []})
    trajectory = to_trajectory(TASK, response)
    assert trajectory.answer == "Six."
    assert [(step.thought, step.action, step.observation) for step in trajectory.steps] == [
        ("Search.", 'web_search({"type": "search", "query": "q"})', ""),
        ("", "pay({})", "[error] no money"),
        ("", "code_interpreter(print(6))", '{"logs": "6", "type": "logs"}'),
        ("", "image_generation()", "[image]"),
        ("", "Six.", ""),
    ]
    assert to_trajectory(TASK, response.model_dump(exclude_none=True)).steps == trajectory.steps


def test_a_local_shells_output_has_the_id_of_its_call() -> None:
    call = {"type": "local_shell_call", "action": {"command": ["ls"]}}
    output = {"type": "local_shell_call_output"}
    calls = [{**call, "id": f"item {id}", "call_id": id} for id in "ab"]
    outputs = [{**output, "id": id, "output": f"of {id}"} for id in "ba"]
    assert [observation for _, observation in observations(*calls, *outputs)] == ["of a", "of b"]


def test_a_message_alone_is_a_rollout() -> None:
    assert steps({"role": "assistant", "content": "Paris"}) == [("", "Paris", "")]


def test_a_whole_chat_completion_is_read_and_its_first_choice_counts() -> None:
    messages = [ChatCompletionMessage(role="assistant", content=text) for text in ("Done!", "Or not.")]
    choices = [Choice(index=at, message=message, finish_reason="stop") for at, message in enumerate(messages)]
    whole = ChatCompletion(id="c", choices=choices, created=0, model="m", object="chat.completion")
    assert to_trajectory(TASK, whole).answer == "Done!"


@pytest.mark.parametrize(
    ("parts", "found"),
    [
        (
            [
                {"executableCode": {"language": "PYTHON", "code": "6*7"}},
                {"codeExecutionResult": {"outcome": "OUTCOME_OK", "output": "42"}},
            ],
            [("", "PYTHON(6*7)", "42")],
        ),
        (
            [
                {
                    "type": "tool-f",
                    "toolCallId": "1",
                    "state": "output-denied",
                    "input": {},
                    "approval": {"id": "a", "approved": False, "reason": "No!"},
                }
            ],
            [("", "f({})", "[error] the user denied the call\nNo!")],
        ),
        (
            [
                {
                    "type": "tool-f",
                    "toolCallId": "1",
                    "state": "output-error",
                    "rawInput": "{bad",
                    "errorText": "not JSON",
                }
            ],
            [("", "f({bad)", "[error] not JSON")],
        ),
        (
            [
                {"type": "text", "text": "Paris"},
                {"type": "source-url", "sourceId": "1", "url": "https://a/b", "title": "Map"},
            ],
            [('{"type": "source-url", "sourceId": "1", "url": "https://a/b", "title": "Map"}', "Paris", "")],
        ),
        ([{"type": "file", "mediaType": "image/png", "url": "data:image/png;base64,aGVsbG8="}], [("", "[image]", "")]),
        ([{"citationsContent": {"content": [{"text": "Paris"}], "citations": []}}], [("", "Paris", "")]),
    ],
    ids=["code of gemini", "denied", "invalid input", "source", "file", "citations of bedrock"],
)
def test_other_parts_of_the_assistant(parts: list[Any], found: list[tuple[str, str, str]]) -> None:
    for message in ({"role": "assistant", "parts": parts}, {"role": "assistant", "content": parts}):
        assert steps([message]) == found


@pytest.mark.parametrize(
    "part",
    [
        {"text": "I look.", "functionCall": {"name": "f", "args": {}}},
        {"text": "I look.", "toolUse": {"name": "f", "input": {}}},
    ],
    ids=["gemini", "bedrock"],
)
def test_a_part_with_a_text_and_a_call_gives_both(part: dict[str, Any]) -> None:
    assert steps([{"role": "assistant", "content": [part]}]) == [("I look.", "f({})", "")]


def test_documents_of_cohere_are_read() -> None:
    document = {"type": "document", "document": {"id": "1", "data": {"snippet": "open until 6"}}}
    said = {"role": "assistant", "content": "", "tool_calls": [call("f", "a")]}
    assert "open until 6" in observations(said, {"role": "tool", "tool_call_id": "a", "content": [document]})[0][1]


def test_entries_of_claude_code() -> None:
    def entry(role: str, content: Any, **fields: Any) -> dict[str, Any]:
        return {"type": role, "message": {"role": role, "content": content}, **fields}

    use = {"type": "tool_use", "id": "t", "name": "Task", "input": {}}
    session = [
        {"type": "file-history-snapshot", "snapshot": {}},
        entry("user", "Fix it."),
        entry("assistant", [use]),
        entry("user", "Search.", isSidechain=True),
        entry("assistant", [{"type": "text", "text": "Found."}], isSidechain=True),
        {"type": "attachment", "attachment": {"type": "queued_command", "prompt": "Hurry."}},
        {"type": "attachment", "attachment": {"type": "todo_reminder", "content": []}},
        {"type": "system", "subtype": "turn_duration", "durationMs": 3},
        entry("user", [{"type": "tool_result", "tool_use_id": "t", "content": "Found."}], toolUseResult={"x": 1}),
        {"type": "result", "subtype": "success", "result": "Fixed."},
        entry("assistant", "Fixed."),
    ]
    trajectory = to_trajectory(TASK, session)
    assert steps(trajectory) == [
        ("", "Task({})", "Search.\nFound."),
        ("", "Found.", "Hurry."),
        ("", "Fixed.", ""),
    ]
    assert (trajectory.first_observation, trajectory.answer) == ("Fix it.", "Fixed.")


WORD = st.text("abcdefgh", min_size=12, max_size=12)
TURN = st.one_of(
    st.builds(Turn, text=WORD, is_user=st.just(True)),
    st.builds(Turn, text=WORD | st.just(""), thought=WORD | st.just(""), result=WORD, failed=st.booleans()),
    st.builds(Turn, text=WORD, thought=WORD | st.just("")),
)


@given(st.lists(TURN, min_size=1, max_size=7), st.sampled_from(sorted(SCRIPTED)))
def test_no_text_of_a_conversation_is_lost(script: list[Turn], format: str) -> None:
    if format == "dspy history" or all(turn.is_user for turn in script):
        script.append(Turn("At last."))  # what follows the last call is in no entry of that history
    trajectory = to_trajectory(TASK, SCRIPTED[format](script))
    found = steps(trajectory)
    read = "\n".join([trajectory.first_observation, *map("\n".join, found)])
    assert all(text in read for turn in script for text in (turn.text, turn.thought, turn.result or ""))
    observed = [
        observation.removeprefix("[error] ") for _, action, observation in found if action.startswith("lookup(")
    ]
    assert [text.split("\n")[0] for text in observed] == [turn.result for turn in script if turn.result]
    is_answer = not script[-1].is_user and script[-1].result is None
    assert not is_answer or trajectory.answer == script[-1].text


SAID: dict[str, Any] = {"role": "assistant", "content": "Done."}
LONG = {
    "messages of the user": lambda n: [SAID, *[{"role": "user", "content": "Go on."}] * n],
    "calls that share an id": lambda n: [
        {"role": "assistant", "content": None, "tool_calls": [call("f", "0")] * n},
        *[{"role": "tool", "tool_call_id": "0", "content": "R"}] * n,
    ],
    "results without ids": lambda n: [
        {"role": "assistant", "content": None, "tool_calls": [call("f")] * n},
        *[{"role": "tool", "name": "g", "content": "R"}] * n,
    ],
    "results without calls": lambda n: [SAID, *[{"role": "tool", "tool_call_id": "0", "content": "R"}] * n],
    "invocations beside parts": lambda n: {
        "role": "assistant",
        "parts": [{"type": "text", "text": "Done."}],
        "toolInvocations": [{"toolName": "f", "toolCallId": str(i), "state": "result"} for i in range(n)],
    },
    "blocks of one message": lambda n: (
        [
            {
                "type": "assistant",
                "message": {"role": "assistant", "id": "m", "content": [{"type": "text", "text": "Hm."}]},
            }
        ]
        * n
    ),
    "base64": lambda n: [{**SAID, "content": "aB3" * n * 50}],
    "almost base64": lambda n: [{**SAID, "content": ("aB3" * 166 + ".") * (n // 4)}],
    "almost data URLs": lambda n: [{**SAID, "content": "base64," + "data:a/b;c;base64" * n * 10}],
}


@pytest.mark.parametrize("rollout", LONG.values(), ids=LONG)
def test_reading_takes_time_in_proportion_to_the_size(rollout: Callable[[int], Any]) -> None:
    def seconds(n: int) -> float:
        data = rollout(n)
        start = time.thread_time()
        to_trajectory(TASK, data)
        return time.thread_time() - start

    assert min(seconds(3200) for _ in range(3)) < 10 * min(seconds(800) for _ in range(3))  # quadratic: 16 times
