"""A world of locks, and scripted models that play every role in it: lessons, attempts and prompts visibly help.

What opens one thing of a maker opens all of that maker, and no task says it. So a lesson from one task solves the next,
several attempts in a hall tell what one cannot, and a better prompt makes a better apprentice::

    report = evaluate(["none", "bank"], locks(18), program=scripted_program(), embedder=HashEmbedder())
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterable, Sequence
from itertools import pairwise
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

BACKWARDS = "Type the digits of the serial number backwards."
EVIDENCE = "Trust what the lock did, not what the agent says of it."
TEACH = "Say in every lesson in which order the digits are typed."


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


def serial_locks(makers: Iterable[int], each: int = 4) -> TaskStream:
    """``each`` locks of every maker, of which there is one for each number; their code is their serial, backwards."""
    found = []
    for maker in makers:
        name = MAKERS[maker % len(MAKERS)] + str(maker // len(MAKERS) or "")
        for number in range(each):
            serial = 1000 + zlib.crc32(f"{maker}/{number}".encode()) % 8999
            serial += str(serial) == str(serial)[::-1]
            found.append(lock(name, serial, str(serial)[::-1]))
    return TaskStream("serials", found)


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


def apprentice(prompt: Prompt) -> Reply:
    """Plays every role at ``serial_locks``, and each the better, the better its prompt is.

    As agent: types the serial number as it is, unless instructions or lessons say ``BACKWARDS``, a demonstration shows
    it, or luck helps. As judge and selector: believes the agent, unless told by ``EVIDENCE``, a demonstration or luck.
    As distiller: writes a lesson that helps if told to ``TEACH``.
    """
    if prompt.role == "agent":
        serial = _serial(prompt["task"])
        told = BACKWARDS in prompt.system or BACKWARDS in prompt.get("memory")
        shown = any(_says(said, "action", _serial(asked)[::-1]) for asked, said in _demos(prompt))
        good = told or shown or _lucky(prompt)
        return {"thought": "Backwards." if good else "As it is.", "action": serial[::-1] if good else serial}
    if prompt.role == "selector":
        listed = attempts(prompt["candidates"])
        fitting = [n for n, text in enumerate(listed, 1) if worked(text) is (EVIDENCE in prompt.system)]
        return {"analysis": "It is sure.", "choice": (fitting or [1])[0]}
    if prompt.role == "checker":
        return {"findings": "Nothing was found.", "decision": "confirm"}
    taught = lessons(("Look before you type", BACKWARDS if TEACH in prompt.system else "Look at the whole lock."))
    if prompt.role == "distiller":
        return taught
    shown = any(_says(said, "label", _label(asked)) for asked, said in _demos(prompt))
    label = _label(prompt["trajectory"]) if EVIDENCE in prompt.system or _lucky(prompt) or shown else "success"
    return {"reasons": "The lock says it.", "label": label, **(taught if "memory_items" in prompt.wants else {})}


def teacher(prompt: Prompt) -> Reply:
    """Proposes prompts to GEPA, MIPROv2 and SIMBA: the sentence that helps, if what it is shown gives that away.

    That is feedback on failures, good runs beside bad ones, or demonstrations.
    """
    if "new_instruction" in prompt.wants:
        now, shown = prompt["current_instruction"], prompt["examples_with_feedback"]
        fails = "It stays shut" in shown and any(word in shown for word in ("Failed", "Wrong", "passed over"))
        return {"new_instruction": _better(now, fails)}
    if "proposed_instruction" in prompt.wants:
        demos = "No task demos" not in prompt["task_demos"]
        return {"proposed_instruction": _better(prompt["basic_instruction"], demos)}
    if "module_advice" in prompt.wants:
        worse, better = prompt["worse_program_trajectory"], prompt["better_program_trajectory"]
        advice = {
            name: sentence
            for name in json.loads(prompt["module_names"])
            for part, sentence in (("act", BACKWARDS), ("judge", EVIDENCE))
            if part in name.split(".") and "It stays shut" in worse and worse != better
        }
        return {"discussion": "One of them went well.", "module_advice": advice}
    return dict.fromkeys(prompt.wants, "It opens locks.")


def _better(instruction: str, given_away: bool) -> str:
    sentences = {
        "one action a turn": BACKWARDS,
        "rite notes": TEACH,
        "Decide whether this rollout": EVIDENCE,
        "Choose which one of these attempts": EVIDENCE,
    }
    found = next((text for part, text in sentences.items() if part in instruction), "")
    return f"{instruction}\n\n{found if given_away else 'Be brief.'}".rstrip()


def _demos(prompt: Prompt) -> list[tuple[str, str]]:
    """Question and answer of every demonstration; a lock takes one turn, so prompts have no other answers."""
    return [
        (asked, said) for (one, asked), (two, said) in pairwise(prompt.messages) if (one, two) == ("user", "assistant")
    ]


def _says(answer: str, field: str, value: str) -> bool:
    return f"[[ ## {field} ## ]]\n{value}" in answer


def _label(transcript: str) -> str:
    return "success" if worked(transcript) else "failure"


def _serial(text: str) -> str:
    found = re.search(r"serial (\d+)", text)
    return found[1] if found else GUESS


def _lucky(prompt: Prompt) -> bool:
    """One in three, by task and rollout."""
    return zlib.crc32(f"luck/{_serial(prompt['task'])}/{prompt.seed or 0}".encode()) % 3 == 0
