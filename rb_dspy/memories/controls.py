"""Controls of an evaluation, as memory systems: what the program's own memory is compared with.

Each changes one thing: what is shown (``none``, ``placebo``, ``shuffled``, ``oracle``), what is stored (``raw``), which
lessons count (``success_only``), or who says what succeeded (``true_verdicts``). What a control lacks is the program's
own, also if the program has another memory system.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

from rb_dspy.bank import MemoryBank
from rb_dspy.config import RetrieveConfig
from rb_dspy.errors import InputError
from rb_dspy.memories.recall import fitted, is_shown
from rb_dspy.memories.system import Attempt, Base, MemorySystem, Retrieval
from rb_dspy.schema import MemoryDraft, Task
from rb_dspy.steps import Distilled, Memory, Retrieve
from rb_dspy.steps.memory import render
from rb_dspy.steps.transcript import transcript

CASE_CHARACTERS = 2000
"""Longest case that ``raw`` stores: the limit of a lesson's content."""

_PAPER = "arXiv 2509.25140"
_CONTROL = "a control"
_TEXTS = ("title", "description", "content")
_LESSONS = "lessons from successes and failures"
_NEUTRAL = (
    "This is a neutral passage that stands in for a note and says nothing about the task at hand. The weather of a day"
    " has a morning and an afternoon, and both pass in their order. A river has two banks, and the water goes between"
    " them. "
)


def bank(base: Base) -> MemorySystem:  # noqa: ARG001 (the call shape of a factory, here and below)
    """The program's own memory, unchanged."""
    return MemorySystem(stores=_LESSONS, shows="the nearest lessons", source=_PAPER)


def none(base: Base) -> MemorySystem:  # noqa: ARG001
    """No memory."""
    return MemorySystem(
        stores="nothing",
        shows="nothing",
        source=_CONTROL,
        calls="0",
        retrieve=_show_nothing,
        teach=_learn_nothing,
        signal="none",
        learns=False,
    )


def oracle(base: Base) -> MemorySystem:
    """Right lessons, the nearest whatever their score: it is about lessons, not about search."""
    config, retrieve = getattr(base.retrieve, "config", None), None
    if isinstance(config, RetrieveConfig):
        floor = {"min_score": -1.0} if config.mode == "dense" else {}
        retrieve = Retrieve(config.model_copy(update=floor), getattr(base.retrieve, "reranker", None))
    return replace(
        none(base), shows="the nearest of lessons that somebody wrote", retrieve=retrieve, needs_lessons=True
    )


def placebo(base: Base) -> MemorySystem:
    """Is it the longer prompt?"""
    shows = "neutral text, as long as what the program would show"
    return MemorySystem(stores=_LESSONS, shows=shows, source=_CONTROL, retrieve=_neutral(base.retrieve))


def shuffled(base: Base) -> MemorySystem:
    """Does retrieval matter?"""
    shows, retrieve = "other lessons of the bank, as many as the program would show", _others(base)
    return MemorySystem(stores=_LESSONS, shows=shows, source=_CONTROL, retrieve=retrieve)


def raw(base: Base) -> MemorySystem:
    """Are lessons better than cases?"""
    config = getattr(base.retrieve, "config", None)
    if not isinstance(config, RetrieveConfig):
        raise _needs_retrieve("raw", base)
    return MemorySystem(
        stores=f"the steps and the verdict of each rollout, cut to {CASE_CHARACTERS:,} characters",
        shows="the nearest cases",
        source=_CONTROL,
        calls="0",
        retrieve=Retrieve(config.model_copy(update={"unit": "experience"}), getattr(base.retrieve, "reranker", None)),
        teach=_cases,
    )


def success_only(base: Base) -> MemorySystem:
    """What do failures teach?"""
    if not isinstance(base.retrieve, Retrieve):
        raise _needs_retrieve("success_only", base)
    config = base.retrieve.config.model_copy(update={"polarity": "success"})
    shows, retrieve = "the nearest lessons from successes", Retrieve(config, base.retrieve.reranker)
    return MemorySystem(stores=_LESSONS, shows=shows, source=_CONTROL, retrieve=retrieve)


def true_verdicts(base: Base) -> MemorySystem:  # noqa: ARG001
    """What does the judge cost? Outside of an evaluation, where nobody knows the truth, this is ``bank``."""
    return MemorySystem(stores=_LESSONS, shows="the nearest lessons", source=_CONTROL, signal="outcome", truth=True)


def _needs_retrieve(name: str, base: Base) -> InputError:
    found = type(base.retrieve).__qualname__
    return InputError(f"the memory {name!r} needs the step Retrieve, and this program has a {found}; leave it out")


def _show_nothing(task: Task, bank: MemoryBank, own_lessons: bool = False) -> Memory:  # noqa: ARG001
    return Memory()


def _learn_nothing(attempts: Sequence[Attempt], bank: MemoryBank) -> Distilled:  # noqa: ARG001
    return Distilled(note="nothing learned: a memory that stores nothing")


def _cases(attempts: Sequence[Attempt], bank: MemoryBank) -> Distilled:  # noqa: ARG001
    """Store the rollouts themselves, without a language model."""
    return Distilled(tuple(dict.fromkeys(map(_case, attempts))))


def _case(attempt: Attempt) -> MemoryDraft:
    judged = f"Judged: {attempt.verdict.label}"
    steps = transcript(attempt.trajectory, CASE_CHARACTERS // 4)[: CASE_CHARACTERS - len(judged) - 1]
    title = f"Earlier case: {attempt.task.instruction}"[:200]
    return MemoryDraft(title=title, description="", content=f"{steps}\n{judged}")


def _neutral(retrieve: Retrieval) -> Retrieval:
    def show(task: Task, bank: MemoryBank, own_lessons: bool = False) -> Memory:
        memory = retrieve(task, bank, own_lessons)
        blank = [{name: _filler(len(getattr(item, name))) for name in _TEXTS} for item in memory.items]
        block = render(item.model_copy(update=each) for item, each in zip(memory.items, blank, strict=True)).block
        most = max(len(memory.block), sum(len(part) for turn in memory.turns for part in turn))
        short = most - len(block) - 1
        block = _filler(most) if short < -1 else f"{block}\n{_filler(short)}" if short > 0 else block
        position = "first_turn" if memory.position == "messages" else memory.position
        return Memory(memory.retrieved, memory.items, block, position)

    return show


def _others(base: Base) -> Retrieval:
    def show(task: Task, bank: MemoryBank, own_lessons: bool = False) -> Memory:
        shown = {item.id for item in base.retrieve(task, bank, own_lessons).items}
        may = (item for item in bank.items() if is_shown(item) and not bank.is_from(item, task.id))
        others = [item for item in may if item.id not in shown]
        chosen = random.Random(f"{base.seed}\n{task.id}").sample(others, min(len(shown), len(others)))
        most = base.config.max_tokens
        return render(chosen, max_tokens=most) or fitted(chosen, (), most)

    return show


def _filler(length: int) -> str:
    """Neutral text of ``length`` characters, without a space at the end."""
    text = (_NEUTRAL * (length // len(_NEUTRAL) + 1))[:length]
    return f"{text[:-1]}." if text.endswith(" ") else text
