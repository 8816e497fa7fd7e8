"""What the tests of memory systems share: a scripted model that can play any step of any system."""

from __future__ import annotations

import re
from typing import Any

from rb_dspy import MemoryBank, ReasoningBank
from rb_dspy.backbones import Backbones
from rb_dspy.config import ProgramConfig
from rb_dspy.schema import Task
from rb_dspy.testing import HashEmbedder, Prompt, scripted_lm
from rb_dspy.testing.lm import Script
from rb_dspy.testing.locks import GUESS, code_of, lock, locksmith, toys

ANSWERS: dict[str, Any] = {
    "operations": lambda prompt: [{"operation": "merge", "new": 1, "stored": [1], "content": _text(prompt)}],
    "harmful": [],
    "workflows": [{"goal": "Open a lock.", "steps": ["Look for its code.", "Type {code}."]}],
}
"""Output field -> what the scripted model writes into it, or a function of the prompt, where its type does not say
enough."""

_FIELD = re.compile(r"\d+\. `(\w+)` \((.+?)\):")
"""An output field of a prompt, with its type."""


def anything(prompt: Prompt) -> dict[str, Any]:
    """Plays the agent and the judge of the locks, and gives every other step an answer of the type it asks for.

    Texts are the last code that the prompt tells, so that whatever a system stores helps the next agent.
    """
    if not learns(prompt):
        said = locksmith(prompt)
        assert isinstance(said, dict)
        return {**_typed(prompt), **said}
    return _typed(prompt)


def learns(prompt: Prompt) -> bool:
    """Whether a memory system asks: neither the agent, nor the judge, nor the selector."""
    return not {"action", "label", "choice"} & {*prompt.wants}


def agent(prompt: Prompt, *, fallback: str = GUESS) -> dict[str, Any]:
    """Types the code that any text in the prompt tells for the maker of the lock."""
    maker = re.search(r"that (\w+) made", prompt["task"])
    code = code_of(maker[1]) if maker else fallback
    return {"thought": "So it is.", "action": code if code in prompt.text else fallback}


def _typed(prompt: Prompt) -> dict[str, Any]:
    listed = prompt.system.split("Your output fields are:")[-1].split("All interactions will")[0]
    said = {name: ANSWERS.get(name, _value(kind, prompt)) for name, kind in _FIELD.findall(listed)}
    return {name: each(prompt) if callable(each) else each for name, each in said.items()}


def _text(prompt: Prompt) -> str:
    told = re.findall(r"(?:Its code is|opens with) (\w+)", prompt.text)
    return f"It opens with {told[-1]}." if told else "Look twice before you type."


def _value(kind: str, prompt: Prompt) -> Any:
    text = _text(prompt)
    choices = re.findall(r"'([\w ]+)'", kind)
    if kind.startswith("Literal") and choices:
        return choices[0]
    if kind.startswith(("list[str]", "List[str]")):
        return [text]
    if kind.startswith("list[int]"):
        return [1]
    if kind.startswith("list["):
        return [{"title": "Locks of this maker", "description": "When such a lock is shut.", "content": text}]
    if kind.startswith("dict["):
        return {}
    return {"int": 1, "float": 0.5, "bool": True}.get(kind, text)


def program(
    memory: str, script: Script = anything, config: ProgramConfig | None = None, **options: Any
) -> ReasoningBank:
    """A program with a memory system, in the world of locks."""
    backbones = Backbones(agent=scripted_lm(script))
    return ReasoningBank(config, memory=memory, backbones=backbones, environments=toys, **options)


def new_bank(scope: str = "test") -> MemoryBank:
    return MemoryBank.open(None, scope=scope, embedder=HashEmbedder())


def many(number: int, maker: str = "Abus", **env_args: Any) -> list[Task]:
    """Locks of one maker, which tell their code if they stay shut."""
    return [lock(maker, n, tells=True, **env_args) for n in range(number)]
