"""Which of a model's drafts are fit for a bank."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from rb_dspy.schema import MemoryDraft, Task

_NUMBER = re.compile(r"(?<![\w.,])\d{2,}(?:[.,]\d+)*(?![\w])")
"""A number of two digits or more. One of them may be anybody's; two of a task's are hardly a coincidence."""


Unfit = Literal["empty", "overlap", "quote", "surplus", "groundless", "retracted"]
"""Why a draft is dropped: no title or no content; much the same as another; values of its one task in it; beyond the
limit; no rollout is named that shows it; somebody took this very text away from the bank that it was for."""


@dataclass(frozen=True)
class Distilled:
    """The drafts that are proposed, and a note on why others, or all, are missing."""

    drafts: tuple[MemoryDraft, ...] = ()
    note: str = ""
    distiller: str = ""
    """The model that wrote the drafts."""
    dropped: tuple[Unfit, ...] = ()
    """For each draft that it wrote, and that is not among these, why."""


def admissible(drafts: Sequence[MemoryDraft], task: Task, limit: int) -> Distilled:
    """The first ``limit`` drafts that say something, neither overlap with an earlier one nor quote the task.

    Models ignore both instructions often enough that code has to hold them.
    """
    kept: list[MemoryDraft] = []
    dropped: list[tuple[Unfit, str]] = []
    for draft in drafts:
        if not (draft.title and draft.content):
            dropped.append(("empty", "one without title or content"))
        elif any(_overlap(draft, other) for other in kept):
            dropped.append(("overlap", f"{draft.title!r} overlaps with another"))
        elif quoted := _quoted_literals(draft, task):
            dropped.append(("quote", f"{draft.title!r} quotes this task ({quoted})"))
        elif len(kept) == limit:
            dropped.append(("surplus", f"{draft.title!r} is beyond the limit of {limit}"))
        else:
            kept.append(draft)
    told = "; ".join(what for _, what in dropped)
    note = f"dropped: {told}" if dropped else "" if kept else "the distiller proposed nothing"
    return Distilled(tuple(kept), note, dropped=tuple(why for why, _ in dropped))


def _overlap(one: MemoryDraft, other: MemoryDraft) -> bool:
    """Same title, or contents that share four fifths of their words."""
    if one.title.casefold() == other.title.casefold():
        return True
    a, b = (set(re.findall(r"\w+", text.casefold())) for text in (one.content, other.content))
    return bool(a and b) and len(a & b) / len(a | b) >= 0.8


def _quoted_literals(draft: MemoryDraft, task: Task) -> str:
    """Values of this one task that ``draft`` repeats: long numbers, several of any length but one digit, addresses and
    quoted strings; empty if none.
    """
    text = f"{draft.title} {draft.description} {draft.content}"
    found = [number for number in re.findall(r"\d[\d.,]{2,}\d", task.instruction) if number in text]
    told = set(_NUMBER.findall(text))
    several = [number for number in dict.fromkeys(_NUMBER.findall(task.instruction)) if number in told]
    found += several if len(several) > 1 else []
    found += [link for link in re.findall(r"https?://\S+", task.instruction) if link in text]
    found += [
        q
        for q in re.findall(r"[\"“']([^\"”'\n]{6,80})[\"”']", task.instruction)
        if f'"{q}"' in text or f"'{q}'" in text
    ]
    return ", ".join(dict.fromkeys(found))[:80]
