"""Lessons that say nearly the same, for people to look at.

Nothing is merged: to an embedder a negated lesson is nearer to the original than a paraphrase is.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pydantic
from numpy.typing import NDArray

from rb_dspy.bank.interface import BankStore
from rb_dspy.errors import InputError
from rb_dspy.protocols import Vectors
from rb_dspy.schema import MemoryItem

MOST = 10_000
"""Pairs that are given; the number of all can be the square of the number of items."""

_ROWS = 8192
"""Rows of one read; two of them are in memory at a time."""

_BLOCK = 256
"""Rows that are compared with those of a read at once: 8 MB of scores."""

_TOLERANCE = 1e-5
"""Vectors are kept in half precision, so equal texts may be this far from a cosine of 1."""


class NearDuplicate(pydantic.BaseModel):
    """Two items of a scope, and the cosine of their texts. ``first`` is the one that came first."""

    model_config = pydantic.ConfigDict(frozen=True)

    first: MemoryItem
    second: MemoryItem
    score: float


class _Read(NamedTuple):
    """Where a page of rows begins, and the rows that stand for an item, in ascending order."""

    store: BankStore
    after: int
    wanted: NDArray[np.int64]


class _Pairs(NamedTuple):
    scores: NDArray[np.float32]
    seqs: NDArray[np.int64]
    """Shape ``(n, 2)``."""

    def nearest(self) -> _Pairs:
        """At most ``MOST`` of them, in no order; of equal ones those that came first."""
        order = np.lexsort((self.seqs[:, 1], self.seqs[:, 0], -self.scores))[:MOST]
        return _Pairs(self.scores[order], self.seqs[order])


def near_duplicates(store: BankStore, scope: str, min_score: float) -> list[NearDuplicate]:
    """Pairs of items whose cosine is at least ``min_score`` (to within 1e-5), nearest first, then by their ids.

    Every item is compared with every other, once: some seconds for 10,000, a hundred times that for ten times as many.
    Of more than ``MOST`` pairs the nearest are given. Raises ``InputError`` for a score that is not in [-1, 1].
    """
    if not isinstance(min_score, int | float | np.floating) or not -1 <= min_score <= 1:  # True for NaN
        raise InputError(f"min_score {repr(min_score)[:40]}: expected a cosine, from -1 to 1")
    items = {item.seq: item for item in store.items(scope)}
    found = _pairs(store, scope, np.array(sorted(items), np.int64), min_score - _TOLERANCE)
    pairs = [
        NearDuplicate(first=items[first], second=items[second], score=min(1.0, max(-1.0, score)))
        for score, (first, second) in zip(found.scores.tolist(), found.seqs.tolist(), strict=True)
    ]
    return sorted(pairs, key=lambda pair: (-pair.score, pair.first.id, pair.second.id))


def _pairs(store: BankStore, scope: str, wanted: NDArray[np.int64], floor: float) -> _Pairs:
    kept = _Pairs(np.empty(0, np.float32), np.empty((0, 2), np.int64))
    reads = list(_reads(store, scope, wanted))
    for number, read in enumerate(reads):
        seqs, rows = _page(read, scope)
        for other in reads[number:]:
            other_seqs, other_rows = (seqs, rows) if other is read else _page(other, scope)
            for start in range(0, len(seqs), _BLOCK):
                first = start if other is read else 0  # those before were compared with these already
                scores = rows[start : start + _BLOCK] @ other_rows[first:].T
                one, two = np.nonzero(scores >= floor)
                once = one < two if other is read else np.ones(len(one), np.bool_)
                pairs = np.stack([seqs[start + one[once]], other_seqs[first + two[once]]], axis=1)
                new = _Pairs(scores[one, two][once], np.sort(pairs, axis=1))
                kept = _Pairs(np.concatenate([kept.scores, new.scores]), np.concatenate([kept.seqs, new.seqs]))
                if len(kept.scores) > MOST:
                    kept = kept.nearest()
                    floor = float(kept.scores.min())
    return kept


def _reads(store: BankStore, scope: str, wanted: NDArray[np.int64]) -> Iterator[_Read]:
    """Where to find rows. ``changes`` of an overlay gives its own, so the others are looked for in its base."""
    after, more = 0, True
    while more:
        changes = store.changes(scope, "item", after=after, limit=_ROWS)
        if np.isin(changes.added.seqs, wanted).any():
            yield _Read(store, after, wanted)
        # A number that was used here means another row in a base that went on.
        wanted = np.setdiff1d(wanted, changes.added.seqs)
        after, more = changes.mark, changes.more
    if store.base is not None and len(wanted):
        yield from _reads(store.base, scope, wanted)


def _page(read: _Read, scope: str) -> tuple[NDArray[np.int64], Vectors]:
    """The rows of a page that stand for an item: its earliest, so that its other rows make no pair with it."""
    added = read.store.changes(scope, "item", after=read.after, limit=_ROWS).added
    chosen = np.isin(added.seqs, read.wanted)
    return added.seqs[chosen], added.vectors[chosen]
