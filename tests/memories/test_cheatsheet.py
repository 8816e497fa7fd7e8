"""Dynamic Cheatsheet: one sheet that grows by rewriting, or one for each task."""

from __future__ import annotations

import re
from typing import Any

from rb_dspy.testing import Prompt
from rb_dspy.testing.locks import GUESS, code_of, lock, locksmith
from tests.memories.worlds import agent, new_bank, program

TASKS = [lock(maker, n, tells=True) for n, maker in enumerate(("Abus", "Burg", "Abus", "Burg"))]


def plays(prompt: Prompt) -> Any:
    """Writes what a lock told below the sheet, or the lines of cases that tell a code into a new one."""
    if "action" in prompt.wants:
        return agent(prompt)
    if "new_sheet" in prompt.wants:
        (maker,), told = re.findall(r"that (\w+) made", prompt["task"]), prompt["environment_said"]
        new = [f"{maker}: {code}" for code in re.findall(r"Its code is (\w+)", told)]
        return {"new_sheet": "\n".join([prompt["sheet"].replace("(empty)", "Codes"), *new])}
    if "sheet" in prompt.wants:
        return {"sheet": "Codes: " + ", ".join(re.findall(r"Its code is (\w+)", prompt["memory"]))}
    return locksmith(prompt)


def test_the_sheet_is_one_item_that_is_rewritten_without_a_judge() -> None:
    asked = list[str]()

    def listens(prompt: Prompt) -> Any:
        asked.append(prompt.role)
        return plays(prompt)

    with new_bank() as bank:
        done = program("cheatsheet", listens)
        answers = [done(task=task, bank=bank, run_id="r").answer for task in TASKS]
        assert answers == [GUESS, GUESS, code_of("Abus"), code_of("Burg")]
        assert "judge" not in asked
        (sheet,) = bank.items()
        assert sheet.content.splitlines() == ["Codes", *(f"{maker}: {code_of(maker)}" for maker in ("Abus", "Burg"))]
        assert not done.recall(TASKS[0], bank)
        assert done.recall(lock("Abus", 9), bank)


def test_what_a_rewrite_drops_is_noted_and_stays_in_the_history() -> None:
    def forgets(prompt: Prompt) -> Any:
        return {"new_sheet": prompt["task"]} if "new_sheet" in prompt.wants else plays(prompt)

    with new_bank() as bank:
        first, second = (program("cheatsheet", forgets)(task=task, bank=bank, run_id="r") for task in TASKS[:2])
        assert "1 line of the sheet dropped" in second.experience.note
        (old,) = first.memory_items
        assert [change.kind for change in bank.history(old.id)] == ["append", "retire"]


def test_a_sheet_is_synthesised_from_cases_before_the_task() -> None:
    with new_bank() as bank:
        done = program("cheatsheet_rs", plays)
        answers = [done(task=task, bank=bank, run_id="r").answer for task in TASKS]
        assert answers == [GUESS, GUESS, code_of("Abus"), code_of("Burg")]
        memory = done.recall(lock("Abus", 9), bank)
        assert code_of("Abus") in memory.block
        assert "Its code is" not in memory.block
        assert len(memory.items) == 3
