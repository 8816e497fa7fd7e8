"""How many tasks were solved: one rule for runs, comparisons, compiles and their records.

A task that broke (its server, its environment or its scoring failed) counts as not solved, so that a program that
breaks on hard tasks does not look better than one that fails them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class Score(NamedTuple):
    """Solved tasks: ``6 of 8 solved, 2 broke``."""

    solved: int
    scored: int
    """Tasks that count."""
    broke: int
    """Of these, tasks that broke, which count as not solved."""

    @classmethod
    def of(cls, tasks: Iterable[tuple[bool | None, bool]]) -> Score:
        """The score of ``(solved, broke)`` of each task.

        Tasks without ground truth do not count. If no other task was done, one that broke tells nothing either.
        """
        every = list(tasks)
        broke = sum(each for _, each in every)
        known = [bool(solved) for solved, each in every if solved is not None and not each]
        if not known and broke < len(every):
            return cls(0, 0, 0)
        return cls(sum(known), len(known) + broke, broke)

    def __str__(self) -> str:
        broke = f", {self.broke} broke" if self.broke else ""
        return f"{self.solved} of {self.scored} solved{broke}" if self.scored else "no task was scored by ground truth"
