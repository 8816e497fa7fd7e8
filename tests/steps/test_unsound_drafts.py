"""A draft that cannot be read costs no other: sound ones are kept, and the note says what was dropped."""

from __future__ import annotations

import json
from typing import Any

import dspy
import pytest

from rb_dspy import MemoryBank, ReasoningBank
from rb_dspy.backbones import Backbones
from rb_dspy.schema import Step, Task, Trajectory, Verdict
from rb_dspy.steps import Contrast, Distill, Distilled
from rb_dspy.testing import HashEmbedder, Lock, Prompt, Reply, scripted_lm
from tests.worlds import answers, item, lock

TASK = Task(id="t", instruction="Find the gold.")
ROLLOUT = Trajectory(task_id="t", rollout_id="7", steps=(Step(action="dig", observation="Sand."),))
GOOD = {**item("Look first", "Look behind the mirror first."), "evidence": [1]}
OTHER = {**item("Ask around", "Ask whoever lives there."), "evidence": [1]}
UNSOUND = [
    None,
    "be good",
    7,
    [],
    [OTHER],
    {},
    {"lesson": "be good"},
    {**OTHER, "content": None},
    {**OTHER, "content": ["Ask", "around"]},
    {**OTHER, "title": {"text": "Ask around"}},
    {"title": 1, "description": 2, "content": 3},
]


def drafted(step: str, items: Any) -> tuple[Distilled, list[Prompt]]:
    """What comes of an answer with these items, and what was asked. ``items`` may be an LM, too."""
    lm = items if isinstance(items, dspy.BaseLM) else scripted_lm(lambda _: {"analysis": "Hm.", "memory_items": items})
    with Backbones(agent=lm).use():
        if step == "contrast":
            return Contrast()(TASK, [ROLLOUT, ROLLOUT]), lm.engine.prompts
        return Distill()(TASK, ROLLOUT, Verdict(label="success" if step == "success" else "failure")), lm.engine.prompts


@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize("unsound", UNSOUND, ids=json.dumps)
@pytest.mark.parametrize("step", ["success", "failure", "contrast"])
def test_sound_drafts_are_kept_and_the_note_says_that_one_was_dropped(step: str, unsound: Any, place: int) -> None:
    third = {**item("Bring a lamp", "Bring a lamp with oil."), "evidence": [2]}
    items = [GOOD, third]
    items.insert(place, unsound)
    found, prompts = drafted(step, items)
    assert [draft.title for draft in found.drafts] == ["Look first", "Bring a lamp"]
    assert found.note.endswith("dropped: one without title or content")
    assert len(prompts) == 1


@pytest.mark.parametrize("step", ["success", "failure", "contrast"])
def test_a_field_of_a_wrong_type_is_as_one_that_is_missing(step: str) -> None:
    without = {name: value for name, value in OTHER.items() if name != "description"}
    found, prompts = drafted(step, [GOOD, {**OTHER, "description": None}])
    assert found == drafted(step, [GOOD, without])[0]
    assert [draft.description for draft in found.drafts] == [GOOD["description"], ""]
    assert len(prompts) == 1


@pytest.mark.parametrize("items", [[None], ["be good", 7], [{**OTHER, "content": None}], [[GOOD]], "none", None])
@pytest.mark.parametrize("step", ["success", "failure", "contrast"])
def test_where_no_draft_is_sound_the_answer_is_asked_for_once_more(step: str, items: Any) -> None:
    found, prompts = drafted(step, items)
    assert found.drafts == ()
    assert found.note.startswith("not contrasted: " if step == "contrast" else "not distilled: ")
    assert "could not be read, nor its repair" in found.note
    assert len(prompts) == 2


@pytest.mark.parametrize("step", ["success", "failure", "contrast"])
def test_a_single_draft_needs_no_list_and_its_keys_no_case(step: str) -> None:
    for items in (GOOD, {name.upper(): value for name, value in GOOD.items()}):
        found, prompts = drafted(step, items)
        assert [(draft.title, draft.content) for draft in found.drafts] == [(GOOD["title"], GOOD["content"])]
        assert len(prompts) == 1


def test_the_note_stands_on_the_experience() -> None:
    def script(prompt: Prompt) -> Reply:
        said = answers(prompt)
        if "memory_items" in prompt.wants and not isinstance(said, str):
            return {**said, "memory_items": [GOOD, None]}
        return said

    program = ReasoningBank(backbones=Backbones(agent=scripted_lm(script)), environments=Lock.make)
    with MemoryBank.open(None, scope="test", embedder=HashEmbedder()) as bank:
        experience = program(task=lock("acme", 0), bank=bank).experience
        assert [one.title for one in experience.items] == ["Look first"]
        assert experience.note == "dropped: one without title or content"


@pytest.mark.parametrize("step", ["success", "failure", "contrast"])
def test_the_repair_is_read_as_leniently(step: str) -> None:
    """It is asked for in another format: in JSON."""

    def script(prompt: Prompt) -> Reply:
        chat = "[[ ## memory_items ## ]]" in prompt.system
        return {"analysis": "Hm.", "memory_items": [None] if chat else [None, GOOD]}

    lm = scripted_lm(script)
    found, prompts = drafted(step, lm)
    assert [draft.title for draft in found.drafts] == ["Look first"]
    assert found.note.endswith("dropped: one without title or content")
    assert len(prompts) == 2
