"""What the adapter of local models sends: a schema of what is possible, and prompts that only grow at the end."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Literal

import dspy
import pydantic
import pytest
from dspy import lm15
from hypothesis import given, strategies as st

from rb_dspy.backbones.adapters import (
    MAX_ACTIONS,
    MAX_CHARS,
    MAX_ITEMS,
    ActionAdapter,
    escape_control_tokens,
    json_pattern,
)
from rb_dspy.errors import InputError
from rb_dspy.testing import ScriptedEngine


class Engine(ScriptedEngine):
    """Answers every request with the same text, as a server with JSON schemas would, and keeps the requests."""

    def __init__(self, answer: str) -> None:
        super().__init__(lambda prompt: answer)
        self.requests: list[lm15.Request] = []

    def complete(self, request: lm15.Request) -> lm15.Response:
        self.requests.append(request)
        return super().complete(request)

    @property
    def schema(self) -> Any:
        """The JSON schema of the last request."""
        schema = find_schema(self.requests[-1].config.response_format)
        assert schema is not None
        return schema

    def texts(self, number: int) -> list[str]:
        """The prompt of a request, message by message."""
        request = self.requests[number]
        return [str(request.system), *(message.text or "" for message in request.messages)]


def find_schema(value: Any) -> Any:
    """The first JSON schema of an object in a nested value."""
    if isinstance(value, Mapping):
        if value.get("type") == "object" and "properties" in value:
            return value
        value = list(value.values())
    if isinstance(value, list | tuple):
        return next((schema for each in value if (schema := find_schema(each)) is not None), None)
    return None


class Act(dspy.Signature):
    """Act."""

    task: str | None = dspy.InputField()
    action_pattern: str | None = dspy.InputField()
    history: dspy.History = dspy.InputField()
    observation: str = dspy.InputField()
    valid_actions: list[str] | None = dspy.InputField()
    thought: str = dspy.OutputField()
    action: str = dspy.OutputField()


class Lesson(pydantic.BaseModel):
    title: str = pydantic.Field(json_schema_extra={"maxLength": 80})
    content: str


class Learn(dspy.Signature):
    """Learn."""

    task: str = dspy.InputField()
    label: Literal["success", "failure"] = dspy.OutputField()
    lessons: list[Lesson] = dspy.OutputField()
    three: list[Lesson] = dspy.OutputField(max_length=3)


def call(signature: type[dspy.Signature], answer: str, **inputs: Any) -> tuple[Engine, Any]:
    engine = Engine(answer)
    with dspy.context(lm=dspy.LM("fake/model", engine=engine, cache=False), adapter=ActionAdapter()):
        return engine, dspy.Predict(signature)(**inputs)


def act(answer: str = '{"thought": "t", "action": "a"}', **inputs: Any) -> tuple[Engine, Any]:
    return call(Act, answer, history=dspy.History(messages=[]), observation="o", **inputs)


def test_the_action_is_one_of_the_valid_ones() -> None:
    engine, _ = act(valid_actions=["open", "close", "open"])
    assert engine.schema["properties"]["action"]["enum"] == ["open", "close"]
    assert "enum" not in engine.schema["properties"]["thought"]
    engine, _ = act(valid_actions=["open"], action_pattern="close")  # which comes second
    assert engine.schema["properties"]["action"]["enum"] == ["open"]
    assert "pattern" not in engine.schema["properties"]["action"]


@pytest.mark.parametrize("valid", [None, [], [f"go {number}" for number in range(MAX_ACTIONS + 1)]])
def test_no_or_too_many_valid_actions_leave_a_bounded_text(valid: list[str] | None) -> None:
    engine, _ = act(valid_actions=valid)
    assert "enum" not in engine.schema["properties"]["action"]
    assert engine.schema["properties"]["action"]["maxLength"] == MAX_CHARS


def test_the_action_matches_the_pattern_which_is_not_shown() -> None:
    engine, _ = act(action_pattern="^(SELECT [0-9]{1,3}|done)$")
    assert engine.schema["properties"]["action"]["pattern"] == "^((SELECT [0-9]{1,3}|done))$"
    assert not any("SELECT" in text or "action_pattern" in text for text in engine.texts(0))


def test_every_string_and_list_has_an_end() -> None:
    engine, _ = call(Learn, '{"label": "success", "lessons": [], "three": []}', task="t")
    properties = engine.schema["properties"]
    lesson = engine.schema["$defs"]["Lesson"]["properties"]
    assert properties["lessons"]["maxItems"] == MAX_ITEMS
    assert properties["three"]["maxItems"] == 3
    assert (lesson["title"]["maxLength"], lesson["content"]["maxLength"]) == (80, MAX_CHARS)
    assert properties["label"]["enum"] == ["success", "failure"]
    assert "maxLength" not in properties["label"]


def test_a_prompt_starts_with_the_prompt_and_the_answer_before() -> None:
    answer = '{"thought": "größer, \\"so\\"", "action": "open"}'
    engine = Engine(answer)
    with dspy.context(lm=dspy.LM("fake/model", engine=engine, cache=False), adapter=ActionAdapter()):
        turns: list[dict[str, Any]] = []
        for step in range(3):
            now = {"observation": f"o{step}", "valid_actions": ["open"], **({} if step else {"task": "t"})}
            result = dspy.Predict(Act)(**now, history=dspy.History(messages=list(turns)))
            turns.append({**now, "thought": result.thought, "action": result.action})
    for step in range(2):
        before, after = engine.texts(step), engine.texts(step + 1)
        assert after[: len(before) + 1] == [*before, answer]
        assert len(after) == len(before) + 2


CONTROL_TOKENS = [
    "<|im_end|>", "<|endoftext|>", "<|start_header_id|>", "<｜User｜>", "<tool_call>", "</tool_call>",
    "<start_of_turn>", "<s>", "</s>", "<eos>", "<unused7>", "[INST]", "[/INST]", "[TOOL_CALLS]", "<<SYS>>", "<</SYS>>",
    "<think>", "<turn|>",
]  # fmt: skip


@pytest.mark.parametrize("token", CONTROL_TOKENS)
def test_control_tokens_reach_the_server_as_text_and_come_back_as_they_were(token: str) -> None:
    said = f"a{token}b"
    engine, result = act(f'{{"thought": "{escape_control_tokens(said)}", "action": "a"}}', task=said)
    turns = [{"observation": said, "thought": said, "action": said}]
    with dspy.context(lm=dspy.LM("fake/model", engine=engine, cache=False), adapter=ActionAdapter()):
        predict = dspy.Predict(Act.with_instructions(f"Act.\n{said}"))  # with lessons, for example
        predict(observation=said, valid_actions=[said], history=dspy.History(messages=turns))
    assert result.thought == said
    for text in [*engine.texts(0)[1:], *engine.texts(1)]:
        assert token not in text
    assert engine.schema["properties"]["action"]["enum"] == [said]


@given(st.lists(st.sampled_from([*CONTROL_TOKENS, "<", "|", ">", "_", "[", "x", "\n"])).map("".join))
def test_escaping_control_tokens_is_complete_and_only_inserts(text: str) -> None:
    escaped = escape_control_tokens(text)
    assert not any(token in escaped for token in CONTROL_TOKENS)
    assert escaped.replace("\u200b", "") == text
    assert escape_control_tokens(escaped) == escaped


@pytest.mark.parametrize(
    "text", ["<b>bold</b>", "a < b > c", "f(x)[0]", "[INFO] ok", "x |> f()", "[[ ## task ## ]]", "List<T>"]
)
def test_ordinary_text_has_no_control_tokens(text: str) -> None:
    assert escape_control_tokens(text) == text


@pytest.mark.parametrize("thinking", ["<think>\n{}\n</think>\n", ' <think>{"action": "b"}</think>', ""])
def test_thinking_before_the_answer_is_ignored(thinking: str) -> None:
    _, result = act(thinking + '{"thought": "a <think>b</think>", "action": "a"}')
    assert (result.thought, result.action) == ("a <think>b</think>", "a")


def test_an_lm_without_schemas_gets_none() -> None:
    engine = Engine('{"thought": "t", "action": "a"}')
    engine.supports_response_schema = False
    with dspy.context(lm=dspy.LM("fake/model", engine=engine, cache=False), adapter=ActionAdapter()):
        dspy.Predict(Act)(observation="o", history=dspy.History(messages=[]), valid_actions=["open"])
    assert find_schema(engine.requests[-1].config.response_format) is None


@pytest.mark.parametrize(
    ("pattern", "matched", "refused"),
    [
        (r"^(SELECT .*|ANSWER: .*)$", ['SELECT "a" FROM b', "ANSWER: c\\d"], ["DROP a", "SELECT a\nDROP b"]),
        (r"go (north|south)", ["go north"], ["go east", "go north now"]),
        (r"\d+\.\w{2}", ["12.ab"], ["a.12"]),
        (r'say "[^"]+"', ['say "hello"'], ['say ""']),
        (r"a\\b\/\[c\]", [r"a\b/[c]"], ["a"]),
        (r"""["']x["\']""", ["'x'", '"x"'], ["x"]),
        (r"größer{1,2} \$", ["größerr $"], ["größ $"]),
        (r"a|b", ["a", "b"], ["ab"]),
        (r"[\\\\]+", ["\\\\", "\\"], ["a", ""]),
        (r"[\\]", ["\\"], ["a", "\\\\"]),
        (r"[^;]*", ['"a" \\ b', ""], [";", "\n"]),
        (r'[^";\]]+', ["a\\b"], ['"', "]", ";"]),
        (r"[\w\-.]+\[[\[x-]", ["a-b._[[", "A[-"], ["é[x"]),
        (r"say \S+\D", ['say "a"\\;'], ["say a b1", "say 12", "say a\n"]),
        (r"(a)*b", ["b", "a" * 240 + "b"], ["a" * 300 + "b"]),
        (r"a{2,}", ["aa"], ["a", "a" * 300]),
        (r"a{300,}", ["a" * 300], ["a" * 299, "a" * 301]),
        (r'"+\\{2}?', ['""\\\\'], ['"\\']),
        (r"^(f|g)\(.*\)|(ANSWER: )?x$", ["f(a='é')", "x"], ["h()", "ANSWER: "]),
        (r"\$", ["$"], [""]),
        (r"\\$", ["\\"], ["$"]),
        ("", [""], ["a"]),
    ],
)
def test_a_pattern_matches_the_json_form_of_what_it_matched(
    pattern: str, matched: list[str], refused: list[str]
) -> None:
    translated = json_pattern(pattern)
    for text in matched:
        assert re.fullmatch(pattern, text)
        assert re.fullmatch(translated, json.dumps(text, ensure_ascii=False)[1:-1])
    for text in refused:
        assert not re.fullmatch(translated, json.dumps(text, ensure_ascii=False)[1:-1])


@pytest.mark.parametrize("char", ['"', "\\", "\n", "\r", "\t"])
def test_what_json_must_escape_is_not_written_as_it_is(char: str) -> None:
    assert not re.fullmatch(json_pattern("[^a]"), char)


@pytest.mark.parametrize(
    "pattern",
    [
        "a(?=b)",
        r"(a)\1",
        r"\bgo",
        "(",
        "(?P<x>a)",
        "(?i)a",
        "a$b",
        "a*+",
        "[^]a]",
        "[!-~]",
        "[a^]",
        r"[\n]",
        "a{b",
    ],
)
def test_a_pattern_that_cannot_be_enforced_is_refused(pattern: str) -> None:
    with pytest.raises(InputError, match=re.escape(repr(pattern))):
        json_pattern(pattern)
