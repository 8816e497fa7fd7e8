"""What the parts of foreign messages and tool results say: all of it, or ``[kind]`` where that is no text."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from rb_dspy import Task
from rb_dspy.steps import as_trajectory

TASK = Task(id="t", instruction="Find the capital.")
BYTES = "aGVsbG8="
PIXELS = {"type": "base64", "media_type": "image/png", "data": BYTES}


def observed(result: Any) -> str:
    """What the judge gets to see of ``result``, as a tool's in the ways in which chat APIs have it."""
    openai = [
        {"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": "look", "arguments": "{}"}}]},
        {"role": "tool", "tool_call_id": "1", "content": result},
    ]
    anthropic = [
        {"role": "assistant", "content": [{"type": "tool_use", "id": "1", "name": "look", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "content": result}]},
    ]
    (found,) = {as_trajectory(TASK, messages).steps[0].observation for messages in (openai, anthropic)}
    return found


@pytest.mark.parametrize(
    "record",
    [
        {"type": "charge", "id": 2, "status": "FAILED"},
        {"type": "charge", "text": "zurück", "status": "FAILED"},
        {"type": "json", "value": {"refunded": False}},
        {"type": "search_result", "source": "kb", "title": "Rules", "content": [{"type": "text", "text": "DENIED"}]},
        {"type": "resource", "resource": {"uri": "kb://1", "text": "DENIED"}},
        {"type": "text", "value": "DENIED"},
        {"type": "text", "text": "order 1", "status": "FAILED"},
        {"type": "reasoning", "score": 3},
        {"type": "file", "name": "a.txt", "size": 10},
        {"type": "file", "file": "a.txt"},
        {"type": "file", "data": "DENIED"},
        {"type": "document", "id": 7},
        {"type": "document", "source": "kb", "title": "Rules"},
        {"type": "document", "url": "kb://1", "title": "Rules"},
        {"type": "image", "source": PIXELS, "label": "a cat"},
        {"kind": "charge", "id": 2},
    ],
    ids=str,
)
def test_a_record_in_a_tools_result_is_seen_whole_whatever_its_type(record: dict[str, Any]) -> None:
    first = {"type": "charge", "id": 1}
    assert [json.loads(line) for line in observed([first, record]).split("\n")] == [first, record]
    assert "\\u" not in observed([record])


@pytest.mark.parametrize(
    ("part", "said"),
    [
        ({"type": "text", "text": "DENIED", "annotations": {}, "cache_control": {"type": "ephemeral"}}, "DENIED"),
        ({"type": "output_text", "text": "DENIED", "annotations": [], "logprobs": None}, "DENIED"),
        ({"type": "refusal", "refusal": "No."}, "No."),
        ({"type": "thinking", "thinking": "Hm.", "signature": "xyz"}, "Hm."),
        ({"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": "Hm."}]}, "Hm."),
        ({"type": "text", "text": ""}, ""),
        (SimpleNamespace(type="text", text="DENIED", citations=None), "DENIED"),
    ],
    ids=str,
)
def test_a_text_in_a_tools_result_is_its_words(part: Any, said: str) -> None:
    assert observed([part, "x"]) == f"{said}\nx"


@pytest.mark.parametrize(
    ("part", "said"),
    [
        ({"type": "image"}, "[image]"),
        ({"type": "image", "source": PIXELS, "cache_control": None}, "[image]"),
        ({"type": "image", "data": BYTES, "mimeType": "image/png"}, "[image]"),
        ({"type": "image", "source_type": "base64", "data": BYTES, "mime_type": "image/png", "id": "1"}, "[image]"),
        ({"type": "image_url", "image_url": {"url": "https://a/b.png", "detail": "low"}}, "[image_url]"),
        ({"type": "input_image", "image_url": None, "file_id": "f", "detail": "auto"}, "[input_image]"),
        ({"type": "input_audio", "input_audio": {"data": BYTES, "format": "wav"}}, "[input_audio]"),
        ({"type": "input_audio", "audio": BYTES, "transcript": "DENIED"}, "DENIED"),
        ({"type": "file", "file": {"filename": "a.pdf", "file_data": BYTES}}, "a.pdf\n[file]"),
        ({"type": "file", "base64": BYTES, "mime_type": "application/pdf"}, "[file]"),
        ({"type": "file", "source_type": "text", "text": "DENIED", "mime_type": "text/plain"}, "DENIED"),
        ({"type": "document", "source": {"type": "url", "url": "https://a/b.pdf"}}, "[document]"),
        (
            {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "DENIED"}},
            "DENIED",
        ),
        (
            {
                "type": "document",
                "title": "Rules",
                "context": "of 2026",
                "source": {"type": "content", "content": [{"type": "text", "text": "DENIED"}]},
                "citations": {"enabled": True},
            },
            "Rules\nof 2026\nDENIED",
        ),
    ],
    ids=str,
)
def test_a_picture_a_sound_or_a_file_is_named_and_its_words_are_read(part: dict[str, Any], said: str) -> None:
    assert observed([part]) == said
    asked = [{"role": "user", "content": ["Look:", part]}, {"role": "assistant", "content": "I see."}]
    assert as_trajectory(TASK, asked).first_observation == f"Look:\n{said}"


def test_a_call_that_could_not_be_read_is_a_step_that_failed() -> None:
    invalid = {"type": "invalid_tool_call", "name": "refund", "args": "{bad", "id": "2", "error": "not JSON"}
    turn = {
        "type": "ai",
        "content": "Refund it.",
        "tool_calls": [{"name": "lookup", "args": {}, "id": "1"}],
        "invalid_tool_calls": [invalid, {**invalid, "id": None, "error": None}],
    }
    found = as_trajectory(
        TASK,
        [
            {"type": "human", "content": "q"},
            turn,
            {"type": "tool", "tool_call_id": "1", "content": "charged twice"},
            {"type": "tool", "tool_call_id": "2", "content": "try again", "status": "error"},
            {"type": "ai", "content": "Done.", "invalid_tool_calls": []},
        ],
    )
    assert [(step.thought, step.action, step.observation) for step in found.steps] == [
        ("Refund it.", "lookup({})", "charged twice"),
        ("", "refund({bad)", "[error] not JSON\n[error] try again"),
        ("", "refund({bad)", "[error] the call could not be read"),
        ("", "Done.", ""),
    ]
    called = {"type": "tool_use", "id": "2", "name": "refund", "input": "{bad"}  # as LangChain over Anthropic has it
    (step,) = as_trajectory(TASK, [{"type": "ai", "content": [called], "invalid_tool_calls": [invalid]}]).steps
    assert (step.action, step.observation) == ("refund({bad)", "[error] not JSON")


def test_what_an_agent_says_aloud_is_read() -> None:
    aloud = {"id": "a", "data": BYTES, "expires_at": 1, "transcript": "It is Paris."}
    found = as_trajectory(
        TASK,
        [
            {"role": "assistant", "content": None, "audio": {**aloud, "transcript": "Which country?"}},
            {"role": "user", "content": "France"},
            {"role": "assistant", "content": None, "audio": {"id": "before"}},
            {"role": "user", "content": "Well?"},
            {"role": "assistant", "content": None, "audio": aloud},
        ],
    )
    assert [(step.action, step.observation) for step in found.steps] == [
        ("Which country?", "France"),
        ("[audio]", "Well?"),
        ("It is Paris.", ""),
    ]
    assert found.answer == "It is Paris."


def test_a_thought_without_words_is_no_step() -> None:
    said = [
        {"role": "user", "content": "q"},
        {"type": "reasoning", "id": "r", "summary": [], "encrypted_content": "xyz"},
        {"role": "assistant", "content": [{"type": "output_text", "text": "Paris"}]},
        {"role": "user", "content": "Is it?"},
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]},
        {"type": "function_call", "call_id": "1", "name": "look", "arguments": "{}"},
    ]
    steps = as_trajectory(TASK, said).steps
    assert [(step.thought, step.action) for step in steps] == [("", "Paris"), ("Hm.", "look({})")]
