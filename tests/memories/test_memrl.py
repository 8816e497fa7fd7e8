"""MemRL: of memories that are as near, those that were followed by failure give way."""

from __future__ import annotations

from collections.abc import Sequence

from rb_dspy import MemoryBank
from rb_dspy.schema import ItemDraft, MemoryItem, Task, Trajectory, Verdict
from rb_dspy.testing.locks import lock
from tests.memories.worlds import new_bank, program

ASKED = lock("Abus", 50)


def learn(bank: MemoryBank, id: str, label: str, shown: Sequence[MemoryItem] = (), title: str = "") -> None:
    drafts = [ItemDraft(title=title, description="", content=id, kind="case", data={"label": label})] if title else []
    verdict = Verdict.model_validate({"label": label})
    bank.append(Task(id=id, instruction="Look."), Trajectory(task_id=id, answer=id), verdict, drafts, shown=shown)


def test_a_script_that_misleads_gives_way_to_others_that_are_as_near() -> None:
    with new_bank() as bank:
        done = program("memrl")
        for n in range(4):
            learn(bank, f"near {n}", "success", title=ASKED.instruction)
        learn(bank, "far", "success", title="Sail around the cape.")
        bad, *others = done.recall(ASKED, bank).items
        for n in range(3):
            learn(bank, f"failed {n}", "failure", [bad])
        after = done.recall(ASKED, bank).items
        assert len(after) == 3
        assert bad not in after
        assert {*others} <= {*after}
        for n in range(9):
            learn(bank, f"won {n}", "success", [bad])
        assert done.recall(ASKED, bank).items[0] == bad
