"""New vectors for all rows in memory: made aside, then put in the old ones' place at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from rb_dspy.bank import vectors
from rb_dspy.bank.memory import indexed
from rb_dspy.bank.memory.rows import FOREVER
from rb_dspy.bank.memory.timeline import Timeline
from rb_dspy.bank.parts import UNITS, Unit
from rb_dspy.protocols import Vectors

Unembedded = tuple[str, Unit, int, str]
"""Scope, unit, number and text of a row that has no new vector yet."""

_BATCH = 500
"""Texts that are embedded at once."""


class Reindexing:
    """One re-index of all scopes. ``missing`` and ``put`` need the store's lock; ``make``, which takes long, none."""

    def __init__(
        self,
        timelines: Mapping[str, Timeline],
        embedder: tuple[str, int],
        embed: Callable[[Sequence[str]], Vectors],
    ) -> None:
        self._timelines = timelines
        self._embedder = embedder
        self._embed = embed
        self._made: dict[tuple[str, Unit, int], bytes] = {}

    def missing(self) -> list[Unembedded]:
        """What there is to make; more may have come when it is asked for again."""
        return [
            (scope, unit, seq, text)
            for scope, timeline in self._timelines.items()
            for unit in UNITS
            for seq, text in indexed.texts(timeline, unit, after=0, limit=FOREVER)
            if (scope, unit, seq) not in self._made
        ]

    def make(self, missing: Sequence[Unembedded]) -> None:
        """Make the vectors of these rows."""
        for start in range(0, len(missing), _BATCH):
            page = missing[start : start + _BATCH]
            rows = [vectors.packed(row) for row in self._embed([text for *_, text in page])]
            vectors.check_lengths(set(map(len, rows)), self._embedder, ":memory:")
            for (scope, unit, seq, _), row in zip(page, rows, strict=True):
                self._made[scope, unit, seq] = row

    def put(self) -> int:
        """Put what was made in its place; how many that were."""
        for (scope, unit, seq), vector in self._made.items():
            indexed.replace_vector(self._timelines[scope], unit, seq, vector)
        return len(self._made)
