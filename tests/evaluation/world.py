"""A world of safes and a scripted model that plays every role: what a wrong code taught helps on the maker's next safe.

A safe that stays shut shows its code. All safes of a maker have one code, and a few have the usual one, 0000, so that
tasks differ in difficulty. The code stands in ``env_args``, which no role may read.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from typing import Any

from rb_dspy import Backbones, Outcome, ProgramConfig, ReasoningBank, RetrieveConfig, Task, TaskStream
from rb_dspy.evaluation import Report
from rb_dspy.testing import Prompt, Reply, scripted_lm

MAKERS = ("Abus", "Burg", "Chubb", "Diebold", "Yale", "Zeiss")


def safe(number: int, maker: str, *, usual: bool = False) -> Task:
    return Task(
        id=f"safe/{maker}/{number}",
        instruction=f"Open safe number {number} that {maker} made.",
        env="safe",
        env_args={"code": "0000" if usual else code_of(maker)},
        template=maker,
    )


def code_of(maker: str) -> str:
    return str(1000 + int(hashlib.sha256(maker.encode()).hexdigest(), 16) % 9000)


def safes(count: int) -> TaskStream:
    """Makers in turn; every fifth safe has the usual code."""
    return TaskStream("safes", [safe(n, MAKERS[n % len(MAKERS)], usual=n % 5 == 4) for n in range(count)])


class Safe:
    """Takes one code. A safe that stays shut shows its own."""

    action_rules = "the code, nothing else"

    def __init__(self, code: str) -> None:
        self.code = code
        self.typed: str | None = None

    def reset(self, task: Task) -> str:
        return "The safe waits for a code."

    def step(self, action: str) -> tuple[str, bool]:
        self.typed = action
        return ("The safe opens." if action == self.code else f"It stays shut. Its code is {self.code}."), True

    def valid_actions(self) -> None:
        return None

    def answer(self) -> str | None:
        return self.typed

    def outcome(self) -> Outcome | None:
        opened = self.typed == self.code
        return Outcome(reward=float(opened), success=opened)

    def close(self) -> None:
        """Nothing to release."""


def make_safe(task: Task, rollout_id: str) -> Any:
    return Safe(str(task.env_args["code"]))


def learner(prompt: Prompt) -> Reply:
    """As agent: types the code that a lesson gives for the maker, else 0000. Judges and distils what the safe said."""
    if "action" in prompt.wants:
        maker = re.search(r"that (\w+) made", prompt["task"])
        code = re.search(rf"{maker[1]} safes open with (\d+)", prompt["memory"]) if maker else None
        return {"thought": "", "action": code[1] if code else "0000"}
    return _others(prompt)


def stubborn(prompt: Prompt) -> Reply:
    """As agent: types 0000, whatever the lessons say."""
    return {"thought": "", "action": "0000"} if "action" in prompt.wants else _others(prompt)


def _others(prompt: Prompt) -> Reply:
    if "label" in prompt.wants:
        opened = "The safe opens" in prompt["trajectory"]
        return {"reasons": "It says so.", "label": "success" if opened else "failure"}
    maker = re.search(r"that (\w+) made", prompt["task"])
    code = re.search(r"Its code is (\d+)", prompt.text) or re.search(r"action: (\d+)", prompt["trajectory"])
    name, digits = maker[1] if maker else "", code[1] if code else "0000"
    lesson = {"title": f"Safes of {name}", "description": "", "content": f"{name} safes open with {digits}."}
    return {"analysis": "Seen.", "memory_items": [lesson] if digits != "0000" else []}


def program(script: Callable[[Prompt], Reply] = learner, *, k: int = 6, **lm: Any) -> ReasoningBank:
    config = ProgramConfig(retrieve=RetrieveConfig(k=k, min_score=-1.0, min_share=0.0))
    return ReasoningBank(config, backbones=Backbones(agent=scripted_lm(script, **lm)), environments=make_safe)


def without_times(report: Report) -> dict[str, Any]:
    """A report as data, without what differs from run to run."""
    data = report.model_dump()
    for arm in data["arms"].values():
        del arm["seconds"]
    return data
