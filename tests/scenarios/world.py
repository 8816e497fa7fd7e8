"""A world of keypads and a scripted model that plays every role, built from public names only.

A keypad takes one code and says whether it opens. The code stands in ``env_args``, which no role may read. The agent
types the code that a lesson names, else ``GUESS``. The script reads what the environment said (``took 0000 and
opens``), not how a transcript is laid out, so these scenarios do not depend on the format of a prompt.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rb_dspy import Backbones, Environment, MemoryBank, Outcome, ReasoningBank, Task
from rb_dspy.testing import HashEmbedder, Prompt, Reply, scripted_lm

GUESS = "0000"
TOOK = re.compile(r"took (\S+) and (opens|stays shut)")


def keypad(number: int = 1, code: str = GUESS, maker: str = "Abus", **env_args: Any) -> Task:
    return Task(
        id=f"keypad/{maker}/{number}",
        instruction=f"Open the door with the keypad that {maker} made, serial {number}.",
        env="keypad",
        env_args={"code": code, **env_args},
        template=maker,
    )


def keypads(count: int, **kwargs: Any) -> list[Task]:
    return [keypad(number, **kwargs) for number in range(count)]


class Keypad:
    """Takes ``presses`` actions; the last one is the code."""

    action_rules = "the code, nothing else"

    def __init__(self, number: int, code: str, presses: int) -> None:
        self.number = number
        self.code = code
        self.left = presses
        self.typed: str | None = None

    def reset(self, task: Task) -> str:
        return f"Keypad {self.number} waits."

    def step(self, action: str) -> tuple[str, bool]:
        self.left -= 1
        if self.left:
            return f"Keypad {self.number} beeps, {self.left} to go.", False
        self.typed = action
        return f"Keypad {self.number} took {action} and {'opens' if action == self.code else 'stays shut'}.", True

    def valid_actions(self) -> None:
        return None

    def answer(self) -> str | None:
        return self.typed

    def outcome(self) -> Outcome:
        opened = self.typed == self.code
        return Outcome(reward=float(opened), success=opened, info={"code": self.code})

    def close(self) -> None:
        """Nothing to release."""


def keypad_rooms(
    breaks: Collection[int] = (), rollout_ids: list[str] | None = None
) -> Callable[[Task, str], Environment]:
    """An environment factory that numbers its keypads from 1 on; those in ``breaks`` break at their first step."""
    lock = threading.Lock()
    made = 0

    def make(task: Task, rollout_id: str) -> Environment:
        nonlocal made
        with lock:
            made += 1
            number = made
            if rollout_ids is not None:
                rollout_ids.append(rollout_id)
        presses = int(str(task.env_args.get("presses", 1)))
        room = Keypad(number, str(task.env_args["code"]), presses)
        if number in breaks:
            room.step = _broken  # type: ignore[method-assign]
        return room

    return make


def _broken(action: str) -> tuple[str, bool]:
    raise OSError("the keypad has no power")


def role_of(prompt: Prompt) -> str:
    """``agent``, ``judge``, ``selector``, ``checker`` or, for lessons of one or of several rollouts, ``distiller``."""
    for field, role in (("action", "agent"), ("label", "judge"), ("choice", "selector"), ("decision", "checker")):
        if field in prompt.wants:
            return role
    return "distiller"


def last(prompt: Prompt) -> str:
    """The newest message of a prompt."""
    return prompt.messages[-1][1]


def lesson(title: str, content: str, prompt: Prompt) -> dict[str, Any]:
    made: dict[str, Any] = {"title": title, "description": "For keypads of this maker.", "content": content}
    return {**made, "evidence": [1]} if "evidence" in prompt.system else made


def play(prompt: Prompt) -> Reply:
    """Plays every role; see the module's docstring."""
    reply = _played(prompt)
    return {**dict.fromkeys(prompt.wants, "Nothing more."), **reply}


def _played(prompt: Prompt) -> Mapping[str, Any]:
    role, seen = role_of(prompt), last(prompt)
    if role == "agent":
        known = re.search(r"the code is (\w+)", prompt.text)
        return {"thought": "A lesson names it." if known else "I guess.", "action": known[1] if known else GUESS}
    worked = any(found[2] == "opens" for found in TOOK.finditer(seen))
    if role == "judge":
        return {"reasons": "The keypad says so.", "label": "success" if worked else "failure"}
    if role == "selector":
        return {"analysis": "The keypads say so.", "choice": opened_attempt(seen)}
    if role == "checker":
        return {"findings": "It holds." if worked else "Wrong code.", "decision": "confirm" if worked else "revise"}
    codes = [found[1] for found in TOOK.finditer(seen) if found[2] == "opens"]
    if codes:
        return {
            "analysis": "It opened.",
            "memory_items": [lesson("Use the code", f"Here the code is {codes[0]}.", prompt)],
        }
    return {"analysis": "It failed.", "memory_items": [lesson("Do not guess", "A guess stays shut; ask.", prompt)]}


def opened_attempt(text: str) -> int:
    """The number of the first attempt in ``text`` whose keypad opened; 1 if none did."""
    number = 1
    for found in re.finditer(r"attempt\W{0,3}(\d+)|and (opens)", text, flags=re.IGNORECASE):
        if found[2]:
            return number
        number = int(found[1])
    return 1


class Spy:
    """A script that records every prompt it answers. ``roles`` replaces the answers of single roles."""

    def __init__(self, roles: Mapping[str, Callable[[Prompt], Reply]] | None = None, script: Any = play) -> None:
        self.roles = dict(roles or {})
        self.script = script
        self.prompts: list[Prompt] = []

    def __call__(self, prompt: Prompt) -> Reply:
        self.prompts.append(prompt)
        answer: Reply = self.roles.get(role_of(prompt), self.script)(prompt)
        return answer

    def of(self, role: str) -> list[Prompt]:
        return [prompt for prompt in self.prompts if role_of(prompt) == role]

    def roles_asked(self) -> list[str]:
        return [role_of(prompt) for prompt in self.prompts]


def program(script: Any = play, environments: Any = None, **kwargs: Any) -> ReasoningBank:
    backbones = Backbones(agent=scripted_lm(script))
    return ReasoningBank(backbones=backbones, environments=environments or keypad_rooms(), **kwargs)


@contextmanager
def bank_at(path: Path, scope: str = "scenarios") -> Iterator[MemoryBank]:
    with MemoryBank.open(path, scope=scope, embedder=HashEmbedder()) as bank:
        yield bank


def contents(bank: MemoryBank) -> list[Any]:
    """What the bank learned, without ids, times and numbers of keypads: equal for runs that did the same."""
    return [
        (
            each.task.id,
            [verdict.label for verdict in each.verdicts],
            [
                [(step.action, re.sub(r"Keypad \d+", "It", step.observation)) for step in rollout.steps]
                for rollout in each.trajectories
            ],
            sorted((item.title, item.content) for item in each.items),
        )
        for each in bank.experiences()
    ]


def lessons(bank: MemoryBank) -> set[str]:
    return {item.content for item in bank.items()}


def learned_tasks(bank: MemoryBank, run_id: str | None = None) -> list[str]:
    """Ids of the tasks of all experiences, with repetition."""
    return [each.task.id for each in bank.experiences() if run_id in (None, each.run_id)]


def resume_all(run: Any, bank: MemoryBank) -> None:
    for pending in bank.pending():
        run.resume(pending)
