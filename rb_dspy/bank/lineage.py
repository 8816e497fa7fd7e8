"""What an item was learned from beside its own experience: other tasks that it lists, and items that it replaced."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from typing import Any

from rb_dspy.bank.store.base import ExperienceRow, ItemRow
from rb_dspy.bank.store.overlay import Reader
from rb_dspy.schema import EVERY, MemoryItem


def lists(item: MemoryItem, task_id: str, *, known: bool) -> bool:
    """Whether an item lists a task that it was learned from; ``known``: the bank has learned from it."""
    tasks = item.data.get("tasks")
    return known if tasks == EVERY else isinstance(tasks, list) and task_id in tasks


def has_learned(reader: Reader, task_id: str) -> bool:
    """Whether anything was ever learned from a task: what was written from all tasks may hold it still."""
    return bool(reader.experiences(task_id=task_id, ended=True))


def viewers(reader: Reader, shown: Collection[str]) -> set[int]:
    """Experiences whose agents were shown one of these items or experiences."""
    return {use.experience for use in reader.uses(subjects=shown)}


def takers(reader: Reader, items: Collection[str]) -> set[int]:
    """Experiences that retired one of these items: what they gave may say the same in other words."""
    seqs = {entry.seq for entry in reader.journal(subjects=items, kinds=["retire"])}
    ids = {entry.subject for entry in reader.journal(seqs=seqs) if entry.kind == "append"}
    return {row.seq for row in reader.experiences(ids=ids, ended=True)}


class Listing:
    """The items of a bank that list tasks which they were learned from."""

    def __init__(self, reader: Reader) -> None:
        every = reader.tally("items", ["learned", "seq", "experience", "data"], ended=True)
        self._of: dict[str, list[tuple[int, int, int]]] = {}
        for learned, seq, experience, data in every:
            for task in _listed(data):
                self._of.setdefault(task, []).append((learned, seq, experience))

    def rows(self, experiences: Iterable[ExperienceRow]) -> dict[int, int]:
        """The number of each row that was learned from one of these, later than it -> the number of its experience."""
        found: dict[int, int] = {}
        for row in experiences:
            every = (*self._of.get(row.task_id, ()), *self._of.get(EVERY, ()))
            found |= {seq: giver for learned, seq, giver in every if learned > row.seq}
        return found


def replacing(reader: Reader, items: Collection[ItemRow]) -> list[ItemRow]:
    """The rows of items that were written from ``items``, or from what was written from these.

    They list a task of theirs, and belong to an experience that retired one.
    """
    listing, found, new = Listing(reader), dict[int, ItemRow](), [*items]
    while new:
        givers = takers(reader, {row.id for row in new})
        listed = listing.rows(reader.experiences(seqs={row.experience for row in new}, ended=True))
        seqs = {seq for seq, giver in listed.items() if giver in givers} - found.keys()
        new = reader.items(seqs=seqs, ended=True)
        found |= {row.seq: row for row in new}
    return [*found.values()]


def _listed(data: str) -> list[str]:
    if '"tasks"' not in data:
        return []
    tasks: Any = json.loads(data).get("tasks")
    return [EVERY] if tasks == EVERY else [str(each) for each in tasks] if isinstance(tasks, list) else []
