"""MIA: one plan for each question, and plans that were followed by failure give way to others."""

from __future__ import annotations

import re
from typing import Any

from rb_dspy.schema import Task
from rb_dspy.testing import Prompt
from rb_dspy.testing.locks import GUESS, lock, locksmith
from tests.memories.worlds import new_bank, program


def plays(prompt: Prompt) -> Any:
    """Tells the serial in each plan, and lists the serials of the plans that it was shown."""
    if "summary" in prompt.wants:
        return {"summary": prompt["task"], "plan": ["Guess."]}
    if "plan" in prompt.wants:
        worked, failed = (
            " ".join(re.findall(r"\. Open .+ serial (\d+)", prompt[name])) for name in ("worked", "failed")
        )
        return {"plan": f"Worked: {worked}; failed: {failed}."}
    if "action" in prompt.wants:
        return {"thought": "", "action": GUESS}
    return locksmith(prompt)


def test_plans_that_were_followed_by_failure_give_way_to_others_as_near() -> None:
    with new_bank() as bank:
        done = program("mia", plays)
        for n in range(3):
            done(task=lock("Abus", n, GUESS), bank=bank, run_id="r")
        before = done.recall(lock("Abus", 9), bank).block
        done(task=lock("Abus", 3, "1234"), bank=bank, run_id="r")
        after = done.recall(lock("Abus", 9), bank).block
    assert "Worked: 2 1; failed: ." in before
    assert "Worked: 0 1; failed: 3." in after


def test_a_question_has_one_plan_the_shortest_that_worked() -> None:
    def retells(prompt: Prompt) -> Any:
        if "summary" in prompt.wants:
            return {"summary": "So it went.", "plan": re.findall(r"action: (\w+)", prompt["trajectory"])}
        return plays(prompt)

    attempts = [("1234", 1), (GUESS, 3), (GUESS, 2), (GUESS, 3), ("1234", 1)]
    kept = list[str]()
    with new_bank() as bank:
        done = program("mia", retells)
        for n, (code, presses) in enumerate(attempts):
            args: dict[str, Any] = {"code": code, "presses": presses}
            done(task=Task(id=str(n), instruction="Open it.", env="lock", env_args=args), bank=bank, run_id="r")
            kept += [each.task_id for item in bank.items() for each in item.provenances]
    assert kept == ["0", "1", "2", "2", "2"]
