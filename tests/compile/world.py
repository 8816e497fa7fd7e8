"""A scripted world in which prompts can be improved for reasons that runs show.

Locks open with their serial number backwards, which no task says. The pupil plays all roles of a program. It types
serial numbers as they are, and as judge it believes the agent. It does better if its instructions tell it to
(``BACKWARDS``, ``EVIDENCE``), if a lesson does, if its prompt has a good demonstration, and sometimes by luck, which
depends on the task and the rollout; and it writes such a lesson if its instructions tell it to (``TEACH``). The teacher
proposes prompts: the right sentence if what it is shown gives that away, that is feedback on failures, good runs beside
bad ones, or demonstrations.
"""

from __future__ import annotations

import functools
import json
import re
import zlib
from itertools import pairwise
from typing import Any

from rb_dspy import Backbones, Compiled, MaTTS, ReasoningBank, Streams, Task, TaskStream, compile_program
from rb_dspy.compile import Progress
from rb_dspy.config import ProgramConfig
from rb_dspy.testing import HashEmbedder, Lock, Prompt, Reply, scripted_lm

BACKWARDS = "Type the digits of the serial number backwards."
EVIDENCE = "Trust what the lock did, not what the agent says of it."
TEACH = "Say in every lesson in which order the digits are typed."

_LESSON = "Serial numbers are typed backwards."
_SHUT = "It stays shut"
_PLACES = (
    "harbour office",
    "old mill",
    "signal tower",
    "glass house",
    "north pier",
    "salt mine",
    "tram depot",
    "opera",
)
_WHY = (
    "A crate of tools waits behind it.",
    "The keeper of the keys has left for good.",
    "Its builder is said to have hated guests.",
    "Snow is coming, and it is the only shelter.",
    "It has been shut since the flood.",
    "The auction begins at noon.",
    "It is the third this week.",
    "The lights are still on inside.",
)


def environments(task: Task, rollout: str) -> Lock:
    return Lock.make(task, rollout)


def program(lm: Any = None, **config: Any) -> ReasoningBank:
    backbones = Backbones(agent=lm or scripted_lm(pupil))
    return ReasoningBank(ProgramConfig(**config), backbones=backbones, environments=environments)


def scaled(lm: Any = None, **options: Any) -> MaTTS:
    return MaTTS(program(lm), **{"k": 2, **options})


def streams(each: int = 4, held_out: int = 0) -> Streams:
    """``each`` locks at every place, of which three are to compile on, two are dev, and three held out."""
    return Streams(
        TaskStream("to-compile", locks(3, each)),
        TaskStream("to-choose", locks(2, each, first=3)),
        TaskStream("held-out", locks(3, held_out or each, first=5)),
    )


def compiled(**options: Any) -> Compiled:
    defaults = {"embedder": HashEmbedder(), "reflection": scripted_lm(teacher), "budget": 40, "orders": 1}
    options = {"program": options.get("program") or program(), "streams": streams(), **defaults, **options}
    return compile_program(options.pop("program"), options.pop("streams"), **options)


@functools.cache
def compiled_step(step: str) -> tuple[Compiled, list[Progress]]:
    """One compile of a step for all tests that only look at its result, and what it reported."""
    reports: list[Progress] = []
    return compiled(step=step, on_progress=reports.append), reports


def locks(places: int, each: int = 4, *, first: int = 0) -> tuple[Task, ...]:
    """``each`` locks at each of ``places`` places, from number ``first`` on; a place is a template."""
    return tuple(_lock(place, number) for place in range(first, first + places) for number in range(each))


def _lock(place: int, number: int) -> Task:
    name = f"{_PLACES[place % len(_PLACES)]} {place // len(_PLACES) + 1}"
    serial = str(1000 + zlib.crc32(f"{place}/{number}".encode()) % 8999)
    if serial == serial[::-1]:
        serial = "1237"
    return Task(
        id=f"locks/{place}/{number}",
        instruction=f"Open the door of the {name}. {_WHY[place % len(_WHY)]} The lock has the serial number {serial}.",
        env="lock",
        env_args={"code": serial[::-1]},
        template=name,
    )


def pupil(prompt: Prompt) -> Reply:
    """Plays the roles of a program."""
    if "action" in prompt.wants:
        serial = _serial(prompt["task"])
        told = BACKWARDS in prompt.system or ("memory" in prompt and _LESSON in prompt["memory"])
        good = told or _lucky(prompt, serial) or any(map(_good_act, _demos(prompt)))
        thought = "Backwards it is." if good else "I am sure that it is the number on the lock."
        return {"thought": thought, "action": serial[::-1] if good else serial}
    item = {
        "title": "Look before you type",
        "description": "Where a lock wants a number.",
        "content": _LESSON if TEACH in prompt.system else "Look at the whole lock before you type anything.",
    }
    lesson: dict[str, Any] = {"memory_items": [item]}
    if "label" in prompt.wants:
        careful = (
            EVIDENCE in prompt.system
            or _lucky(prompt, _serial(prompt["task"]))
            or any(map(_good_verdict, _demos(prompt)))
        )
        success = _SHUT not in prompt["trajectory"] if careful else True
        reasons = "The lock says it." if careful else "The agent is sure."
        return {"reasons": reasons, "label": _label(success), **({} if "memory_items" not in prompt.wants else lesson)}
    if "choice" in prompt.wants:
        listed = re.split(r"^=== attempt \d+.* ===\n", prompt["candidates"], flags=re.MULTILINE)[1:]
        careful = EVIDENCE in prompt.system
        fitting = [number for number, text in enumerate(listed, 1) if (_SHUT not in text) is careful]
        return {"analysis": "The last observations show it.", "choice": (fitting or [1])[0]}
    if "decision" in prompt.wants:
        return {"findings": "Nothing was found.", "decision": "confirm"}
    return {"analysis": "It may help.", **lesson}


def reader(prompt: Prompt) -> Reply:
    """A pupil whose agent has no luck and follows lessons only: no instruction helps it directly."""
    if "action" not in prompt.wants:
        return pupil(prompt)
    serial = _serial(prompt["task"])
    read = "memory" in prompt and _LESSON in prompt["memory"]
    return {"thought": "A lesson says it." if read else "Hm.", "action": serial[::-1] if read else serial}


def teacher(prompt: Prompt) -> Reply:
    """Plays the LM that proposes prompts: for gepa, for miprov2, and for simba."""
    if "new_instruction" in prompt.wants:
        now = prompt["current_instruction"]
        shown = prompt["examples_with_feedback"]
        gave_away = _SHUT in shown and any(word in shown for word in ("Failed", "Wrong", "passed over"))
        return {"new_instruction": _better(now) if gave_away else f"{now}\n\nBe brief."}
    if "proposed_instruction" in prompt.wants:
        now = prompt["basic_instruction"]
        gave_away = "No task demos" not in prompt["task_demos"]
        return {"proposed_instruction": _better(now) if gave_away else f"{now}\n\nBe brief."}
    if "module_advice" in prompt.wants:
        worse, better = prompt["worse_program_trajectory"], prompt["better_program_trajectory"]
        advice = {
            name: sentence
            for name in json.loads(prompt["module_names"])
            for part, sentence in (("act", BACKWARDS), ("judge", EVIDENCE))
            if part in name.split(".") and _SHUT in worse and worse != better
        }
        return {"discussion": "One of them went well.", "module_advice": advice}
    return dict.fromkeys(prompt.wants, "It opens locks.")


def _better(instruction: str) -> str:
    sentences = {
        "one action a turn": BACKWARDS,
        "rite notes": TEACH,
        "Decide whether this rollout": EVIDENCE,
        "Choose which one of these attempts": EVIDENCE,
    }
    return next((f"{instruction}\n\n{text}" for part, text in sentences.items() if part in instruction), instruction)


def _demos(prompt: Prompt) -> list[tuple[str, str]]:
    """Question and answer of every demonstration; a lock takes one turn, so prompts have no other answers."""
    turns = prompt.messages
    return [
        (asked[1], answered[1])
        for asked, answered in pairwise(turns)
        if asked[0] == "user" and answered[0] == "assistant"
    ]


def _good_act(demo: tuple[str, str]) -> bool:
    return f"[[ ## action ## ]]\n{_serial(demo[0])[::-1]}" in demo[1]


def _good_verdict(demo: tuple[str, str]) -> bool:
    return f"[[ ## label ## ]]\n{_label(_SHUT not in demo[0])}" in demo[1]


def _label(success: bool) -> str:
    return "success" if success else "failure"


def _serial(text: str) -> str:
    found = re.search(r"serial number (\d+)", text)
    return found[1] if found else "0000"


def _lucky(prompt: Prompt, serial: str) -> bool:
    """One in three, by task and rollout."""
    return zlib.crc32(f"luck/{serial}/{prompt.seed or 0}".encode()) % 3 == 0
