"""What clearly means one label, or one number, is understood at once; whatever may mean another is never guessed."""

from __future__ import annotations

import json
from typing import Any, Literal

import dspy
import pytest
from dspy.utils.exceptions import AdapterParseError

from rb_dspy import signatures
from rb_dspy.backbones import Backbones
from rb_dspy.backbones.chat import ChatAdapter
from rb_dspy.backbones.repair import RepairAdapter
from rb_dspy.config import SelectConfig
from rb_dspy.schema import Step, Task, Trajectory
from rb_dspy.steps import Judge, Select
from rb_dspy.testing import Prompt, Reply, scripted_lm

CHAT, JSON = ChatAdapter(), RepairAdapter()
TASK = Task(id="t", instruction="Open it.")
BOTH = pytest.mark.parametrize("adapter", [CHAT, JSON], ids=["chat", "json"])


def rollout(number: int = 0) -> Trajectory:
    return Trajectory(task_id="t", rollout_id=str(number), steps=(Step(action="push", observation=f"Door {number}."),))


def read(adapter: dspy.ChatAdapter, signature: Any, **fields: str) -> dict[str, Any]:
    if adapter is JSON:
        return dict(adapter.parse(signature, json.dumps(fields)))
    return dict(adapter.parse(signature, "\n\n".join(f"[[ ## {name} ## ]]\n{text}" for name, text in fields.items())))


LABELS = {
    "Success": "success",
    "SUCCESS": "success",
    "success.": "success",
    "**success**": "success",
    "`Failure`": "failure",
    '"Success."': "success",
    "“success”": "success",
    "- success": "success",
    "Label: success": "success",
    "**Label:** failure": "failure",
    "the final label is success": "success",
    "label = `success`": "success",
    "Label:\nsuccess": "success",
    "['success']": "success",
    "success\n\nThe task is done.": "success",
    "Success. The door opened.": "success",
    "failure\n```": "failure",
    "```\nfailure\n```": "failure",
    "failure\n\nThe failure came in step 2.": "failure",
}
UNCLEAR = [
    "not a success",
    "not success",
    "no success",
    "success or failure",
    "success/failure",
    "success, failure",
    "success\nfailure",
    "failure\n\nsuccess",
    "success?",
    "Success?\n\nHardly.",
    "success\n\nNo, wait: the door is shut.",
    "success\n\nBut it stays shut.",
    "success\n\nThe door isn't open.",
    "success\n\nThe door isn’t open.",
    "success\n\nThat was unsuccessful.",
    "success\n\nIt failed.",
    "success. Partially.",
    "success (partial)",
    "partial success",
    "unsuccess",
    "!success",
    "~~success~~",
    "-success",
    "[ ] success",
    "[ ] success\n[x] failure",
    "successful",
    "succes",
    "label",
    "Label:",
    "the label is not success",
    "The label is",
    "maybe",
    "",
    "```",
]


@BOTH
@pytest.mark.parametrize(("said", "label"), LABELS.items())
def test_a_clear_label_is_read(adapter: dspy.ChatAdapter, said: str, label: str) -> None:
    assert read(adapter, signatures.Judge, reasons="It is so.", label=said)["label"] == label


@BOTH
@pytest.mark.parametrize("said", UNCLEAR)
def test_an_unclear_label_is_not_guessed(adapter: dspy.ChatAdapter, said: str) -> None:
    with pytest.raises(AdapterParseError):
        read(adapter, signatures.Judge, reasons="It is so.", label=said)


class Pick(dspy.Signature):
    """Choices that differ by case, are numbers, or are several words."""

    text: str = dspy.InputField()
    pick: Literal["a", "A", "Not sure", 3] = dspy.OutputField()


@BOTH
@pytest.mark.parametrize(("said", "pick"), [("A", "A"), ("a", "a"), ("3", 3), ("**3**", 3), ("not sure.", "Not sure")])
def test_choices_of_other_kinds(adapter: dspy.ChatAdapter, said: str, pick: str | int) -> None:
    assert read(adapter, Pick, pick=said) == {"pick": pick}


@BOTH
@pytest.mark.parametrize("said", ["A.", "`a`", "3\nnot sure", "not", "3.5"])
def test_choices_that_may_be_another(adapter: dspy.ChatAdapter, said: str) -> None:
    with pytest.raises(AdapterParseError):
        read(adapter, Pick, pick=said)


class Optional(dspy.Signature):
    """Fields that may be missing."""

    text: str = dspy.InputField()
    words: str = dspy.OutputField()
    pick: Literal["a", "b"] = dspy.OutputField(default="b")
    number: int = dspy.OutputField(default=None)


@BOTH
def test_a_field_that_is_missing_has_its_default(adapter: dspy.ChatAdapter) -> None:
    assert read(adapter, Optional, words="So.") == {"words": "So.", "pick": "b", "number": None}


NUMBERS = [
    *(
        "2",
        "2.",
        "**2**",
        "Attempt 2",
        "#2",
        "attempt #2.",
        "2 (the second)",
        "[2]",
        '"2"',
        "`2`",
        "Choice: 2",
        "choice 2",
    ),
    *(
        "Attempt 2 is the best.",
        "**Attempt 2** (the second)",
        "2\n\nIt has the door open.",
        "2: the door is open",
        "(2)",
    ),
]
NO_NUMBERS = [
    *("two", "", "none", "attempt", "not 2", "Not attempt 2", "2 or 3", "1, 2", "[1, 2]", "2/3", "2 of 3", "1.5", "2%"),
    *(
        "attempt 2 is best, since attempt 1 loops",
        "Attempt 2 is not good",
        "Attempt two beats 1",
        "anything but 2",
        "2?",
    ),
    *(
        "2 (or the first)",
        "2 (not 1)",
        "2 (the first)",
        "minus 2",
        "the one after 2",
        "rather than 2",
        "2nd",
        "$2",
        "<2",
    ),
    *(
        "2 fails",
        "Attempt 2 fails",
        "2 (fails)",
        "2 - 1",
        "5!",
        "1,000 a",
        "2x",
        "attempt-2",
        "2\n\nNo, the first.",
        "9" * 30 + " (x)",
    ),
]


@BOTH
@pytest.mark.parametrize("said", NUMBERS)
def test_a_clear_number_is_read(adapter: dspy.ChatAdapter, said: str) -> None:
    found = read(adapter, signatures.Select, analysis="So.", choice=said)["choice"]
    assert (type(found), found) == (int, 2)


@BOTH
@pytest.mark.parametrize("said", NO_NUMBERS)
def test_an_unclear_number_is_not_guessed(adapter: dspy.ChatAdapter, said: str) -> None:
    with pytest.raises(AdapterParseError):
        read(adapter, signatures.Select, analysis="So.", choice=said)


@pytest.mark.parametrize(
    "header",
    [
        *(
            "**[[ ## {} ## ]]**",
            "[[## {} ##]]",
            "[[##{}##]]",
            "`[[ ## {} ## ]]`",
            "### [[ ## {} ## ]]",
            "[[ ##  {} ## ]]:",
        ),
        "> [[ ## {} ## ]]",
    ],
)
def test_a_header_may_be_written_otherwise(header: str) -> None:
    for names in (("reasons", "label"), ("Reasons", "LABEL")):
        reasons, label = map(header.format, names)
        told = f"{reasons}\nIt is\nso.\n\n{label}\nsuccess\n\n{header.format('completed')}"
        assert CHAT.parse(signatures.Judge, told) == {"reasons": "It is\nso.", "label": "success"}
        told = f"[[ ## reasons ## ]]\nIt is so.\n\n{label} success"
        assert CHAT.parse(signatures.Judge, told) == {"reasons": "It is so.", "label": "success"}


@pytest.mark.parametrize(
    "told",
    [
        "[[ ## reasons ## ]]\nOne writes\n**[[ ## label ## ]]**\nsuccess\nor\n**[[ ## label ## ]]**\nfailure",
        "[[ ## reasons ## ]]\nSo.\n## label\nsuccess",
        "[[ ## reasons ## ]]\nSo.\n[[ label ]]\nsuccess",
        "**[[ ## reason ## ]]**\nSo.\n**[[ ## label ## ]]**\nsuccess",
    ],
)
def test_a_header_that_may_be_none_is_none(told: str) -> None:
    with pytest.raises(AdapterParseError):
        CHAT.parse(signatures.Judge, told)


def test_a_text_may_hold_what_looks_like_a_header() -> None:
    thought = "In Markdown:\n**[[ ## action ## ]]**\n0000"
    told = f"[[ ## thought ## ]]\n{thought}\n\n[[ ## action ## ]]\n4711\n\n[[ ## completed ## ]]"
    assert CHAT.parse(signatures.Act, told) == {"thought": thought, "action": "4711"}


@pytest.mark.parametrize(("said", "label", "calls"), [("**Success**", "success", 1), ("not a success", "unknown", 2)])
def test_a_judge_is_asked_again_only_where_it_was_unclear(said: str, label: str, calls: int) -> None:
    lm = scripted_lm(lambda _: {"reasons": "It is so.", "label": said})
    with Backbones(agent=lm).use():
        assert Judge()(TASK, rollout()).label == label
    assert len(lm.engine.prompts) == calls


def test_a_selector_may_name_an_attempt() -> None:
    def script(prompt: Prompt) -> Reply:
        first = prompt["candidates"].index("Door 1") < prompt["candidates"].index("Door 0")
        return {"analysis": "So.", "choice": f"**Attempt {1 if first else 2}**"}

    lm = scripted_lm(script)
    with Backbones(agent=lm).use():
        assert Select(SelectConfig(orders=2))(TASK, [rollout(0), rollout(1)]).votes == (0, 2)
    assert len(lm.engine.prompts) == 2
