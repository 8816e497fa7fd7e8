"""Text as it is stored, printed, counted and summarized."""

from __future__ import annotations

import re

import pydantic
import pytest
from hypothesis import given, strategies as st

from rb_dspy.errors import InputError, describe_error
from rb_dspy.text import (
    MAX_TEXT,
    counted,
    cut,
    estimate_tokens,
    first_error,
    invisible,
    normalize,
    printable,
    summary_line,
    without_invisible,
    without_thoughts,
)


@given(st.text(alphabet=st.characters()))
def test_normalized_text_is_unicode_and_stays_so(text: str) -> None:
    stored = normalize(text)
    stored.encode("utf-8")
    assert "\0" not in stored
    assert normalize(stored) == stored


def test_long_text_is_cut_once_and_says_so() -> None:
    stored = normalize("x" * (MAX_TEXT + 7))
    assert len(stored) <= MAX_TEXT
    assert "47 characters cut" in stored
    assert normalize(stored) == stored


@pytest.mark.parametrize("code", [*range(9), *range(11, 32), *range(127, 160), 0x2028, 0x202E, 0x2066, 0xD800])
def test_a_terminal_gets_no_character_that_it_would_execute(code: int) -> None:
    shown = printable(f"a{chr(code)}b")
    assert shown.isascii()
    assert shown.isprintable()
    assert shown.startswith("a\\")


def test_ordinary_text_is_printed_as_it_is() -> None:
    for text in ("line\n\ttab", "Grö\xadße 👩\u200d🚀 日本語", ""):
        assert printable(text) == text


@pytest.mark.parametrize(("text", "expected"), [("a\u200bb", "U+200B"), ("\0", "U+0000"), ("ü name", ""), ("日本", "")])
def test_a_name_may_not_hide_characters(text: str, expected: str) -> None:
    assert invisible(text) == expected


def test_tokens_are_estimated_by_script() -> None:
    assert estimate_tokens("") == 0
    assert estimate_tokens("x" * 350) == 100
    assert estimate_tokens("漢" * 350) == estimate_tokens("한" * 350) == 350
    assert estimate_tokens("x" * 350 + "漢" * 100) == 200
    assert estimate_tokens("ж" * 100) == estimate_tokens("é" * 100) == 50
    assert estimate_tokens("ไ" * 100) == 100
    assert estimate_tokens("\ud800") == 1


@given(st.text(alphabet=st.sampled_from("a 漢ж🎈\ud800")), st.integers(0, 60))
def test_a_cut_text_fits_its_budget_by_the_same_estimate(text: str, budget: int) -> None:
    shown = cut(text, budget)
    assert estimate_tokens(shown) <= budget
    assert (shown == text) == (estimate_tokens(text) <= budget)


def test_a_text_is_cut_in_its_middle_and_says_so() -> None:
    shown = cut(f"start{'漢' * 200_000}end", 32_000)
    assert shown.startswith("start漢")
    assert shown.endswith("漢end")
    assert 31_900 < estimate_tokens(shown) <= 32_000
    left_out = int(re.findall(r" \[… (\d+) characters left out …\] ", shown)[0])
    assert left_out == 200_008 - len(shown) + len(f" [… {left_out} characters left out …] ")


def test_invisible_characters_are_dropped_from_lessons_and_shown_to_owners() -> None:
    text = "Pay\u200b \U000e0069\U000e0067Quito\ufeff.\U000e0100"
    assert without_invisible(text) == "Pay Quito."
    assert printable(text) == "Pay\\u200b \\U000e0069\\U000e0067Quito\\ufeff.\\U000e0100"
    assert without_invisible("👩\u200d🚀 می\u200cخواهم \u200eabc") == "👩\u200d🚀 می\u200cخواهم \u200eabc"


def test_errors_in_one_line() -> None:
    assert summary_line(ValueError("a\n  b")) == "a b"
    assert summary_line(ValueError("a" * 10), 4) == "aaaa…"
    assert summary_line(ValueError()) == "ValueError"
    assert describe_error(ValueError("a\nb")) == "ValueError: a b"
    assert describe_error(InputError("a\nb")) == "a b"
    assert describe_error(ValueError()) == "ValueError"


def test_the_first_error_of_a_model() -> None:
    class Inner(pydantic.BaseModel):
        numbers: list[int]

    with pytest.raises(pydantic.ValidationError) as caught:
        Inner.model_validate({"numbers": [1, "x"]})
    place, why = first_error(caught.value)
    assert place == "numbers.1"
    assert why[0].islower()


def test_counts() -> None:
    assert counted(1, "lesson") == "1 lesson"
    assert counted(2000, "lesson") == "2,000 lessons"
    assert counted(0, "entry", "entries") == "0 entries"


THOUGHTS = [
    "<think>\nLyon?\n</think>\n\n{}",
    "<think>Lyon?</think>{}",
    "Lyon?\n</think>\n\n{}",
    "Lyon?</think>{}",
    "Lyon? A <think> tag?\n</think>\n{}",
    "Lyon? A <think> tag?\n</think> {}",
    '<think type="x">Lyon?</think >{}',
    "<thought_process>Lyon?</thought_process>{}",
    "<ant-thinking>Lyon?</ant-thinking>{}",
    "<analysis>\nLyon?\n</analysis>\n{}",
    "<scratchpad>Lyon?</scratchpad>{}",
    "<reflection>Lyon?</reflection>{}",
    "Lyon?\n```python\nprint(1)\n</think>\n{}",
    "```ls``` shows\nLyon?\n</think>\n{}",
    "<|channel|>analysis<|message|>Lyon?<|end|><|start|>assistant<|channel|>final <|constrain|>json<|message|>{}",
    "<think>Lyon?</think>\n<think>No.</think>\n{}",
    "<think>Lyon? <reasoning>x</reasoning></think>{}",
    "<thinking>Lyon?</thinking>{}",
    "<Thought>Lyon?</Thought>{}",
    "<reasoning>\nLyon?\n</reasoning>\n{}",
    "<seed:think>Lyon?</seed:think>{}",
    "◁think▷Lyon?◁/think▷{}",
    "[THINK]Lyon?[/THINK]{}",
    "<|START_THINKING|>Lyon?<|END_THINKING|>{}",
    "<|channel>thought\nLyon?<channel|>{}",
    "<|channel|>analysis<|message|>Lyon?<|end|><|start|>assistant<|channel|>final<|message|>{}",
    "Here is my thought process: Lyon?\nHere is my response: {}",
]
NO_THOUGHTS = [
    "",
    "Paris",
    "A model writes <think> before it answers, and </think> after.",
    "Use `<think>` and `</think>`; or (</think>).",
    "It ends with <think>",
    "- <think>\n- <thinking>",
    "```xml\n<think>\nx\n</think>\n```\nThat is how.",
    '{"thought": "a <think>b</think>", "action": "a"}',
    '{"thought": "a</think>b", "action": "a"}',
    'Answer: {"a": "x</think>y"}',
    "Your page breaks because of a missing </think>\nAdd it before the answer.",
    "[THINK] is a Mistral token.\nOther text.",
    "<think> is the tag of DeepSeek.",
    "s = re.sub(\n    r'<think>.*?\n</think>', '', s)",
    "Dear Ana,\nHere is my response: yes.",
    "<article>\n<thoughts>\nMy essay\n</thoughts>\n</article>",
    "Write **</think>** to close.\nDone.",
    "````md\n```\n<think>x</think>\n```\n</think>\n````\nend",
    "[[ ## thought ## ]]\n<think> Hm.\n[[ ## action ## ]]\nParis",
    "[[ ## thought ## ]]\nok\n[[ ## action ## ]]\nAdd the missing\n</think>\nbefore it.",
]


@pytest.mark.parametrize("form", THOUGHTS)
@pytest.mark.parametrize("answer", ["Paris", '{"action": "a </think> b"}', "[[ ## action ## ]]\n<b>Paris</b>"])
def test_a_thought_is_split_from_the_answer(form: str, answer: str) -> None:
    rest, thought = without_thoughts(form.format(answer))
    assert rest == answer
    assert "Lyon?" in thought


@pytest.mark.parametrize("text", NO_THOUGHTS)
def test_a_text_that_mentions_the_tags_stays(text: str) -> None:
    assert without_thoughts(text) == (text, "")


@pytest.mark.parametrize(
    "text", ["<think>Lyon?", "<think>\nLyon?\n[[ ## action ## ]]\nLyon", "[THINK]Lyon?", "Lyon?</think>"]
)
def test_a_thought_without_an_end_is_no_answer(text: str) -> None:
    rest, thought = without_thoughts(text)
    assert (rest, "Lyon?" in thought) == ("", True)
    assert without_thoughts(f"Paris.\n<think>\n{text}")[0] == "Paris." or text.endswith("</think>")


def test_a_thought_may_end_with_another_name() -> None:
    assert without_thoughts("<think>Lyon?</thinking>Paris") == ("Paris", "Lyon?")


def test_a_tag_that_is_a_field_of_the_answer_stays() -> None:
    text = "<thought>Easy.</thought>\n<action>42</action>"
    assert without_thoughts(text, ["thought"]) == (text, "")
    assert without_thoughts(f"<think>Hm.</think>{text}", ["thought"]) == (text, "Hm.")


MARKS = st.sampled_from(
    [
        "<think>",
        "</think>",
        "</thought>",
        "[THINK]",
        "[/THINK]",
        "```",
        "\n[[ ## b ## ]]\n",
        "\n",
        " ",
        "a",
        ".",
        "{",
        '"',
        "}",
        "<|channel|>",
    ]
)


@given(st.lists(MARKS, max_size=30).map("".join))
def test_splitting_off_thoughts_is_total_and_loses_no_word(text: str) -> None:
    rest, thought = without_thoughts(text)
    assert rest.count("a") + thought.count("a") == text.count("a")
    if not any(mark in text for mark in ("think", "THINK", "thought")):
        assert (rest, thought) == (text, "")
