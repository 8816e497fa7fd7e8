"""The text of parts and tool results: whatever has words is kept, media are a placeholder."""

from __future__ import annotations

import json
import sqlite3
from collections import namedtuple
from contextlib import closing
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import dspy
import pandas
import pytest

from rb_dspy.importers import to_trajectory
from rb_dspy.schema import Task

TASK = Task(id="t", instruction="Look.")
BYTES = "aGVsbG8="
PIXELS = {"type": "base64", "media_type": "image/png", "data": BYTES}


def observed(result: Any) -> str:
    """The observation of a step whose tool returned ``result``: the same for OpenAI and Anthropic."""
    openai = [
        {"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": "look", "arguments": "{}"}}]},
        {"role": "tool", "tool_call_id": "1", "content": result},
    ]
    anthropic = [
        {"role": "assistant", "content": [{"type": "tool_use", "id": "1", "name": "look", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "content": result}]},
    ]
    (text,) = {to_trajectory(TASK, messages).steps[0].observation for messages in (openai, anthropic)}
    return text


@pytest.mark.parametrize(
    "record",
    [
        {"type": "charge", "id": 2, "status": "FAILED"},
        {"type": "search_result", "source": "kb", "title": "Rules", "content": [{"type": "text", "text": "zurück"}]},
        {"type": "text", "value": "DENIED"},
        {"type": "text", "text": "order 1", "status": "FAILED"},
        {"type": "file", "name": "a.txt", "size": 10},
        {"kind": "charge", "id": 2},
    ],
    ids=str,
)
def test_a_record_in_a_tools_result_stays_whole(record: dict[str, Any]) -> None:
    first = {"type": "charge", "id": 1}
    assert [json.loads(line) for line in observed([first, record]).split("\n")] == [first, record]
    assert "\\u" not in observed([record])


@pytest.mark.parametrize(
    ("part", "text"),
    [
        ("DENIED", "DENIED"),
        ({"type": "text", "text": "DENIED", "annotations": {}, "cache_control": {"type": "ephemeral"}}, "DENIED"),
        ({"type": "refusal", "refusal": "No."}, "No."),
        ({"type": "thinking", "thinking": "Hm.", "signature": "xyz"}, "Hm."),
        ({"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": "Hm."}]}, "Hm."),
        ({"type": "text", "text": ""}, ""),
        (SimpleNamespace(type="text", text="DENIED", citations=None), "DENIED"),
        (7, "7"),
        ({"refunded": False}, '{"refunded": false}'),
        ([{"type": "text", "text": "DENIED"}], "DENIED"),
    ],
    ids=str,
)
def test_a_text_in_a_tools_result_is_its_words(part: Any, text: str) -> None:
    assert observed(part) == observed([part]) == text


@pytest.mark.parametrize(
    ("part", "text"),
    [
        ({"type": "image"}, "[image]"),
        ({"type": "image", "source": PIXELS, "cache_control": None}, "[image]"),
        ({"type": "image", "url": f"data:image/png;base64,{BYTES}"}, "[image]"),
        ({"type": "image_url", "image_url": {"url": "https://a/b.png", "detail": "low"}}, "[image]"),
        ({"type": "input_audio", "input_audio": {"data": BYTES, "format": "wav"}}, "[audio]"),
        ({"type": "input_audio", "audio": BYTES, "transcript": "DENIED"}, "DENIED"),
        ({"type": "video", "base64": BYTES, "mime_type": "video/mp4"}, "[video]"),
        ({"type": "file", "file": {"filename": "a.pdf", "file_data": BYTES}}, "a.pdf\n[file]"),
        ({"type": "file", "source_type": "text", "text": "DENIED", "mime_type": "text/plain"}, "DENIED"),
        ({"type": "document", "source": {"type": "url", "url": "https://a/b.pdf"}}, "[file]"),
        ({"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "DENIED"}}, "DENIED"),
        ({"type": "document", "source": "kb", "title": "Rules", "content": "DENIED"}, "Rules\nkb\nDENIED"),
        (
            {
                "type": "document",
                "title": "Rules",
                "context": "of 2026",
                "source": {"type": "content", "content": [{"type": "text", "text": "DENIED"}]},
            },
            "Rules\nof 2026\nDENIED",
        ),
    ],
    ids=str,
)
def test_media_are_a_placeholder_and_their_words_are_kept(part: dict[str, Any], text: str) -> None:
    assert observed([part]) == text
    asked = [{"role": "user", "content": ["Look:", part]}, {"role": "assistant", "content": "I see."}]
    assert to_trajectory(TASK, asked).first_observation == f"Look:\n{text}"


@pytest.mark.parametrize(
    ("message", "text"),
    [
        ({"content": None, "refusal": "I will not."}, "I will not."),
        ({"content": None, "audio": {"id": "a", "data": BYTES, "expires_at": 1, "transcript": "Paris"}}, "Paris"),
        ({"content": None, "audio": {"id": "a"}}, "[audio]"),
    ],
    ids=str,
)
def test_whatever_the_assistant_says_is_kept(message: dict[str, Any], text: str) -> None:
    assert to_trajectory(TASK, [{"role": "assistant", **message}]).answer == text


def test_what_only_the_provider_can_read_is_left_out() -> None:
    results = [{"type": "web_search_result", "title": "Rules", "url": "u", "encrypted_content": "SECRET"}]
    blocks = [
        {"type": "redacted_thinking", "data": "SECRET"},
        {"type": "server_tool_use", "id": "w", "name": "web_search", "input": {"query": "q"}},
        {"type": "web_search_tool_result", "tool_use_id": "w", "content": results},
        {"type": "text", "text": "Done."},
    ]
    (search, done) = to_trajectory(TASK, [{"role": "assistant", "content": blocks}]).steps
    assert (search.action, json.loads(search.observation)["title"]) == ('web_search({"query": "q"})', "Rules")
    assert "SECRET" not in f"{search}{done}"


PNG = "iVBORw0KGgo" + "A" * 989
RECORD = {"page": "http://shop.example"}


@pytest.mark.parametrize(
    ("result", "text"),
    [
        ({"type": "image", "data": PNG, "mimeType": "image/png"}, "[image]"),
        ({"type": "image", "data": BYTES, "mimeType": "image/png", "width": 9}, '[image]\n{"width": 9}'),
        ({"type": "media", "mime_type": "image/png", "data": PNG}, "[image]"),
        ({"type": "resource", "resource": {"uri": "a.png", "mimeType": "image/png", "blob": BYTES}}, "a.png\n[image]"),
        ({"type": "resource", "resource": {"uri": "a.txt", "text": "DENIED"}}, "a.txt\nDENIED"),
        ({"image": {"format": "png", "source": {"bytes": b"\x89PNG"}}}, "[image]"),
        ({"inlineData": {"mimeType": "audio/wav", "data": BYTES}}, "[audio]"),
        ([{"json": {"status": "DENIED"}}, {"text": "Sorry."}], '{"status": "DENIED"}\nSorry.'),
        ({"content": [{"type": "text", "text": "DENIED"}], "isError": True, "_meta": None}, "[error]\nDENIED"),
        ({**RECORD, "shot": f"data:image/png;base64,{BYTES}"}, '{"page": "http://shop.example", "shot": "[image]"}'),
        ({**RECORD, "shot": PNG}, '{"page": "http://shop.example", "shot": "[binary, 750 bytes]"}'),
        (f"See ![a](data:image/png;base64,{PNG}) and data:;base64,{BYTES}.", "See ![a]([image]) and [file]."),
        ("ACGT" * 500, "ACGT" * 500),
        (b"DENIED \xe2\x82\xac", "DENIED €"),
        (b"\x89PNG", "[binary, 4 bytes]"),
        (memoryview(b"\x89PNG"), "[binary, 4 bytes]"),
        (dspy.Image(f"data:image/png;base64,{PNG}"), "[image]"),
        (
            {"shown": [dspy.File(file_data=f"data:a/b;base64,{BYTES}", filename="a.pdf")]},
            '{"shown": ["a.pdf\\n[file]"]}',
        ),
        ({"file": {"name": "a.txt", "size": 3}}, '{"file": {"name": "a.txt", "size": 3}}'),
        ({"text": "order 1", "id": 3}, '{"text": "order 1", "id": 3}'),
    ],
    ids=lambda value: "memoryview" if isinstance(value, memoryview) else str(value)[:60],
)
def test_a_binary_is_a_remark_and_the_rest_is_kept(result: Any, text: str) -> None:
    assert observed(result) == text


class Row:
    """As an ORM's: a field named ``type`` that the class describes, no text of its own, and another row."""

    type = property(lambda self: self.__dict__["type"], lambda self, value: self.__dict__.update(type=value))

    def __init__(self, **fields: Any) -> None:
        self._state = object()
        for name, value in fields.items():
            setattr(self, name, value)


class Closed:
    def __str__(self) -> str:
        raise RuntimeError("closed")


Charge = namedtuple("Charge", "id amount")


def rows() -> list[sqlite3.Row]:
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.row_factory = sqlite3.Row
        return connection.execute("select 1 as id, 250 as amount").fetchall()


@pytest.mark.parametrize(
    ("result", "text"),
    [
        (
            Row(type="refund", amount=250, owner=Row(), scan=b"\x89PNG"),
            "Row(type=refund, amount=250, owner=<tests.importers.test_content.Row object>, scan=[binary, 4 bytes])",
        ),
        (Row(), "Row()"),
        (Closed(), "[Closed]"),
        (ValueError(), "ValueError"),
        (Charge(1, 250), '{"id": 1, "amount": 250}'),
        (rows(), '{"id": 1, "amount": 250}'),
        (Decimal("2.50"), "2.50"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_object_is_its_text_or_its_fields(result: Any, text: str) -> None:
    assert observed(result) == text


@pytest.mark.parametrize("column", ["kind", "type", "role", "content"])
def test_a_data_frame_is_the_text_that_the_agent_saw(column: str) -> None:
    frame = pandas.DataFrame({column: ["refund", "sale"], "amount": [250, 10]})
    assert observed(frame) == str(frame)


@pytest.mark.parametrize("arguments", ['{"a":' * 5000, "[" * 900, '"' + "x" * 1_000_000])
def test_arguments_that_are_deep_or_long_are_kept_as_text(arguments: str) -> None:
    call = {"id": "1", "function": {"name": "f", "arguments": arguments}}
    assert to_trajectory(TASK, [{"role": "assistant", "tool_calls": [call]}]).steps[0].action == f"f({arguments})"
