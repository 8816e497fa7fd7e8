"""Why tasks have to stay together in one part of a split, and what helps, in the words of whoever split them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rb_dspy.schema import Task
from rb_dspy.stream.alike import ALIKE, only_numbers_differ, similarity
from rb_dspy.wording import counted

_SHOWN = 60
"""Characters of a task's text that are told: enough to know it by."""


@dataclass(frozen=True)
class Remedies:
    """What helps where tasks cannot be kept apart, as whoever asked would write it."""

    split: str
    """Where a stream cannot be split."""
    parts: str
    """Where parts that were given have something in common."""


IN_PYTHON = Remedies(
    split="give check=False to keep only templates apart",
    parts="split_streams keeps such tasks together; or give check=False",
)


def too_few(name: str, tasks: Sequence[Task], groups: int, glued: tuple[int, int] | None, remedies: Remedies) -> str:
    """What to say where ``tasks`` fall into fewer ``groups`` than a split has parts; ``glued``: two near-duplicates
    among them that had to be put into one, by their positions; None: none had to."""
    what = f"{name}: {counted(len(tasks), 'task')}, but {counted(groups, 'group')} of tasks that must stay together"
    if glued is None:
        return f"{what}; expected at least 3, one for each split: add tasks of other templates"
    one, other = tasks[glued[0]], tasks[glued[1]]
    pair = f"{_told(one)} and {_told(other)}"
    if only_numbers_differ(one, other):
        why = f"near-duplicates: {pair} differ in numbers only"
        helps = "add tasks that differ more, name the kind of each as its template"
    else:
        why = f"near-duplicates: {pair} have a similarity of {similarity(one, other):.2f}, and from {ALIKE:.2f} on"
        why += " tasks stay together, whatever their templates"
        helps = "add tasks that differ more, leave out of their texts what many of them say"
    return f"{what}, since there are {why}; expected at least 3, one for each split: {helps}, or {remedies.split}"


def _told(task: Task) -> str:
    text = " ".join(task.instruction.split())
    return f"{task.id!r} ({text if len(text) <= _SHOWN else f'{text[: _SHOWN - 1]}…'!r})"
