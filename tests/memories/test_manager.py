from __future__ import annotations

import re
from typing import Any

import dspy
import pytest

from rb_dspy.backbones import Backbones
from rb_dspy.memories import Base, Curated, system_of
from rb_dspy.memories.operations import Operation, applied
from rb_dspy.schema import MemoryDraft, MemoryItem, Step, Task, Trajectory, Verdict
from rb_dspy.steps import Retrieve
from rb_dspy.testing import Prompt, lock, locksmith, scripted_lm
from tests.memories.worlds import new_bank, program


def managing(*operations: dict[str, Any]) -> Any:
    """Plays the locks; as the manager, it always says the same."""
    return lambda prompt: {"operations": operations} if "operations" in prompt.wants else locksmith(prompt)


def flipped(prompt: Prompt) -> Any:
    """As the manager, it replaces a stored note only if it misled the agent of this task."""
    if "operations" not in prompt.wants:
        return locksmith(prompt)
    misled = prompt["verdict"] == "failure" and "shown in this task" in prompt["stored_notes"]
    (said,) = re.findall(r"What \w+ made opens with \w+\.", prompt["new_notes"])
    update = {"operation": "update", "new": 1, "stored": [1], "content": said}
    return {"operations": [update if misled else {"operation": "noop", "new": 1}]}


def test_a_note_that_misled_an_agent_is_updated_and_one_that_works_is_not() -> None:
    with new_bank() as bank:
        done = program("manager", flipped)
        for n, code in enumerate(["1111", "1111", "2222", "2222"]):
            done(task=lock("Abus", n, code, tells=True), bank=bank, run_id="r")
        (now,) = bank.items()
        assert "2222" in now.content
        (before,) = bank.deleted_items()
        assert "1111" in before.content
        assert [each.verdicts[0].label for each in bank.experiences()] == ["failure", "success", "failure", "success"]
        assert bank.history(before.id)[-1].kind == "retire"


def test_a_merged_note_is_shown_to_none_of_the_tasks_that_it_was_learned_from() -> None:
    merge = {"operation": "merge", "new": 1, "stored": [1], "title": "Abus", "content": "Abus opens with 1111 or 2222."}
    tasks = [lock("Abus", 1, "1111", tells=True), lock("Abus", 2, "2222", tells=True)]
    with new_bank() as bank:
        done = program("manager", managing(merge))
        for task in tasks:
            done(task=task, bank=bank, run_id="r")
        assert [item.content for item in bank.items()] == ["Abus opens with 1111 or 2222."]
        assert not any(done.recall(task, bank) for task in tasks)
        assert done.recall(lock("Abus", 3), bank)


@pytest.mark.parametrize(
    "operation",
    [
        {"operation": "update", "new": 1, "stored": [7], "content": "All locks are open."},
        {"operation": "update", "new": 4, "stored": [1], "content": "All locks are open."},
        {"operation": "merge", "new": 1, "stored": [1], "content": " "},
        {"operation": "delete", "new": 0, "stored": []},
    ],
)
def test_an_operation_on_what_was_not_offered_is_refused_and_the_note_is_added(operation: dict[str, Any]) -> None:
    with new_bank() as bank:
        done = program("manager", managing(operation))
        for n, maker in enumerate(["Abus", "Burg"]):
            done(task=lock(maker, n, tells=True), bank=bank, run_id="r")
        assert len(bank) == 2
        assert not bank.deleted_items()
        assert f"refused: {operation['operation']}" in bank.experiences()[-1].note


def test_an_update_without_a_text_takes_the_new_note() -> None:
    with new_bank() as bank:
        done = program("manager", managing({"operation": "update", "new": 1, "stored": [1]}))
        for n, code in enumerate(["1111", "2222"]):
            done(task=lock("Abus", n, code, tells=True), bank=bank, run_id="r")
        (now,) = bank.items()
        assert "2222" in now.content


def test_stored_notes_can_be_changed_one_after_the_other_without_a_new_one() -> None:
    said = [
        Operation(operation="update", stored=[1], content="It opens with 3333."),
        Operation(operation="delete", stored=[2]),
    ]
    with new_bank() as bank:
        done = program("bank")
        for n, maker in enumerate(["Abus", "Burg"]):
            done(task=lock(maker, n, tells=True), bank=bank, run_id="r")
        kept = applied(said, Curated(), (), bank.items(), lock("Zeiss", 6))
        assert [draft.content for draft in kept.drafts] == ["It opens with 3333."]
        assert (set(kept.retired), kept.note) == ({item.id for item in bank.items()}, "")


def test_what_a_person_wrote_is_not_changed() -> None:
    with new_bank() as bank:
        bank.add("Locks", "The lock that Abus made opens with 1111.")
        done = program("manager", managing({"operation": "delete", "stored": [1]}))
        done(task=lock("Abus", 1, tells=True), bank=bank, run_id="r")
        assert len(bank) == 2
        assert "refused" in bank.experiences()[-1].note


def test_the_manager_is_asked_once_a_task_and_not_if_there_is_nothing_to_compare() -> None:
    asked = []

    def counting(prompt: Prompt) -> Any:
        asked.append(prompt["task"]) if "operations" in prompt.wants else None
        return managing()(prompt)

    with new_bank() as bank:
        done = program("manager", counting)
        tasks = [lock("Abus", 1, tells=True), lock("Burg", 2, tells=True), lock("Abus", 3, "9999", tells=True)]
        for task in tasks:
            done(task=task, bank=bank, run_id="r")
        assert asked == [task.instruction for task in tasks[1:]]


TREES = "ash birch cedar elm fir gum hazel ivy juniper kauri larch maple nutmeg oak pine quince rowan spruce teak yew"


def test_a_thousand_tasks_about_twenty_facts_end_with_few_items() -> None:
    assert len(left(1_000, 20)) < 40


@pytest.mark.stress
def test_ten_thousand_tasks_about_fifty_facts_end_with_few_items() -> None:
    assert len(left(10_000, 50)) < 100


class Told(dspy.Module):
    """Plays the manager: replaces a stored note about the same tree, or leaves out the new one."""

    def forward(self, new_notes: str, stored_notes: str, **inputs: str) -> dspy.Prediction:
        tree, text = new_notes.removeprefix("1. ").split(": ", 1)
        stored = re.search(rf"(?m)^(\d+)\. {tree}:", stored_notes)
        if stored is None:
            return dspy.Prediction(operations=[Operation(operation="add", new=1)])
        kind = "update" if len(text) % 3 else "noop"
        done = Operation(operation=kind, new=1, stored=[int(stored[1])], content=text)
        return dspy.Prediction(operations=[done])


def left(tasks: int, facts: int) -> list[MemoryItem]:
    """What a bank holds after so many tasks, each of which tells one of the facts in words of its own."""
    (manage,) = system_of("manager", Base(Retrieve())).curate
    manage.predict = Told()
    trees = [f"{first} {second}" for second in ("", *TREES.split()) for first in TREES.split()][:facts]
    with new_bank() as bank, Backbones(agent=scripted_lm(locksmith)).use():
        for n in range(tasks):
            task, tree = Task(id=str(n), instruction=f"Find a tree, visit {n}."), trees[n % facts].strip()
            rollout = Trajectory(task_id=task.id, steps=(Step(action="look", observation="Here."),))
            told = MemoryDraft(title=tree, description="", content=f"Every {tree} stands by door {n % 7}, as {n} says.")
            kept = manage(Curated((told,)), task, bank)
            bank.append(task, rollout, Verdict(label="success"), kept.drafts, retired=kept.retired, run_id="r")
        return bank.items()
