"""ACE: counters decide what is left out, and the curator changes single bullets."""

from __future__ import annotations

import re
from typing import Any

from rb_dspy.config import DistillConfig, ProgramConfig, RetrieveConfig
from rb_dspy.testing import Prompt
from rb_dspy.testing.locks import GUESS, code_of, lock, locksmith
from tests.memories.worlds import many, new_bank, program

RIGHT, WRONG = f"What Abus made opens with {code_of('Abus')}.", "What Abus made opens with 1111."


def told(*texts: str) -> list[dict[str, str]]:
    return [{"title": "Codes", "content": text} for text in texts]


def plays(prompt: Prompt) -> Any:
    """Types the first code that a bullet tells; learns the right one at the first lock, a wrong one at the third."""
    if "action" in prompt.wants:
        codes = re.findall(r"What Abus made opens with (\w+)", prompt.text)
        return {"thought": "So it says.", "action": (codes or [GUESS])[0]}
    if "insights" in prompt.wants:
        used = re.findall(r"action: (\w+)", prompt["trajectory"])[0] in prompt["bullets"]
        learned = {"0": [RIGHT], "2": [WRONG]}.get(prompt["task"].rstrip(".").split()[-1], [])
        worked = prompt["verdict"] == "success"
        good, bad = [1] if used and worked else [], [1] if used and not worked else []
        return {"diagnosis": "It is seen.", "insights": told(*learned), "helpful": good, "harmful": bad}
    if "operations" in prompt.wants:
        return {"operations": [{"operation": "add", "new": 1}]}
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
        if "operations" in prompt.wants:
            merge = {"operation": "merge", "new": 1, "stored": [1, 2], "content": "Abus and Burg have codes."}
            return {"operations": [merge] if "2. " in prompt["stored_notes"] else []}
        if "insights" in prompt.wants:
            return {"diagnosis": "", "insights": told(prompt["task"]), "helpful": [], "harmful": []}
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


def test_what_cannot_be_done_is_noted_and_the_insight_is_added() -> None:
    """And while the playbook is empty, nobody is asked."""
    asked = list[str]()

    def confused(prompt: Prompt) -> Any:
        if "operations" in prompt.wants:
            asked.append(prompt["stored_notes"])
            return {"operations": [{"operation": "update", "new": 1, "stored": [7, 8], "content": "All is well."}]}
        if "insights" in prompt.wants:
            return {"diagnosis": "", "insights": told(prompt["task"]), "helpful": [], "harmful": []}
        return plays(prompt)

    with new_bank() as bank:
        done = program("ace", confused)
        for task in many(2):
            done(task=task, bank=bank, run_id="r")
        assert [item.content for item in bank.items()] == [task.instruction for task in many(2)]
        assert "refused: update" in bank.experiences()[-1].note
        assert len(asked) == 1
        assert "helped 0" not in asked[0]


def test_the_curator_reads_how_often_a_bullet_helped() -> None:
    asked = list[str]()

    def watched(prompt: Prompt) -> Any:
        asked.extend([prompt["stored_notes"]] if "operations" in prompt.wants else [])
        return plays(prompt)

    with new_bank() as bank:
        done = program("ace", watched)
        for task in many(3):
            done(task=task, bank=bank, run_id="r")
    assert ["helped 1, harmed 0" in each for each in asked] == [True]


def test_what_does_not_fit_the_curators_prompt_is_what_helped_least() -> None:
    asked = list[str]()

    def learning(prompt: Prompt) -> Any:
        asked.extend([prompt["stored_notes"]] if "operations" in prompt.wants else [])
        said = plays(prompt)
        return (
            {**said, "insights": told("Look twice.")} if "insights" in said and "serial 4" in prompt["task"] else said
        )

    with new_bank() as bank:
        done = program("ace", learning, ProgramConfig(distill=DistillConfig(view_tokens=100)))
        for task in many(5):
            done(task=task, bank=bank, run_id="r")
    assert [(RIGHT in each, WRONG in each) for each in asked] == [(True, False)] * 2
