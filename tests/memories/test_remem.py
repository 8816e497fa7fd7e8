"""ReMem: a case that misleads leaves the prompt before the agent acts."""

from __future__ import annotations

from typing import Any

import pytest

from rb_dspy.schema import Task
from rb_dspy.testing import Prompt
from rb_dspy.testing.locks import lock, locksmith
from tests.memories.worlds import new_bank, program


def credulous(prompt: Prompt) -> Any:
    """Types the code of the first case that it reads, and prunes cases that are about another maker's lock."""
    if "operation" in prompt.wants:
        parts = prompt["parts"].split("lesson ")[1:]
        wrong = [f"lesson {part.split(':')[0]}" for part in parts if "Burg" in part]
        return {"thought": "It is of another maker.", "operation": "prune" if wrong else "act", "names": wrong}
    if "action" in prompt.wants:
        codes = [code for code in prompt.get("memory").split() if code in ("1111", "2222")]
        known = "1111" if "Abus" in prompt["task"] else "2222"
        return {"thought": "So it is.", "action": codes[0] if codes else known}
    return locksmith(prompt)


@pytest.mark.parametrize(("memory", "label"), [("exprag", "failure"), ("remem", "success")])
def test_a_case_that_misleads_is_pruned_from_the_prompt_and_not_from_the_bank(memory: str, label: str) -> None:
    tasks: list[Task] = [lock("Burg", 1, "2222"), lock("Abus", 1, "1111")]
    with new_bank() as bank:
        done = program(memory, credulous)
        first, second = (done(task=task, bank=bank, run_id="r") for task in tasks)
        assert (first.verdict.label, second.verdict.label) == ("success", label)
        assert [item.title for item in second.memory.items] == [tasks[0].instruction]
        assert len(bank.items()) == 2
        assert bool(done.recall(lock("Abus", 2), bank))
