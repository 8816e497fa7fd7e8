"""ACE: counters decide what is left out, and the curator changes single bullets."""

from __future__ import annotations

import json
import re
from typing import Any

from rb_dspy.config import ProgramConfig, RetrieveConfig
from rb_dspy.testing import Prompt
from rb_dspy.testing.locks import GUESS, code_of, lock, locksmith
from tests.memories.worlds import many, new_bank, program

RIGHT, WRONG = f"What Abus made opens with {code_of('Abus')}.", "What Abus made opens with 1111."


def plays(prompt: Prompt) -> Any:
    """Types the first code that a bullet tells; learns the right one at the first lock, a wrong one at the third."""
    if "action" in prompt.wants:
        told = re.findall(r"What Abus made opens with (\w+)", prompt.text)
        return {"thought": "So it says.", "action": (told or [GUESS])[0]}
    if "insights" in prompt.wants:
        used = re.findall(r"action: (\w+)", prompt["trajectory"])[0] in prompt["bullets"]
        learned = {"0": [RIGHT], "2": [WRONG]}.get(prompt["task"].rstrip(".").split()[-1], [])
        worked = prompt["verdict"] == "success"
        good, bad = [1] if used and worked else [], [1] if used and not worked else []
        return {"diagnosis": "It is seen.", "insights": learned, "helpful": good, "harmful": bad}
    if "changes" in prompt.wants:
        return {"changes": [{"do": "add", "title": "Codes", "text": text} for text in json.loads(prompt["insights"])]}
    return locksmith(prompt)


def test_what_helped_is_shown_and_a_newer_bullet_is_left_out() -> None:
    config = ProgramConfig(retrieve=RetrieveConfig(max_tokens=30))
    with new_bank() as bank:
        done = program("ace", plays, config)
        labels = [done(task=task, bank=bank, run_id="r").verdict.label for task in many(6)]
        assert labels == ["failure", *["success"] * 5]
        right, wrong = bank.items()
        assert [use.mark for use in bank.uses(right.id)] == ["helpful"] * 5
        assert (right.content, wrong.content) == (RIGHT, WRONG)
        assert not bank.uses(wrong.id)
        assert done.recall(lock("Abus", 9), bank).beyond > 0


def test_bullets_that_are_merged_are_one_that_no_task_of_theirs_is_shown() -> None:
    def merging(prompt: Prompt) -> Any:
        if "changes" in prompt.wants and prompt["playbook"].count("\n> ") > 2:
            return {
                "changes": [{"do": "merge", "items": [1, 2], "title": "Codes", "text": "Abus and Burg have codes."}]
            }
        if "insights" in prompt.wants:
            return {"diagnosis": "", "insights": [prompt["task"]], "helpful": [], "harmful": []}
        return plays(prompt)

    tasks = [lock("Abus", 7), lock("Burg", 8), lock("Yale", 9)]
    with new_bank() as bank:
        done = program("ace", merging)
        for task in tasks:
            done(task=task, bank=bank, run_id="r")
        (merged,) = bank.items()
        assert merged.content == "Abus and Burg have codes."
        assert not any(done.recall(task, bank) for task in tasks)
        assert done.recall(lock("Abus", 10), bank)
