"""ReMe: advice that repeats what is stored is not added, and advice that does not help is pruned."""

from __future__ import annotations

import re
from typing import Any

from rb_dspy.testing import Prompt
from rb_dspy.testing.locks import GUESS, code_of, lock, locksmith
from tests.memories.worlds import new_bank, program

WRONG = "What Burg made opens with 1111."


def plays(prompt: Prompt) -> Any:
    """Follows the advice. In the first lock of Burg it learns a wrong code, and later the right one."""
    said = re.search(r"that (\w+) made, serial (\d+)", prompt.get("task"))
    assert said
    maker, number = said.groups()
    if "action" in prompt.wants:
        told = re.findall(rf"What {maker} made opens with (\w+)", prompt.text)
        return {"thought": "So it says.", "action": (told or [GUESS])[0]}
    if "memory_items" in prompt.wants:
        content = WRONG if number == "1" else f"What {maker} made opens with {code_of(maker)}."
        return {"memory_items": [{"title": "Code", "description": f"When {maker} made it.", "content": content}]}
    if "score" in prompt.wants:
        return {"score": 0.4 if "guess" in prompt["advice"] else 0.9, "adds": f"What {maker}" not in prompt["known"]}
    if "query" in prompt.wants:
        return {"query": f"When {maker} made it."}
    if "ranking" in prompt.wants:
        lines = re.findall(r"\[(\d+)\] When (\w+) made it", prompt["candidates"])
        return {"ranking": [int(n) for n, of in lines if of == maker]}
    if "guidance" in prompt.wants:
        return {"guidance": "\n".join(re.findall(r"What .+", prompt["memory"])) or "Nothing."}
    return locksmith(prompt)


def test_advice_that_misleads_is_pruned_and_learned_anew() -> None:
    tasks = [lock(("Abus", "Burg")[n % 2], n, tells=True) for n in range(26)]
    with new_bank() as bank:
        done = program("reme", plays)
        labels = [done(task=task, bank=bank, run_id="r").verdict.label for task in tasks]
        assert {*labels[2::2]} == {"success"}
        assert {*labels[1:22:2]} == {"failure"}  # the second pruning is after the 20th task
        assert {*labels[23::2]} == {"success"}
        told = {code_of(maker) for maker in ("Abus", "Burg")}
        assert sorted(item.content.split()[-1].rstrip(".") for item in bank.items()) == sorted(told)


def test_advice_with_a_low_score_is_not_stored() -> None:
    def guesses(prompt: Prompt) -> Any:
        if "memory_items" in prompt.wants:
            return {"memory_items": [{"title": "Code", "description": "Always.", "content": "Better guess."}]}
        return plays(prompt)

    with new_bank() as bank:
        learned = program("reme", guesses)(task=lock("Abus", 1), bank=bank, run_id="r").experience
        assert not learned.items
        assert learned.note
