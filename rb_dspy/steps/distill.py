"""Distill: what does this rollout teach about other tasks?"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import dspy

from rb_dspy import signatures
from rb_dspy.config import DistillConfig
from rb_dspy.errors import UnparseableOutput
from rb_dspy.schema import MemoryDraft, Task, Trajectory, Verdict
from rb_dspy.steps.ask import Ask, Routine, adrive, drive
from rb_dspy.steps.view import view


@dataclass(frozen=True)
class Distilled:
    """The drafts that are proposed, and a note on why others, or all, are missing."""

    drafts: tuple[MemoryDraft, ...] = ()
    note: str = ""
    distiller: str = ""
    """The model that wrote the drafts."""


class Distill(dspy.Module):
    """Lessons from one rollout: why it worked, or what went wrong and how to prevent it (paper, section 3.2).

    Two predictors with distinct instructions, so that optimizers tell success and failure apart. Nothing is distilled
    from a verdict ``unknown`` unless configured. An answer that cannot be read after one repair gives no drafts but a
    note.
    """

    def __init__(self, config: DistillConfig | None = None) -> None:
        super().__init__()
        self.config = config or DistillConfig()
        self.success = dspy.Predict(signatures.DistillSuccess)
        self.failure = dspy.Predict(signatures.DistillFailure)

    def forward(self, task: Task, trajectory: Trajectory, verdict: Verdict, rollout: int = 0) -> Distilled:
        """At most ``max_items`` drafts that do not overlap."""
        return drive(self._routine(task, trajectory, verdict, rollout))

    async def aforward(self, task: Task, trajectory: Trajectory, verdict: Verdict, rollout: int = 0) -> Distilled:
        """``forward`` for asyncio."""
        return await adrive(self._routine(task, trajectory, verdict, rollout))

    def _routine(self, task: Task, trajectory: Trajectory, verdict: Verdict, rollout: int) -> Routine[Distilled]:
        if verdict.label == "unknown" and not self.config.distill_unknown:
            return Distilled(note="not distilled: the verdict is unknown")
        ask = Ask(
            role="distiller",
            predict=self.success if verdict.label == "success" else self.failure,
            inputs={
                "task": task.instruction,
                "trajectory": view(trajectory, self.config.view_tokens),
                "judge_reasons": verdict.reasons,
            },
            temperature=self.config.temperature,
            max_tokens=self.config.max_tokens,
            rollout=rollout,
        )
        try:
            said = yield ask
        except UnparseableOutput as exc:
            return Distilled(note=f"not distilled: {exc}")
        found = _admissible(said.memory_items, task, self.config.max_items)
        return replace(found, distiller=str(ask.lm().model))


def _admissible(drafts: list[MemoryDraft], task: Task, limit: int) -> Distilled:
    """The first ``limit`` drafts that say something, neither overlap with an earlier one nor quote the task.

    Models ignore both instructions often enough that code has to hold them.
    """
    kept: list[MemoryDraft] = []
    dropped: list[str] = []
    for draft in drafts:
        if not (draft.title and draft.content):
            dropped.append("one without title or content")
        elif any(_overlap(draft, other) for other in kept):
            dropped.append(f"{draft.title!r} overlaps with another")
        elif quoted := _quoted_literals(draft, task):
            dropped.append(f"{draft.title!r} quotes this task ({quoted})")
        elif len(kept) == limit:
            dropped.append(f"{draft.title!r} is beyond the limit of {limit}")
        else:
            kept.append(draft)
    note = f"dropped: {'; '.join(dropped)}" if dropped else "" if kept else "the distiller proposed nothing"
    return Distilled(tuple(kept), note)


def _overlap(one: MemoryDraft, other: MemoryDraft) -> bool:
    """Same title, or contents that share four fifths of their words."""
    if one.title.casefold() == other.title.casefold():
        return True
    a, b = (set(re.findall(r"\w+", text.casefold())) for text in (one.content, other.content))
    return bool(a and b) and len(a & b) / len(a | b) >= 0.8


def _quoted_literals(draft: MemoryDraft, task: Task) -> str:
    """Values of this one task that ``draft`` repeats: long numbers, addresses and quoted strings; empty if none."""
    text = f"{draft.title} {draft.description} {draft.content}"
    found = [number for number in re.findall(r"\d[\d.,]{2,}\d", task.instruction) if number in text]
    found += [link for link in re.findall(r"https?://\S+", task.instruction) if link in text]
    found += [
        q
        for q in re.findall(r"[\"“']([^\"”'\n]{6,80})[\"”']", task.instruction)
        if f'"{q}"' in text or f"'{q}'" in text
    ]
    return ", ".join(dict.fromkeys(found))[:80]
