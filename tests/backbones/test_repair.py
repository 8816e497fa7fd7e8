"""The repair's format is dspy's JSON, in which drafts are read as in a chat."""

from __future__ import annotations

import json
from typing import Any

import dspy
import pytest
from dspy.utils.exceptions import AdapterParseError

from rb_dspy import signatures
from rb_dspy.backbones.chat import ChatAdapter
from rb_dspy.backbones.repair import RepairAdapter

GOOD = {"title": "Look first", "description": "When in doubt.", "content": "Look behind the mirror."}
BLANK = {"title": "", "description": "", "content": ""}
OURS = RepairAdapter()
DSPYS = dspy.JSONAdapter()


def read(adapter: dspy.ChatAdapter, signature: Any, items: Any) -> Any:
    """The drafts that ``adapter`` finds, without their evidence, or what it raises."""
    text = json.dumps(items)
    if isinstance(adapter, dspy.JSONAdapter):
        completion = f'{{"analysis": "Hm.", "memory_items": {text}}}'
    else:
        completion = f"[[ ## analysis ## ]]\nHm.\n\n[[ ## memory_items ## ]]\n{text}\n\n[[ ## completed ## ]]"
    try:
        found = adapter.parse(signature, completion)
    except AdapterParseError:
        return AdapterParseError
    assert list(found) == ["analysis", "memory_items"]
    assert all(type(draft).__name__ in ("MemoryDraft", "ContrastDraft") for draft in found["memory_items"])
    return [{name: getattr(draft, name) for name in GOOD} for draft in found["memory_items"]]


@pytest.mark.parametrize("signature", [signatures.DistillSuccess, signatures.DistillFailure, signatures.Contrast])
@pytest.mark.parametrize(
    ("items", "expected"),
    [
        ([GOOD], [GOOD]),
        ([GOOD, GOOD], [GOOD, GOOD]),
        ([], []),
        ([GOOD, None], [GOOD, BLANK]),
        (["x", GOOD, 7], [BLANK, GOOD, BLANK]),
        ([{**GOOD, "description": None}, GOOD], [{**GOOD, "description": ""}, GOOD]),
        ([GOOD, {"title": 1, "content": []}], [GOOD, BLANK]),
        ([None], AdapterParseError),
        ([None, {**GOOD, "title": 1}], AdapterParseError),
        ([[GOOD]], AdapterParseError),
        (GOOD, [GOOD]),
        ({"Title": "Look first", " CONTENT ": "Look."}, [{**BLANK, "title": "Look first", "content": "Look."}]),
        ([{name.title(): text for name, text in GOOD.items()}], [GOOD]),
        ([{"Title": "Other", **GOOD}], [GOOD]),
        (
            [GOOD, {**{name.title(): text for name, text in GOOD.items()}, "Description": 1}],
            [GOOD, {**GOOD, "description": ""}],
        ),
        ({**GOOD, "content": None}, AdapterParseError),
        ({"1": GOOD}, AdapterParseError),
        ({"lesson": "Look."}, AdapterParseError),
        ("none", AdapterParseError),
    ],
)
def test_both_ways_of_reading_are_lenient_alike(signature: Any, items: Any, expected: Any) -> None:
    assert read(OURS, signature, items) == read(ChatAdapter(), signature, items) == expected


@pytest.mark.parametrize("name", [name for name in signatures.__all__ if not name.endswith("Draft")])
def test_it_sends_what_dspy_sends(name: str) -> None:
    signature = getattr(signatures, name)
    inputs = {field: f"the {field}" for field in signature.input_fields if field != "history"}
    demos = [{"analysis": "Hm.", "memory_items": [signatures.MemoryDraft(**GOOD)]}]
    assert OURS.format(signature, demos, inputs) == DSPYS.format(signature, demos, inputs)


class Numbers(dspy.Signature):
    """Something else than drafts."""

    text: str = dspy.InputField()
    numbers: list[int] = dspy.OutputField()
    things: list[dict[str, int]] = dspy.OutputField()


@pytest.mark.parametrize("things", [[{"a": 1}], [{"a": 1}, 3], [{"a": "x"}, {}], 3])
def test_other_lists_are_read_as_dspy_reads_them(things: Any) -> None:
    def outcome(adapter: dspy.JSONAdapter) -> Any:
        try:
            return adapter.parse(Numbers, json.dumps({"numbers": [1], "things": things}))
        except AdapterParseError:
            return AdapterParseError

    assert outcome(OURS) == outcome(DSPYS)


@pytest.mark.parametrize("answer", ["", "none", "[1]", '{"analysis": "Hm."}', '{"analysis": ' + '{"a": ' * 400])
def test_what_cannot_be_read_is_said_so(answer: str) -> None:
    with pytest.raises(AdapterParseError):
        OURS.parse(signatures.Contrast, answer)
