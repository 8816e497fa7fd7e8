"""Lessons that say nearly the same, for people to review.

Nothing is merged: to an embedder a negated lesson is nearer to the original than a paraphrase is.
"""

from __future__ import annotations

from numbers import Real

import numpy as np
import pydantic

from rb_dspy.bank.reading import items_of
from rb_dspy.bank.store.embedders import unpacked
from rb_dspy.bank.store.overlay import Reader, Scope
from rb_dspy.errors import InputError
from rb_dspy.schema import MemoryItem

MOST = 10_000
"""Maximum number of pairs returned; all pairs would grow with the square of the number of items."""

_BLOCK = 256
"""Rows compared with all others at once."""

_TOLERANCE = 1e-5
"""Vectors are stored in half precision, so equal texts may be this far from a cosine of 1."""


class NearDuplicate(pydantic.BaseModel):
    """Two items of a scope, and the cosine of their texts. ``first`` was learned first."""

    model_config = pydantic.ConfigDict(frozen=True)

    first: MemoryItem
    second: MemoryItem
    score: float


def near_duplicates(scope: Scope, reader: Reader, min_score: object) -> list[NearDuplicate]:
    """Pairs of live items of ``reader`` whose cosine is at least ``min_score``, nearest first, at most 10,000."""
    if not isinstance(min_score, Real) or not -1 <= float(min_score) <= 1:
        raise InputError(f"min_score {min_score!r:.40}: expected a cosine, -1 to 1")
    first: dict[str, int] = {}
    for item_row in reader.items():
        first.setdefault(item_row.id, item_row.seq)
    ids = {seq: id for id, seq in first.items()}
    rows = [row for row in scope.index_rows("item", after=0, upto=reader.mark()) if row.seq in ids]
    if not rows:
        return []
    vectors = unpacked([row.data for row in rows], len(rows[0].data) // 2)
    scores, pairs = np.empty(0, np.float32), np.empty((0, 2), np.intp)
    for start in range(0, len(rows), _BLOCK):
        block = np.clip(vectors[start : start + _BLOCK] @ vectors[start:].T, -1, 1)
        left, right = np.nonzero(block >= float(min_score) - _TOLERANCE)
        upper = left < right
        scores = np.concatenate([scores, block[left[upper], right[upper]]])
        pairs = np.concatenate([pairs, np.column_stack([left[upper], right[upper]]) + start])
        if len(scores) > MOST:
            order = np.argsort(-scores, kind="stable")[:MOST]
            scores, pairs = scores[order], pairs[order]
    order = np.argsort(-scores, kind="stable")
    items = items_of(reader, {ids[rows[place].seq] for pair in pairs for place in pair}, scope.name)
    return [
        NearDuplicate(
            first=items[ids[rows[left].seq]],
            second=items[ids[rows[right].seq]],
            score=round(float(score), 5),
        )
        for score, (left, right) in zip(scores[order], pairs[order], strict=True)
    ]
