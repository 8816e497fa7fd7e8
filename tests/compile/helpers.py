"""Compiles of programs at locks whose codes are their serials, by scripted models that a better prompt helps."""

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
from rb_dspy.testing import HashEmbedder, Prompt, Reply, lock, scripted_lm, toys
from rb_dspy.testing.locks import GUESS, MAKERS, attempts, lessons, worked

BACKWARDS = "Type the digits of the serial number backwards."
EVIDENCE = "Trust what the lock did, not what the agent says of it."
TEACH = "Say in every lesson in which order the digits are typed."


def program(lm: Any = None, **config: Any) -> ReasoningBank:
    backbones = Backbones(agent=lm or scripted_lm(apprentice))
    return ReasoningBank(ProgramConfig(**config), backbones=backbones, environments=toys)


def scaled(lm: Any = None, **options: Any) -> MaTTS:
    return MaTTS(program(lm), **{"k": 2, **options})


def locks(makers: int, each: int = 4, *, first: int = 0) -> tuple[Task, ...]:
    """``each`` locks of every maker, from number ``first`` on; their code is their serial, backwards."""
    found = []
    for maker in range(first, first + makers):
        name = MAKERS[maker % len(MAKERS)] + str(maker // len(MAKERS) or "")
        for number in range(each):
            serial = 1000 + zlib.crc32(f"{maker}/{number}".encode()) % 8999
            serial += str(serial) == str(serial)[::-1]
            found.append(lock(name, serial, str(serial)[::-1]))
    return tuple(found)


def streams(each: int = 4, held_out: int = 0) -> Streams:
    """``each`` locks of every maker, of which three are to compile on, two are dev, and three held out."""
    return Streams(
        TaskStream("to-compile", locks(3, each)),
        TaskStream("to-choose", locks(2, each, first=3)),
        TaskStream("held-out", locks(3, held_out or each, first=5)),
    )


def compiled(**options: Any) -> Compiled:
    defaults = {"embedder": HashEmbedder(), "reflection": scripted_lm(teacher), "budget": 40, "orders": 1}
    options = {"program": program(), "streams": streams(), **defaults, **options}
    return compile_program(options.pop("program"), options.pop("streams"), **options)


@functools.cache
def compiled_step(step: str) -> tuple[Compiled, list[Progress]]:
    """One compile of a step for all tests that only look at its result, and what it reported."""
    reports: list[Progress] = []
    return compiled(step=step, on_progress=reports.append), reports


def apprentice(prompt: Prompt) -> Reply:
    """Plays every role at ``locks``, and each the better, the better its prompt is.

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
