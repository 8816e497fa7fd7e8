"""Our chat adapter sends what dspy's sends, byte for byte."""

from __future__ import annotations

import copy
from typing import Any, Literal

import dspy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rb_dspy import signatures
from rb_dspy.backbones.chat import ChatAdapter
from rb_dspy.signatures import MemoryDraft

OURS = ChatAdapter()
DSPYS = dspy.ChatAdapter(use_json_adapter_fallback=False)

DRAFT = MemoryDraft(title="Count twice", description="When a list is long.", content="Count it from both ends.")
TEXT = st.text(st.characters(codec="utf-8"), max_size=40)
TURN = st.fixed_dictionaries(
    {"observation": TEXT, "thought": TEXT, "action": TEXT},
    optional={"task": TEXT, "memory": TEXT, "action_rules": TEXT, "valid_actions": st.lists(TEXT, max_size=3)},
)


class Mixed(dspy.Signature):
    """Fields of many types."""

    text: str = dspy.InputField()
    number: float | None = dspy.InputField(desc="any")
    drafts: list[MemoryDraft] = dspy.InputField()
    choice: Literal["a", "b"] = dspy.OutputField()
    found: list[int] = dspy.OutputField()


def same(signature: Any, inputs: dict[str, Any], demos: list[dict[str, Any]] | None = None) -> list[dict[str, Any]]:
    ours = OURS.format(signature, copy.deepcopy(demos or []), dict(inputs))
    assert ours == DSPYS.format(signature, copy.deepcopy(demos or []), dict(inputs))
    return ours


@given(first=TURN, turns=st.lists(TURN, max_size=4), demos=st.lists(TURN, max_size=2))
def test_an_agents_prompt_with_its_history_and_demos(
    first: dict[str, Any], turns: list[dict[str, Any]], demos: list[dict[str, Any]]
) -> None:
    same(signatures.Act, {**first, "history": dspy.History(messages=turns)}, demos)


@given(text=TEXT, number=st.none() | st.floats(allow_nan=False), times=st.integers(0, 2))
def test_values_of_other_types(text: str, number: float | None, times: int) -> None:
    demo = {"text": text, "number": number, "drafts": [DRAFT], "choice": "a", "found": [1, 2]}
    same(Mixed, {"text": text, "number": number, "drafts": [DRAFT] * times}, [demo] * times)


@pytest.mark.parametrize("name", [name for name in signatures.__all__ if not name.endswith("Draft")])
def test_every_prompt_of_ours(name: str) -> None:
    signature = getattr(signatures, name)
    same(signature, {field: f"the {field}" for field in signature.input_fields if field != "history"})


def test_a_new_instruction_is_seen_at_once() -> None:
    inputs = {"text": "t", "number": 1.0, "drafts": []}
    before = same(Mixed, inputs)
    told = same(Mixed.with_instructions("Quite another one."), inputs)
    assert "Quite another one." in told[0]["content"]
    changed = Mixed.with_instructions("The first.")
    same(changed, inputs)
    changed.instructions = "The second."
    assert "The second." in same(changed, inputs)[0]["content"]
    assert same(Mixed, inputs) == before


def test_fields_of_another_description_are_seen_at_once() -> None:
    inputs = {"text": "t", "number": 1.0, "drafts": []}
    told = same(Mixed.with_updated_fields("found", desc="only primes"), inputs)
    assert "only primes" in told[0]["content"]
    assert "only primes" not in same(Mixed, inputs)[0]["content"]
