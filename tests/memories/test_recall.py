"""What several tasks taught is shown to none of them."""

from __future__ import annotations

from typing import Any

from rb_dspy import MemoryBank, ReasoningBank
from rb_dspy.config import ProgramConfig, RetrieveConfig
from rb_dspy.memories import Base, MemorySystem
from rb_dspy.memories.recall import Listed, Recall, Recent
from rb_dspy.memories.teach import item, joined
from rb_dspy.schema import EVERY, MemoryDraft, Retrieved, Task, Trajectory, Verdict
from rb_dspy.steps import Retrieve
from rb_dspy.steps.working import Moment
from tests.memories.worlds import new_bank


def learn(bank: MemoryBank, task: Task, *drafts: MemoryDraft) -> None:
    bank.append(task, Trajectory(task_id=task.id), Verdict(label="success"), drafts)


def test_an_item_that_is_made_of_more_tasks_than_can_be_listed_is_shown_to_none_that_is_known() -> None:
    tasks = [Task(id=f"{n}/{'x' * 480}", instruction=f"Do {n}.") for n in range(40)]
    shown = Recall(Base(Retrieve()), Recent(None, ("bullet",)), Listed())
    with new_bank() as bank:
        for n, task in enumerate(tasks[:-1]):
            learn(bank, task, item("other", "Note", f"Number {n}."))
        made = joined(bank.items(), tasks[-1], "All", "All of it.")
        assert made.data == {"tasks": EVERY}
        learn(bank, tasks[-1], made.model_copy(update={"kind": "bullet"}))
        assert joined(bank.items(kinds=("bullet",)), tasks[-1], "", "Again.").data == made.data
        assert not any(shown(task, bank) for task in tasks)
        assert shown(Task(id="new", instruction="Do it."), bank)


def test_no_candidate_and_nothing_held_is_shown_whatever_is_found() -> None:
    task = Task(id="a", instruction="Do it.")
    with new_bank() as bank:
        learn(bank, task, item("candidate", "Maybe", "Look twice."), item("bullet", "Sure", "Look once."))
        found = bank.items()
        finds = [*found, found[-1].model_copy(update={"id": "item-held", "title": "Held", "level": "held"})]

        def everything(moment: Moment, bank: MemoryBank, query: object) -> list[Retrieved]:
            about: dict[str, Any] = {"score": 1.0, "experience_id": "e", "task_id": "a", "instruction": "-"}
            return [Retrieved(**about, items=(each,)) for each in finds]

        shown = Recall(Base(Retrieve()), everything, Listed())(Task(id="b", instruction="Do it."), bank)
        assert [each.title for each in shown.items] == ["Sure"]


def test_a_memory_of_ones_own_has_the_cap_of_its_program() -> None:
    def mine(base: Base) -> MemorySystem:
        return MemorySystem("all", "all", "ours", retrieve=Recall(base, Recent(None), Listed()))

    config = ProgramConfig(retrieve=RetrieveConfig(max_tokens=60))
    assert ReasoningBank(config, memory=mine).retrieve.config.max_tokens == 60


def test_items_that_do_not_fit_are_left_out_or_cut() -> None:
    task, other = Task(id="a", instruction="Do it."), Task(id="b", instruction="Do it.")
    with new_bank() as bank:
        learn(bank, task, *[item("bullet", f"Note {n}", "Look twice. " * 10) for n in range(3)])
        found = [Recall(Base(Retrieve()), Recent(None), Listed(whole=whole))(other, bank) for whole in (True, False)]
        assert [len(memory.items) for memory in found] == [3, 3]
        config = Retrieve().config.model_copy(update={"max_tokens": 100})
        base = Base(Retrieve(config))
        whole, cut = [Recall(base, Recent(None), Listed(whole=whole))(other, bank) for whole in (True, False)]
    assert [each.title for each in whole.items] == ["Note 2", "Note 1"]
    assert "left out" not in whole.block
    assert len(cut.items) == 3
    assert whole.beyond > 0
    assert cut.beyond > 0
