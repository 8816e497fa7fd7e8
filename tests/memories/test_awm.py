"""AWM: what several successes share is a workflow; one success alone does not show it."""

from __future__ import annotations

import re
from typing import Any

from rb_dspy import MemoryBank, ReasoningBank
from rb_dspy.schema import Task
from rb_dspy.testing import Prompt
from rb_dspy.testing.locks import GUESS, MAKERS, lock, locksmith
from tests.memories.worlds import new_bank, program

RULE = "Type 7 and then its serial."


def locks(*serials: int) -> list[Task]:
    """Locks of different makers, whose code is 7 and the serial."""
    return [lock(MAKERS[serial % len(MAKERS)], serial, f"7{serial}") for serial in serials]


def inducer(prompt: Prompt) -> Any:
    """Knows the first codes by luck, and follows the rule if the instructions tell it; finds it in two attempts."""
    if "action" in prompt.wants:
        (serial,) = re.findall(r"serial (\d+)", prompt["task"])
        knows = RULE in prompt.system or int(serial) < 3
        return {"thought": "So it is.", "action": f"7{serial}" if knows else GUESS}
    if "label" in prompt.wants:
        return locksmith(prompt)
    codes = re.findall(r"action: (\d+)", prompt["attempts"])
    step = RULE if len(codes) > 1 else f"Type {codes[0]}."
    return {"workflows": [{"goal": "Open a lock.", "steps": ["Look at it.", step]}]}


def played(memory: str, tasks: list[Task], bank: MemoryBank) -> tuple[ReasoningBank, list[str]]:
    done = program(memory, inducer)
    labels = [done(task=task, bank=bank, run_id="r").verdict.label for task in tasks]
    return done, labels


def test_a_workflow_that_two_successes_share_opens_the_next() -> None:
    with new_bank() as bank:
        assert played("awm", locks(1, 2, 9), bank)[1] == ["success"] * 3
    with new_bank() as bank:  # each workflow is from one success
        assert played("awm_top1", locks(1, 2, 9), bank)[1] == ["success", "success", "failure"]


def test_the_file_is_written_anew_and_nobody_sees_it_who_gave_to_it() -> None:
    tasks = locks(1, 2, 9)
    with new_bank() as bank:
        done, _ = played("awm", tasks, bank)
        (file,) = bank.items()
        assert file.data["tasks"] == [task.id for task in tasks]
        assert file.content.endswith(RULE)
        assert [bool(done.recall(task, bank)) for task in [*tasks, *locks(10)]] == [False, False, False, True]
        assert RULE in done.recall(locks(10)[0], bank).block
        bank.rollback("run:r")
        assert not bank.items()


def test_a_failure_leaves_the_file_as_it_is() -> None:
    with new_bank() as bank:
        played("awm", locks(1, 2), bank)
        before = bank.items()
        assert played("awm", [lock("Abus", 50, "1111")], bank)[1] == ["failure"]
        assert bank.items() == before


def test_of_each_template_one_success_is_read() -> None:
    with new_bank() as bank:
        played("awm", locks(1, 2, 7, 8), bank)  # 1 and 7 are of one maker, as 2 and 8 are
        (file,) = bank.items()
        assert sorted(map(str, file.data["tasks"])) == sorted(task.id for task in locks(7, 8))
