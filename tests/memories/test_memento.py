"""Memento: plans that worked are followed, and plans that failed are avoided."""

from __future__ import annotations

import re
from typing import Any

from rb_dspy.testing import Prompt
from rb_dspy.testing.locks import lock, locksmith
from tests.memories.worlds import new_bank, program

CODES = ("1111", "2222", "3333", "4444")


def planner(prompt: Prompt) -> Any:
    """Follows the plan of a success, and tries no code that is in the plan of a failure."""
    if "action" in prompt.wants:
        worked, _, failed = prompt.get("memory").partition("Plans that failed")
        good = [code for code in CODES if code in worked]
        untried = [code for code in CODES if code not in failed]
        return {"thought": "So it is.", "action": (good or untried)[0]}
    if "label" in prompt.wants:
        return locksmith(prompt)
    return {"plan": [f"Type {code}" for code in re.findall(r"action: (\d+)", prompt["trajectory"])]}


def test_plans_of_failures_are_avoided_and_plans_of_successes_followed() -> None:
    with new_bank() as bank:
        done = program("memento", planner)
        tasks = [lock("Abus", number, "3333") for number in range(5)]
        results = [done(task=task, bank=bank, run_id="r") for task in tasks]
        assert [each.answer for each in results] == ["1111", "2222", "3333", "3333", "3333"]


def test_many_failures_nearby_leave_the_successes_their_places() -> None:
    with new_bank() as bank:
        done = program("memento", planner)
        for number in range(3):
            done(task=lock("Abus", number, "3333"), bank=bank, run_id="r")
        for number in range(3, 20):
            done(task=lock("Abus", number, "none"), bank=bank, run_id="r")
        memory = done.recall(lock("Abus", 30), bank)
        labels = [item.data["label"] for item in memory.items]
        assert labels == ["success", *["failure"] * 4]
        assert "Type 3333" in memory.block.partition("Plans that failed")[0]
