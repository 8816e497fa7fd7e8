"""Answers of every role, read with every adapter: without thoughts, in bounded time, and refused if unusable."""

from __future__ import annotations

import contextlib
import json
import time
from typing import Any, Literal

import dspy
import pydantic
import pytest

from rb_dspy import Backbones, MaTTS, MemoryBank, ReasoningBank, Task, run_stream
from rb_dspy.backbones import call
from rb_dspy.errors import UnparseableOutput
from rb_dspy.testing import HashEmbedder, Prompt, Reply, scripted_lm

HOSTILE = {
    "900 brackets": "[" * 900,
    "900 closed brackets": "[" * 900 + "]" * 900,
    "a nested object": '{"action":' * 3000 + "1" + "}" * 3000,
    "a nested field": "[[ ## memory_items ## ]]\n" + "[" * 900 + "]" * 900,
    "52 KB of braces": "{" * 52_000,
    "52 KB of braces in a field": "[[ ## memory_items ## ]]\n" + "{" * 52_000,
    "52 KB of drafts": '{"memory_items": [' + '{"title": "x", "content": "y"}, ' * 1700,
    "a long number": '{"choice": ' + "9" * 5000 + "}",
    "an unfinished thought": "<think>\n[[ ## label ## ]]\nsuccess\n\n[[ ## completed ## ]]",
}
FIELDS = "analysis: str, label: str, action: list[int], memory_items: list[dict], choice: int"


def asked(answer: str, adapter: Any, fields: Any = "task: str -> label: str") -> Any:
    with dspy.context(lm=scripted_lm(lambda prompt: answer), adapter=adapter):
        return call(dspy.Predict(fields), "judge", temperature=0.0, max_tokens=1000, task="t")


@pytest.mark.parametrize("adapter", [None, dspy.ChatAdapter(), dspy.JSONAdapter(), dspy.XMLAdapter()])
@pytest.mark.parametrize("name", HOSTILE)
def test_an_answer_that_cannot_be_read_is_unparseable_at_once(name: str, adapter: Any) -> None:
    started = time.process_time()
    with pytest.raises(UnparseableOutput):
        asked(HOSTILE[name], adapter, f"task: str -> {FIELDS}")
    assert time.process_time() - started < 2


@pytest.mark.parametrize(
    ("adapter", "answer"),
    [
        (None, "[[ ## label ## ]]\n{}\n\n[[ ## completed ## ]]"),
        (dspy.ChatAdapter(), "[[ ## label ## ]]\n{}\n\n[[ ## completed ## ]]"),
        (None, '{{"label": "{}"}}'),  # dspy's fallback
        (dspy.JSONAdapter(), '{{"label": "{}"}}'),
        (dspy.XMLAdapter(), "<label>{}</label>"),
    ],
)
@pytest.mark.parametrize(
    "form", ["<think>{}</think>\n{}", "{}\n</think>\n{}", "◁think▷{}◁/think▷{}", "[THINK]{}[/THINK]{}"]
)
def test_a_draft_in_a_thought_is_not_the_answer(adapter: Any, answer: str, form: str) -> None:
    said = form.format(answer.format("draft"), answer.format("final"))
    assert asked(said, adapter).label == "final"


@pytest.mark.parametrize(
    "form", ["{}GUESS</x>\n{}FINAL", "<think>{}GUESS</think>{}FINAL", "Try:\n```\n{}GUESS\n</think>\n{}FINAL"]
)
def test_the_last_of_repeated_fields_counts(form: str) -> None:
    fields = "[[ ## thought ## ]]\nok\n[[ ## action ## ]]\n"
    said = form.replace("{}", f"\n{fields}")
    assert asked(said, dspy.ChatAdapter(), "task: str -> thought: str, action: str").action == "FINAL"


@pytest.mark.parametrize("thought", ["", "<think>Hm.</think>"])
@pytest.mark.parametrize(
    "value",
    [
        "Dear Ana,\nHere is my response: yes.",
        "Add the missing </think>\nbefore the answer.",
        "re.sub(\n  r'<think>.*?\n</think>', '', s)",
        "<article>\n<thoughts>\nMy essay\n</thoughts>\n</article>",
    ],
)
def test_a_field_is_read_whole_but_for_a_thought_at_its_start(thought: str, value: str) -> None:
    said = f"[[ ## thought ## ]]\nok\n[[ ## action ## ]]\n{thought}{value}"
    assert asked(said, dspy.ChatAdapter(), "task: str -> thought: str, action: str").action == value


def test_a_field_named_as_a_thought_is_one_in_xml_only() -> None:
    said = "<thought>Easy.</thought>\n<action>42</action>"
    assert asked(said, dspy.XMLAdapter(), "task: str -> thought: str, action: str").thought == "Easy."


def test_a_long_answer_is_read_and_one_beyond_the_token_limit_is_not() -> None:
    assert len(asked(json.dumps({"label": "x" * 15_000}), dspy.JSONAdapter()).label) == 15_000
    with pytest.raises(UnparseableOutput, match="17,013 characters"):
        asked(json.dumps({"label": "x" * 17_000}), dspy.JSONAdapter())


def test_an_answer_of_brackets_ends_neither_a_stream_nor_its_continuation() -> None:
    def script(prompt: Prompt) -> Reply:
        if "memory_items" in prompt.wants:
            return "[" * 900 if "task 2" in prompt.text else {"memory_items": [{"title": "A", "content": "A fact."}]}
        if "label" in prompt.wants:
            return {"reasons": "r", "label": "success"}
        return {"analysis": "a", "choice": 1} if "choice" in prompt.wants else {"thought": "t", "action": "42"}

    program = ReasoningBank(backbones=Backbones(agent=scripted_lm(script)))
    bank = MemoryBank.open(":memory:", scope="s", embedder=HashEmbedder())
    tasks = [Task(id=f"task {n}", instruction=f"Do task {n}.") for n in (1, 2, 3)]
    for tries in (1, 2):
        run_stream(program, tasks, bank, run_id="r")
        assert [each.tries for each in bank.pending()] == [tries]
    run_stream(program, tasks, bank, run_id="r")
    assert (bank.learned("r"), bank.pending()) == ({"task 1", "task 2", "task 3"}, [])
    with pytest.raises(UnparseableOutput):
        MaTTS(program, k=2)(task=tasks[1], bank=bank)


def test_an_lm_has_an_adapter_of_its_own_until_one_is_configured() -> None:
    lm = scripted_lm(lambda prompt: '{"label": "success"}')
    lm.adapter = dspy.JSONAdapter()
    for adapter, calls in ((None, 1), (dspy.ChatAdapter(), 2)):  # the second one is its fallback
        lm.engine.prompts.clear()
        with dspy.context(lm=lm, adapter=adapter):
            said = call(dspy.Predict("task: str -> label: str"), "judge", temperature=0.0, max_tokens=10, task="t")
        assert (said.label, len(lm.engine.prompts)) == ("success", calls)


def test_a_key_in_an_unreadable_answer_is_not_stored() -> None:
    key = "sk-LEAKED0123456789abcdefLEAKED"

    class Odd(dspy.Module):
        def forward(self, **inputs: Any) -> dspy.Prediction:
            return dspy.Prediction(memory_items=f"the key is {key}")

    def script(prompt: Prompt) -> Reply:
        return {"reasons": "r", "label": "success"} if "label" in prompt.wants else {"thought": "t", "action": "42"}

    program = ReasoningBank(backbones=Backbones(agent=scripted_lm(script)))
    program.distill.success = Odd()
    bank = MemoryBank.open(":memory:", scope="s", embedder=HashEmbedder())
    with pytest.raises(UnparseableOutput, match="memory_items"):
        program(task="t", bank=bank)
    while bank.pending():
        assert all(key not in each.error for each in bank.pending())
        with contextlib.suppress(UnparseableOutput):
            program.resume(bank.pending()[0])
    (stored,) = bank.experiences()
    assert [each.label for each in stored.verdicts] == ["unknown"]
    assert key not in stored.model_dump_json()


class Point(pydantic.BaseModel):
    """Two numbers and a name."""

    x: int
    y: list[int] = []
    name: Literal["left", "right"] = "left"


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        (list[str], "Look twice.", ["Look twice."]),
        (list[str], "- Look.\n2. Then type.", ["Look.", "Then type."]),
        (list[str], '["a", 2]', ["a", "2"]),
        (list[str], '{"step": "Look.", "then": "Type."}', ["Look.: Type."]),
        (list[str], "none", []),
        (list[int], "3", [3]),
        (list[int], "2 and 3", [2, 3]),
        (list[int], '["item 2", "all"]', [2]),
        (list[int], "none", []),
        (float, "Score: 0.8.", 0.8),
        (bool, "Yes, it does.", True),
        (Literal["add", "noop"], "Add.", "add"),
        (list[Point], '{"x": 1}', [Point(x=1)]),
        (list[Point], '{"X": "number 1", "y": 2, "name": "Right"}', [Point(x=1, y=[2], name="right")]),
        (list[Point], '[{"x": 1, "y": null}, {"z": 1}]', [Point(x=1)]),
    ],
)
@pytest.mark.parametrize("adapter", [dspy.ChatAdapter(), dspy.JSONAdapter()])
def test_what_is_clear_is_read_in_another_form(kind: Any, text: str, expected: object, adapter: Any) -> None:
    try:
        value = json.loads(text)
    except ValueError:
        value = text
    is_json = isinstance(adapter, dspy.JSONAdapter)
    answer = json.dumps({"label": value}) if is_json else f"[[ ## label ## ]]\n{text}\n\n[[ ## completed ## ]]"
    signature = dspy.Signature("task: str -> label: str", "Do it.").with_updated_fields("label", type_=kind)
    assert asked(answer, adapter, signature).label == expected


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (float, "high"),
        (float, "8 of 10"),
        (bool, "maybe"),
        (list[int], "all"),
        (list[Point], "a point"),
        (int, "1 or 2"),
    ],
)
def test_what_is_not_clear_is_unparseable(kind: Any, text: str | None) -> None:
    signature = dspy.Signature("task: str -> label: str", "Do it.").with_updated_fields("label", type_=kind)
    with pytest.raises(UnparseableOutput):
        asked(json.dumps({"label": text}), dspy.JSONAdapter(), signature)
