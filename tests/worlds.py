"""A scripted agent that works in the toy environments, for tests of everything above the steps."""

from __future__ import annotations

import re
from typing import Any

from rb_dspy.backbones import Backbones
from rb_dspy.schema import Task
from rb_dspy.testing import Prompt, Reply, scripted_lm


def corridor(task_id: str = "corridor/1", length: int = 3) -> Task:
    return Task(
        id=task_id,
        instruction=f"Walk through the corridor called {task_id}.",
        env="corridor",
        env_args={"length": length},
        template="corridor",
    )


def lock(maker: str, number: int, code: str = "4711") -> Task:
    """Locks of one maker have one code; the task's text names the maker but never the code."""
    return Task(
        id=f"lock/{maker}/{number}",
        instruction=f"Open the lock that {maker} made, serial {number}.",
        env="lock",
        env_args={"code": code},
        template=maker,
    )


def answers(prompt: Prompt) -> Reply:
    """Plays every role. As agent: walks forward; on a lock, uses the code that a lesson names, else guesses.

    As judge: success where the transcript shows that it worked. As distiller: names the code after a success, and after
    a failure the hint that failed locks give.
    """
    if "action" in prompt.wants:
        if "valid_actions" in prompt:
            return {"thought": "The end is ahead.", "action": "forward"}
        known = re.search(r"the code is (\w+)", prompt["memory"])
        return {"thought": "A lesson tells the code." if known else "I guess.", "action": known[1] if known else "0000"}
    if "label" in prompt.wants:
        worked = "You are through" in prompt["trajectory"] or "It opens" in prompt["trajectory"]
        return {"reasons": "The last observation shows it.", "label": "success" if worked else "failure"}
    code = re.search(r"action: (\d+)", prompt["trajectory"])
    if "why it was judged a success" in prompt.system:
        content = f"For locks of this maker the code is {code[1]}." if code else "Keep going until you are through."
        return {"analysis": "It worked.", "memory_items": [item("Use what worked", content)]}
    return {"analysis": "It failed.", "memory_items": [item("Do not guess", "A guess stays shut; look for a lesson.")]}


def item(title: str, content: str) -> dict[str, str]:
    return {"title": title, "description": "When a task is of this kind; not elsewhere.", "content": content}


def backbones(script: Any = answers, **kwargs: Any) -> Backbones:
    return Backbones(agent=scripted_lm(script, **kwargs))


def prompts(bones: Backbones) -> list[Prompt]:
    found: list[Prompt] = bones.lm("agent").engine.prompts
    return found
