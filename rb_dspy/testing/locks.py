"""A world of locks, and a scripted model that plays every role in it: lessons and attempts visibly help.

What opens one thing of a maker opens all of that maker, and no task says it. So a lesson from one task solves the next,
and several attempts in a hall tell what one cannot::

    report = evaluate(["none", "bank"], locks(18), program=scripted_program(), embedder=HashEmbedder())
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Sequence
from typing import Any

from rb_dspy.backbones import Backbones
from rb_dspy.config import ProgramConfig
from rb_dspy.program import ReasoningBank
from rb_dspy.protocols import Environment
from rb_dspy.schema import Task
from rb_dspy.stream import TaskStream
from rb_dspy.testing.environments import Corridor, Doors, Lock
from rb_dspy.testing.lm import Prompt, Reply, Script, scripted_lm

GUESS = "0000"
"""What an agent types that knows no code."""
MAKERS = ("Abus", "Burg", "Chubb", "Diebold", "Yale", "Zeiss")


def toys(task: Task, rollout_id: str) -> Environment:
    """Make the lock, the hall or the corridor of ``task``; an ``EnvironmentFactory``."""
    kinds: dict[str, Any] = {"hall": Doors, "corridor": Corridor}
    made: Environment = kinds.get(task.env, Lock).make(task, rollout_id)
    return made


def corridor(number: int = 1, length: int = 3) -> Task:
    """A task in a ``Corridor``."""
    text = f"Walk through corridor number {number}."
    return Task(id=f"corridor/{number}", instruction=text, env="corridor", env_args={"length": length})


def lock(maker: str = MAKERS[0], number: int = 1, code: str | None = None, **env_args: Any) -> Task:
    """A task at a ``Lock``, whose ``env_args`` these are; ``code`` is the maker's, ``code_of``, unless it is given."""
    text = f"Open the lock that {maker} made, serial {number}."
    return _made("lock", text, maker, number, code=code or code_of(maker), **env_args)


def hall(maker: str = MAKERS[0], number: int = 1, right: str = "blue") -> Task:
    """A task in ``Doors``."""
    text = f"Open the chest in the hall that {maker} made, serial {number}."
    return _made("hall", text, maker, number, right=right)


def _made(env: str, text: str, maker: str, number: int, **env_args: Any) -> Task:
    return Task(id=f"{env}/{maker}/{number}", instruction=text, env=env, env_args=env_args, template=maker)


def code_of(maker: str) -> str:
    """The code of all locks of a maker."""
    return str(1000 + zlib.crc32(maker.encode()) % 9000)


def locks(count: int) -> TaskStream:
    """``count`` locks of the makers in turn, which tell their code if they stay shut. Every fifth opens at a guess."""
    codes = [GUESS if n % 5 == 4 else code_of(MAKERS[n % len(MAKERS)]) for n in range(count)]
    return TaskStream("locks", [lock(MAKERS[n % len(MAKERS)], n, code, tells=True) for n, code in enumerate(codes)])


def scripted_program(
    script: Script | None = None, config: ProgramConfig | None = None, *, environments: Any = toys, **lm: Any
) -> ReasoningBank:
    """A program in this world, whose roles are all played by ``script`` (default ``locksmith``), a ``scripted_lm``."""
    backbones = Backbones(agent=scripted_lm(script or locksmith, **lm))
    return ReasoningBank(config, backbones=backbones, environments=environments)


def locksmith(prompt: Prompt) -> Reply:
    """Plays every role as well as the prompt allows.

    As agent: does what a lesson says of the maker, else goes forward, opens a door (the first by habit, others by
    chance) or types ``GUESS``. As judge, selector and checker: believes what the environment said. As distiller: names
    the code that a lock told, or the one action that all attempts have which worked, and none which failed.
    """
    if prompt.role == "agent":
        return _act(prompt)
    seen = prompt.get("attempts") or prompt.get("candidates") or prompt["trajectory"]
    texts = attempts(seen) or [seen]
    good = [number for number, text in enumerate(texts, 1) if worked(text)]
    if prompt.role == "selector":
        return {"analysis": "The last observations show it.", "choice": (good or [1])[0]}
    if prompt.role == "checker":
        return {"findings": "It worked." if good else "It did not.", "decision": "confirm" if good else "revise"}
    verdict = {"reasons": "The last observation shows it.", "label": "success" if good else "failure"}
    if "memory_items" not in prompt.wants:
        return verdict
    told = re.findall(r"(?:Its code is|It opens with) (\w+)", prompt.messages[-1][1])
    found = told[:1] or deciding(texts)
    lesson = ("Do not guess", "A guess stays shut; look for a lesson.")
    if len(found) == 1:
        lesson = ("Use what worked", f"{_subject(prompt['task'])} opens with {found[0]}.")
    return {**(verdict if prompt.role == "judge" else {}), **lessons(lesson)}


def _act(prompt: Prompt) -> Reply:
    listed = json.loads(prompt.get("valid_actions", "[]"))
    memory = prompt.get("memory")
    said = [found for found in re.findall(rf"{_subject(prompt['task'])} opens with (.+?)\.", memory) if found != GUESS]
    known = next((each for each in said if not listed or each in listed), None)
    if listed and not known:
        by_chance = (prompt.seed or 0) % len(listed) if prompt.turns else 0
        return {"thought": "One of them.", "action": "forward" if "forward" in listed else listed[by_chance]}
    thought = "A lesson says it." if known or f"with {GUESS}" in memory else "I guess."
    return {"thought": thought, "action": known or GUESS}


def _subject(task: str) -> str:
    maker = re.search(r"that (\w+) made", task)
    return f"What {maker[1]} made" if maker else "It"


def lessons(*found: tuple[str, str]) -> dict[str, Any]:
    """A distiller's answer: titles and contents."""
    where = "For locks of this maker."
    items = [{"title": title, "description": where, "content": content} for title, content in found]
    return {"analysis": "So it was.", "memory_items": items}


def worked(transcript: str) -> bool:
    """Whether a transcript of this world ends well."""
    return "You are through" in transcript or "It opens" in transcript


def attempts(listed: str) -> list[str]:
    """The transcripts in what a contraster or a selector reads."""
    return re.split(r"^=== attempt \d+.* ===\n", listed, flags=re.MULTILINE)[1:]


def deciding(transcripts: Sequence[str]) -> list[str]:
    """The actions of every transcript that ends well which none has that does not."""
    actions = [(worked(text), set(re.findall(r"action: (.+)", text))) for text in transcripts]
    good = [done for ended_well, done in actions if ended_well]
    return sorted(set.intersection(*good).difference(*(done for well, done in actions if not well))) if good else []
