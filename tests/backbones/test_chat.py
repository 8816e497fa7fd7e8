"""Our chat adapter sends what dspy's sends, byte for byte, and reads what dspy's reads, as dspy's does."""

from __future__ import annotations

import copy
import json
from typing import Any, Literal

import dspy
import pytest
from dspy.utils.callback import BaseCallback
from dspy.utils.exceptions import AdapterParseError
from hypothesis import given, strategies as st

from rb_dspy import signatures
from rb_dspy.backbones.chat import ChatAdapter
from rb_dspy.backbones.grammar import GrammarAdapter
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


class Read(dspy.Signature):
    """Output fields of many types."""

    text: str = dspy.InputField()
    words: str = dspy.OutputField()
    choice: Literal["a", "b", 3] = dspy.OutputField()
    number: int = dspy.OutputField()
    share: float = dspy.OutputField()
    fine: bool = dspy.OutputField()
    found: list[int] = dspy.OutputField()
    drafts: list[MemoryDraft] = dspy.OutputField()
    perhaps: str | None = dspy.OutputField()


VALUE = st.one_of(
    TEXT,
    st.sampled_from(["a", "'b'", "3", "Literal[a]", "true", "yes", "0.5", "1e3", "None", "[1, 2]", "(1, 2)", "[1, 'x"]),
    st.lists(st.integers() | st.booleans()).map(repr),
    st.lists(st.just(DRAFT.model_dump()) | st.dictionaries(TEXT, TEXT, max_size=2), max_size=2).map(json.dumps),
    st.builds("```json\n{}\n```".format, st.lists(st.integers()).map(json.dumps)),
)
SECTION = st.builds(
    "{}[[ ## {} ## ]]{}{}".format,
    st.sampled_from(["", "  ", "so: "]),
    st.sampled_from([*Read.output_fields, "text", "completed"]),
    st.sampled_from(["\n", " ", "\r\n", "\n\n"]),
    VALUE,
)


def alike(signature: Any, completion: str) -> None:
    """What dspy reads is read so; what it cannot read may be read all the same, where it is clear (``test_meant``)."""
    ours, dspys = outcome(OURS, signature, completion), outcome(DSPYS, signature, completion)
    assert ours == dspys or (isinstance(dspys, tuple) and isinstance(ours, list))


def outcome(adapter: dspy.ChatAdapter, signature: Any, completion: str) -> Any:
    try:
        return [(name, type(value), value) for name, value in adapter.parse(signature, completion).items()]
    except AdapterParseError as exc:
        return type(exc), str(exc), exc.lm_response, exc.parsed_result
    except Exception as exc:  # noqa: BLE001 (what dspy lets through, as it is)
        return type(exc), str(exc)


@given(before=TEXT, sections=st.lists(SECTION, max_size=10), values=st.lists(VALUE, min_size=8, max_size=8))
def test_answers_are_read_as_dspy_reads_them(before: str, sections: list[str], values: list[str]) -> None:
    for completion in (
        "\n".join([before, *sections]),
        "\n\n".join(f"[[ ## {name} ## ]]\n{text}" for name, text in zip(Read.output_fields, values, strict=True)),
    ):
        alike(Read, completion)


@pytest.mark.parametrize("name", Read.output_fields)
@given(value=VALUE)
def test_a_value_of_each_type_is_read_as_dspy_reads_it(name: str, value: str) -> None:
    """One field a signature, since the first that cannot be read hides the others."""
    only = Read
    for other in Read.output_fields:
        only = only if other == name else only.delete(other)
    completion = f"[[ ## {name} ## ]]\n{value}\n\n[[ ## completed ## ]]"
    alike(only, completion)


def test_what_an_answer_has_room_for_is_kept_apart_for_each_signature() -> None:
    told = "[[ ## found ## ]]\n[1]\n\n[[ ## choice ## ]]\na"
    other = Mixed.with_updated_fields("found", type_=list[str])
    assert OURS.parse(Mixed, told) == {"found": [1], "choice": "a"}
    assert OURS.parse(other, told.replace("[1]", '["1"]')) == {"found": ["1"], "choice": "a"}


def test_of_a_field_that_is_given_twice_the_first_counts() -> None:
    told = "[[ ## found ## ]]\n[1]\n[[ ## choice ## ]]\na\n[[ ## found ## ]]\n[2]\n[[ ## choice ## ]] neither"
    assert OURS.parse(Mixed, told) == DSPYS.parse(Mixed, told) == {"found": [1], "choice": "a"}


def test_fields_are_in_the_signatures_order_whatever_the_answers() -> None:
    told = "[[ ## found ## ]]\n[1]\n[[ ## choice ## ]]\na"
    assert list(OURS.parse(Mixed, told)) == list(DSPYS.parse(Mixed, told)) == list(Mixed.output_fields)


@pytest.mark.parametrize("value", ["[" * 2000, '{"a":' * 2000, "(" * 2000, "-" * 9000], ids=lambda value: value[:5])
def test_what_is_nested_too_deeply_cannot_be_read(value: str) -> None:
    with pytest.raises(AdapterParseError):
        OURS.parse(Mixed, f"[[ ## choice ## ]]\na\n[[ ## found ## ]]\n{value}")


@pytest.mark.parametrize("adapter", [ChatAdapter, GrammarAdapter])
def test_a_callback_hears_of_a_prompt_once(adapter: type[ChatAdapter]) -> None:
    heard: list[str] = []

    class Listener(BaseCallback):
        def on_adapter_format_start(self, call_id: str, instance: Any, inputs: dict[str, Any]) -> None:
            heard.append(call_id)

    adapter(callbacks=[Listener()]).format(Mixed, [], {"text": "t", "number": 1.0, "drafts": []})
    assert len(heard) == 1
