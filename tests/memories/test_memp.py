from __future__ import annotations

import re
from typing import Any

from rb_dspy.testing import Prompt, lock, locksmith
from tests.memories.worlds import new_bank, program


def player(prompt: Prompt) -> Any:
    """Types the code of a workflow; writes workflows that hold the code that opened the lock, or that it told."""
    if "action" in prompt.wants:
        told = re.search(r"Type (\w+)", prompt.text)
        return {"thought": "", "action": told[1] if told else "0000"}
    if "steps" in prompt.wants:
        (code,) = set(re.findall(r"(?:opens with|code is) (\w+)", prompt["trajectory"]))
        return {"steps": [f"Type {code}."]}
    return locksmith(prompt)


def test_the_workflow_that_was_shown_before_a_failure_is_rewritten() -> None:
    """The first lock opens at a guess, those after it do not, and a workflow from successes alone never tells that."""
    with new_bank() as bank:
        done = program("memp", player)
        for n, code in enumerate(["0000", "2222", "2222"]):
            done(task=lock("Abus", n, code, tells=True), bank=bank, run_id="r")
        assert [each.verdicts[0].label for each in bank.experiences()] == ["success", "failure", "success"]
        (before,) = bank.deleted_items()
        assert before.content == "- Type 0000."
        assert "2222" in done.recall(lock("Abus", 9), bank).block


def test_a_failure_without_a_workflow_teaches_nothing() -> None:
    with new_bank() as bank:
        program("memp", player)(task=lock("Abus", 1, "2222", tells=True), bank=bank, run_id="r")
        assert not bank.items()
        assert bank.experiences()[0].note


def test_a_rewritten_workflow_is_not_shown_to_any_of_its_tasks() -> None:
    tasks = [lock("Abus", 1, "0000"), lock("Abus", 2, "2222", tells=True)]
    with new_bank() as bank:
        done = program("memp", player)
        for task in tasks:
            done(task=task, bank=bank, run_id="r")
        assert [item.content for item in bank.items()] == ["- Type 2222."]
        assert not any(done.recall(task, bank) for task in tasks)
        assert done.recall(lock("Abus", 3), bank)
