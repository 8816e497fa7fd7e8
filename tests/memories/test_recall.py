"""What several tasks taught is shown to none of them."""

from __future__ import annotations

from rb_dspy import MemoryBank
from rb_dspy.memories import Base
from rb_dspy.memories.recall import Listed, Recall, Recent
from rb_dspy.memories.teach import item, joined
from rb_dspy.schema import EVERY, MemoryDraft, Task, Trajectory, Verdict
from rb_dspy.steps import Retrieve
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
