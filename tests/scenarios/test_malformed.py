"""Answers that cannot be read: none becomes a wrong verdict, none loses a rollout."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest

from rb_dspy import MaTTS, MemoryBank, RBError
from rb_dspy.testing import Answer, lock
from rb_dspy.testing.locks import GUESS
from tests.scenarios.helpers import Spy, easy, learned_tasks, lessons, program, resume_all

TRUTH = "failure"
"""The keypad stays shut in every rollout here, so a verdict of success would be a wrong one."""


def label(text: str) -> str:
    return f"[[ ## reasons ## ]]\nIt says so.\n\n[[ ## label ## ]]\n{text}\n\n[[ ## completed ## ]]"


VERDICTS: dict[str, Any] = {
    "prose": "I am fairly sure that the door did open, so success.",
    "no label": "[[ ## reasons ## ]]\nIt opened.",
    "negated": label("not a success"),
    "both": label("success or failure"),
    "one after the other": label("success\nfailure"),
    "a word that holds it": label("unsuccessful"),
    "a box not ticked": label("[ ] success"),
    "JSON without label": '{"reasons": "It opened."}',
    "JSON with null": '{"reasons": "It opened.", "label": null}',
    "JSON with a list": '{"reasons": "It opened.", "label": ["success", "failure"]}',
    "broken JSON": '{"reasons": "It opened.", "label": "succ',
    "only thinking": "<think>The label should be success.</think>",
    "thinking without end": "<think>The label should be success",
    "nothing": "",
    "thought apart": Answer(thought="success", finish="length"),
    "cut off": Answer("[[ ## reasons ## ]]\nIt was a succ", finish="length"),
    "refused": Answer("", finish="content_filter"),
    "a tool call": Answer("", finish="tool_call", tool_calls=[("label", {"label": "success"})]),
    "noise": "\ufffd\x00\x1b[31m ][ {{ ]] ##",
    "very long": "success " * 8_000,
}
LESSONS: dict[str, Any] = {
    "prose": "The lesson is to be good.",
    "a text as items": "[[ ## analysis ## ]]\nSo.\n\n[[ ## memory_items ## ]]\nBe good.\n\n[[ ## completed ## ]]",
    "items of another kind": '{"analysis": "So.", "memory_items": [1, 2]}',
    "null": '{"analysis": "So.", "memory_items": null}',
    "broken JSON": '[[ ## analysis ## ]]\nSo.\n\n[[ ## memory_items ## ]]\n[{"title": "Be',
    "nothing": "",
    "thought apart": Answer(thought="Be good.", finish="length"),
    "cut off": Answer('{"analysis": "So.", "memory_items": [{"title": "Be good", "conten', finish="length"),
    "noise": "\ufffd\x00\x1b[31m ][ {{ ]] ##",
    "very long": "be good " * 8_000,
}


def tried(run: Any, bank: MemoryBank) -> None:
    """Do the task; a program may raise, or leave the rollout to be resumed."""
    with suppress(RBError):
        run(task=lock(code="9999"), bank=bank, run_id="r")


def check_kept(bank: MemoryBank) -> list[str]:
    """The rollout is in the bank or waits, not both; the labels of what is in the bank."""
    waiting = [pending.task.id for pending in bank.pending()]
    assert len({*waiting, *learned_tasks(bank)}) == len(waiting) + len(learned_tasks(bank)) == 1
    for experience in bank.experiences():
        (rollout,) = experience.trajectories
        assert [step.action for step in rollout.steps] == [GUESS]
    return [verdict.label for experience in bank.experiences() for verdict in experience.verdicts]


@pytest.mark.parametrize("said", VERDICTS.values(), ids=VERDICTS)
def test_a_verdict_that_cannot_be_read_is_no_verdict(bank: MemoryBank, said: Any) -> None:
    tried(program(Spy({"judge": lambda prompt: said})), bank)
    assert check_kept(bank) in ([], ["unknown"])
    assert lessons(bank) == set()
    resume_all(program(), bank)
    assert check_kept(bank) in (["unknown"], [TRUTH])
    assert bank.pending() == []


@pytest.mark.parametrize("said", LESSONS.values(), ids=LESSONS)
def test_lessons_that_cannot_be_read_cost_no_rollout(bank: MemoryBank, said: Any) -> None:
    tried(program(Spy({"distiller": lambda prompt: said})), bank)
    assert check_kept(bank) in ([], [TRUTH], ["unknown"])
    assert lessons(bank) == set()
    resume_all(program(), bank)
    assert check_kept(bank) in ([TRUTH], ["unknown"])
    assert bank.pending() == []


def test_an_agent_that_cannot_be_read_ends_its_rollout_and_no_success_comes_of_it(bank: MemoryBank) -> None:
    tried(program(Spy({"agent": lambda prompt: "[[ ## thought ## ]]\nHm."})), bank)
    assert "success" not in [verdict.label for each in bank.experiences() for verdict in each.verdicts]


@pytest.mark.parametrize("said", ["two", "0", "99", "mess"])
def test_a_choice_that_cannot_be_read_hands_in_one_of_the_rollouts(bank: MemoryBank, said: str) -> None:
    text = (
        f"[[ ## analysis ## ]]\nSo.\n\n[[ ## choice ## ]]\n{said}\n\n[[ ## completed ## ]]" if said != "mess" else said
    )
    done = MaTTS(program(Spy({"selector": lambda prompt: text})), k=2)(task=easy(), bank=bank)
    assert done.answer == GUESS
    assert done.trajectory in done.trajectories
    assert done.selection.note
    assert len(done.experience.trajectories) == 2


def test_some_incomplete_lessons_do_not_lose_the_others(bank: MemoryBank) -> None:
    drafts = [
        {"title": "Look first", "description": "Always.", "content": "Look at the keypad."},
        {"title": "", "content": ""},
    ]
    done = program(Spy({"distiller": lambda prompt: {"analysis": "So.", "memory_items": drafts}}))(
        task=easy(), bank=bank
    )
    assert [item.title for item in done.memory_items] == ["Look first"]
