"""Rows of a store in memory: born at a number, ended at another, and otherwise never changed."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import TypeVar

from rb_dspy.bank.parts import Giving, NewExperience, NewItem
from rb_dspy.schema import MemoryItem, Polarity, Provenance

FOREVER = 2**63 - 1
"""When a row that lives has ended."""


@dataclass(slots=True, eq=False)
class ItemRow:
    """A lesson as one experience gave it. ``vector`` is packed; None for a row of the store below, which has it."""

    seq: int
    new: NewItem
    polarity: Polarity
    provenance: Provenance
    experience: int
    """The number of the experience."""
    instruction: str
    """That of the experience's task."""
    vector: bytes | None = None
    ended: int = FOREVER

    def lives(self, at: int) -> bool:
        """Whether it is part of the state at ``at``."""
        return self.seq <= at < self.ended

    def giving(self) -> Giving:
        """What a store says of it while it lives."""
        return Giving(self.seq, self.new, self.polarity, self.provenance, self.experience, self.instruction)


@dataclass(slots=True, eq=False)
class ExperienceRow:
    """An experience, its vectors apart. ``rows`` are all item rows it ever had, by number."""

    seq: int
    new: NewExperience
    vector: bytes | None
    rows: list[ItemRow] = field(default_factory=list)
    ended: int = FOREVER
    unindexed: int = FOREVER
    """The number from which on it is not to be found any more."""

    def lives(self, at: int) -> bool:
        """Whether it is part of the state at ``at``."""
        return self.seq <= at < self.ended


def together(scope: str, rows: Sequence[ItemRow]) -> MemoryItem:
    """What the live rows with one id, one or more, in order, are together."""
    first = rows[0]
    return MemoryItem(
        id=first.new.id,
        scope=scope,
        seq=first.seq,
        title=first.new.title,
        description=first.new.description,
        content=first.new.content,
        polarity=first.polarity,
        provenances=tuple(row.provenance for row in rows),
    )


_number = attrgetter("seq")

_Row = TypeVar("_Row", ItemRow, ExperienceRow)


def place_after(rows: Sequence[ItemRow] | Sequence[ExperienceRow], seq: int) -> int:
    """The place of the first row, by number, that was born after ``seq``."""
    return bisect_right(rows, seq, key=_number)


def numbered(rows: Sequence[_Row], seq: int) -> _Row | None:
    """The row with this number; None where no row from here has it."""
    place = place_after(rows, seq) - 1
    return rows[place] if place >= 0 and rows[place].seq == seq else None
