"""A scripted world for compiling: prompts can be made better in it, for reasons that runs show, and it is known how.

Locks open with their serial number backwards, which no task says. The pupil, who plays all roles of a program, types
serial numbers as they are, and as judge believes whoever sounds sure. It does better where its instructions tell it
to (``BACKWARDS``, ``EVIDENCE``), where a lesson does, where its prompt holds a demonstration of it, and now and then by
luck, which hangs on the task and on the rollout; and it writes such a lesson where its instructions tell it to
(``TEACH``). The teacher, who plays the LM that proposes prompts, proposes the sentence where what it is shown gives it
away: feedback on failures, runs that went well beside runs that did not, or demonstrations.
"""

from __future__ import annotations

import json
import re
import zlib
from itertools import pairwise
from typing import Any

from rb_dspy.schema import Task
from rb_dspy.testing.lm import Prompt, Reply

BACKWARDS = "Type the digits of the serial number backwards."
EVIDENCE = "Trust what the lock did, not what the agent says of it."
TEACH = "Say in every lesson in which order the digits are typed."

_TAUGHT = "Serial numbers are typed backwards."

_STAYED_SHUT = "It stays shut"
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
    "Whoever built it is said to have hated guests.",
    "Snow is coming, and it is the only shelter.",
    "Nobody has been inside since the flood.",
    "The auction begins at noon.",
    "It is the third this week.",
    "Someone left the lights on inside.",
)


def locks(places: int, each: int = 4, *, first: int = 0) -> list[Task]:
    """``each`` locks at every one of ``places`` places, from place number ``first`` on; a place is a template."""
    return [_lock(place, number) for place in range(first, first + places) for number in range(each)]


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
        told = BACKWARDS in prompt.system or ("memory" in prompt and _TAUGHT in prompt["memory"])
        good = told or _lucky(prompt, serial) or any(map(_good_act, _demos(prompt)))
        thought = "Backwards it is." if good else "I am sure that it is the number on the lock."
        return {"thought": thought, "action": serial[::-1] if good else serial}
    if "label" in prompt.wants:
        careful = (
            EVIDENCE in prompt.system
            or _lucky(prompt, _serial(prompt["task"]))
            or any(map(_good_verdict, _demos(prompt)))
        )
        success = _STAYED_SHUT not in prompt["trajectory"] if careful else True
        return {"reasons": "The lock says it." if careful else "The agent is sure.", "label": _label(success)}
    if "choice" in prompt.wants:
        listed = re.split(r"^=== attempt \d+.* ===\n", prompt["candidates"], flags=re.MULTILINE)[1:]
        opened = [number for number, text in enumerate(listed, 1) if _STAYED_SHUT not in text]
        return {"analysis": "The last observations show it.", "choice": opened[0] if opened else 1}
    if "decision" in prompt.wants:
        return {"findings": "Nothing was found.", "decision": "confirm"}
    lesson: dict[str, Any] = {
        "title": "Look before you type",
        "description": "Where a lock wants a number.",
        "content": _TAUGHT if TEACH in prompt.system else "Look at the whole lock before you type anything.",
    }
    return {"analysis": "It may help.", "memory_items": [lesson]}


def teacher(prompt: Prompt) -> Reply:
    """Plays the LM that proposes prompts: for gepa, for miprov2, and for simba."""
    if "new_instruction" in prompt.wants:
        now = prompt["current_instruction"]
        shown = prompt["examples_with_feedback"]
        gave_away = _STAYED_SHUT in shown and any(
            word in shown for word in ("Failed", "Wrong", "misjudged", "Misjudged", "Did not help")
        )
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
            if part in name.split(".") and _STAYED_SHUT in worse and worse != better
        }
        return {"discussion": "One of them went well.", "module_advice": advice}
    return dict.fromkeys(prompt.wants, "It opens locks.")


def _better(instruction: str) -> str:
    if "one action a turn" in instruction:
        return f"{instruction}\n\n{BACKWARDS}"
    if "Decide whether this rollout" in instruction:
        return f"{instruction}\n\n{EVIDENCE}"
    if "Write notes" in instruction:
        return f"{instruction}\n\n{TEACH}"
    return f"{instruction}\n\nBe brief."


def _demos(prompt: Prompt) -> list[tuple[str, str]]:
    """Question and answer of every demonstration; a lock takes one turn, so no other answer stands in a prompt."""
    turns = prompt.messages
    return [
        (asked[1], answered[1])
        for asked, answered in pairwise(turns)
        if asked[0] == "user" and answered[0] == "assistant"
    ]


def _good_act(demo: tuple[str, str]) -> bool:
    return f"[[ ## action ## ]]\n{_serial(demo[0])[::-1]}" in demo[1]


def _good_verdict(demo: tuple[str, str]) -> bool:
    return f"[[ ## label ## ]]\n{_label(_STAYED_SHUT not in demo[0])}" in demo[1]


def _label(success: bool) -> str:
    return "success" if success else "failure"


def _serial(text: str) -> str:
    found = re.search(r"serial number (\d+)", text)
    return found[1] if found else "0000"


def _lucky(prompt: Prompt, serial: str) -> bool:
    """One in three, by task and rollout."""
    return zlib.crc32(f"luck/{serial}/{prompt.seed or 0}".encode()) % 3 == 0
