"""A support desk, as a world for compiling: mail has to be put into queues, and the desk wants codes as answers.

The clerk, who plays all roles, knows the queue and now and then its code; told how codes are made (``CODES``) it knows
them all. As judge it believes what sounds right, unless it is told to look (``LOOK``). As the one who proposes prompts
it finds these sentences out where what it is shown tells of failures.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from rb_dspy.backbones import Backbones
from rb_dspy.config import BackboneConfig
from rb_dspy.testing import Prompt, Reply, scripted_lm
from rb_dspy.testing.lm import Script

CODES = "Answer with the queue's code: Q- and its name in capitals."
LOOK = "An answer that does not begin with Q- is a failure, however sure the clerk is."

MAIL = {
    "refund": "I was charged twice for order {n} and would like my money back before the end of the month.",
    "parcel": "The tracking page of shipment {n} has said 'in transit' for nine days now; where is my parcel?",
    "login": "Since yesterday your site tells me that account {n} does not exist, though I use it every day.",
    "invoice": "Our bookkeeper needs a corrected bill: on number {n} you wrote the old address of the company.",
    "cancel": "We are moving abroad in spring, so please end subscription {n} with the last day of March.",
    "damage": "The lamp from delivery {n} arrived with a broken shade, photos are attached to this message.",
    "voucher": "My gift card with the digits {n} is refused at the till in Leeds, although it is still valid.",
    "exchange": "These boots, article {n}, are one size too small; may I swap them for a pair in forty-three?",
    "warranty": "After fourteen months the battery of device {n} lasts ten minutes. Is that still covered?",
    "press": "For a feature on honest repair shops (ref {n}) I would love to interview one of your engineers.",
}


def write_tasks(path: Path, each: int = 4, *, queues: int = len(MAIL)) -> None:
    """``each`` mails of every queue, as JSON Lines."""
    lines = []
    for queue, text in list(MAIL.items())[:queues]:
        for number in range(each):
            instruction = f"{text.format(n=zlib.crc32(f'{queue}/{number}'.encode()) % 90_000 + 10_000)} Which queue?"
            task = {"id": f"{queue}/{number}", "instruction": instruction, "template": queue}
            lines.append(json.dumps({**task, "env_args": {"answer": f"Q-{queue.upper()}"}}))
    path.write_text("\n".join(lines) + "\n")


def clerk(prompt: Prompt) -> Reply:
    """Plays every role, that of who proposes prompts too."""
    if "action" in prompt.wants:
        queue = _queue(prompt["task"])
        knows = CODES in prompt.system or zlib.crc32(prompt["task"].encode()) % 4 == 0
        return {"thought": f"It is about a {queue}.", "action": f"Q-{queue.upper()}" if knows else queue}
    if "label" in prompt.wants:
        wrong = LOOK in prompt.system and "final answer: Q-" not in prompt["final_state"]
        return {
            "reasons": "It has no code." if wrong else "It sounds right.",
            "label": "failure" if wrong else "success",
        }
    if "new_instruction" in prompt.wants:
        now, shown = prompt["current_instruction"], prompt["examples_with_feedback"]
        failed = any(word in shown.casefold() for word in ("failed", "wrong", "misjudged", "not solved"))
        for begins, sentence in (("one action a turn", CODES), ("Decide whether this rollout", LOOK)):
            if failed and begins in now and sentence not in now:
                return {"new_instruction": f"{now}\n\n{sentence}"}
        return {"new_instruction": f"{now}\n\nBe brief."}
    if "choice" in prompt.wants:
        return {"analysis": "The first will do.", "choice": 1}
    lesson = {
        "title": "Read the mail twice",
        "description": "For mail of any kind.",
        "content": "The first line misleads.",
    }
    return {"analysis": "Hm.", "memory_items": [lesson]}


def deaf(prompt: Prompt) -> Reply:
    """A clerk whom no instruction reaches."""
    return clerk(replace(prompt, system=prompt.system.replace(CODES, "").replace(LOOK, "")))


def staffed(monkeypatch: pytest.MonkeyPatch, script: Script = clerk, **others: Script) -> None:
    """The command's language models are ``script``; ``others``: by model's name."""

    def from_settings(configs: Mapping[str, BackboneConfig]) -> Backbones:
        lms = {role: scripted_lm(others.get(each.model, script), model=each.model) for role, each in configs.items()}
        return Backbones(**lms)

    monkeypatch.setattr(Backbones, "from_settings", from_settings)


def _queue(task: str) -> str:
    return next(queue for queue, text in MAIL.items() if text.partition("{n}")[0] in task)
