"""A picture of one scope's indexed rows that never changes, and the order in which a search gives them."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from rb_dspy.errors import InvalidVector
from rb_dspy.protocols import Vectors
from rb_dspy.schema import Polarity

TIE = 1e-5
"""Scores closer than this are equal: vectors are kept in half precision, and an embedder gives the same text slightly
other vectors in another batch."""

SPARE = 8
"""Rows fetched beyond what is asked for, to see whether the last one shares its score with others."""


class Hit(NamedTuple):
    """A ranked row."""

    seq: int
    score: float
    """More is better. Dense: cosine similarity, in [-1, 1]. Lexical: BM25, above 0. Fused: sum of reciprocal ranks."""


class Filter(NamedTuple):
    """What is left out before anything is ranked."""

    tasks: Collection[int] = ()
    """Rows of these task keys."""
    polarity: Polarity | None = None
    """None leaves out neither; else the rows of the other one."""
    hidden: Collection[int] = ()
    """These row numbers."""

    def __bool__(self) -> bool:
        """Whether it may leave out anything."""
        return bool(self.tasks) or self.polarity is not None or bool(self.hidden)


NO_FILTER = Filter()
"""Leaves out nothing."""


class Nearest(NamedTuple):
    """Rows, in no order: the nearest ones that were asked for, and every other that ties with the last of these."""

    scores: NDArray[np.float32]
    seqs: NDArray[np.int64]


class View(Protocol):
    """The rows of one unit in one scope as they were at ``mark``. Reading takes no lock and may run in any thread.

    A row is alive at ``mark`` when ``born <= mark < ended``. A view costs nothing to keep but the memory of its rows,
    which it shares with the views before and after it.
    """

    @property
    def dimension(self) -> int:
        """Of the vectors."""
        ...

    @property
    def mark(self) -> int:
        """The number that this is the state at."""
        ...

    def __len__(self) -> int:
        """How many rows are alive."""
        ...

    def allowed(self, seqs: Sequence[int], chosen: Filter = NO_FILTER) -> NDArray[np.bool_]:
        """For each row number, whether ``search`` could give it with this filter; shape ``(len(seqs),)``.

        False for numbers that are not in the view.
        """
        ...

    def at(self, mark: int) -> View:
        """The state at a number that is not after ``mark``; a later number gives this view itself."""
        ...

    def candidates(self, query: Vectors, k: int, chosen: Filter) -> Nearest:
        """What ``search`` ranks: ``query`` has been checked, and ``k`` is at least 1."""
        ...


def search(view: View, query: Vectors, k: int, chosen: Filter = NO_FILTER, min_score: float | None = None) -> list[Hit]:
    """The ``k`` live rows nearest to ``query``, a unit float32 vector of shape ``(dimension,)``.

    What is left out takes nobody's place: there are fewer than ``k`` hits only where no more rows are left, or none
    scores ``min_score`` (applied to within ``TIE``). Best first, the newest first among equals. Raises
    ``InvalidVector`` for a query that is not finite or of another dimension.
    """
    query = checked_query(query, view.dimension)
    return ranked(view.candidates(query, k, chosen), k, min_score) if k > 0 else []


def checked_query(query: Vectors, dimension: int) -> Vectors:
    """``query`` as contiguous float32. Raises ``InvalidVector`` where it cannot be searched for."""
    if query.shape != (dimension,):
        raise InvalidVector(
            f"a query vector has shape {query.shape}; expected ({dimension},): embed with this bank's embedder"
        )
    query = np.ascontiguousarray(query, dtype=np.float32)
    if not math.isfinite(query.dot(query)):
        raise InvalidVector("a query vector has values that are not finite; expected a unit vector: check the embedder")
    return query


def ranked(found: Nearest, k: int, min_score: float | None = None) -> list[Hit]:
    """The ``k`` best of ``found``, best first, each run of equal scores (within ``TIE``) with the newest first."""
    pairs = sorted(zip(found.scores.tolist(), found.seqs.tolist(), strict=True), reverse=True)
    floor = -2.0 if min_score is None else min_score - TIE
    hits: list[Hit] = []
    start = 0
    while start < len(pairs) and len(hits) < k:
        end, best = start + 1, pairs[start][0]
        while end < len(pairs) and best - pairs[end][0] <= TIE:
            end += 1
        run = pairs[start:end]
        if len(run) > 1:
            run.sort(key=_newest)
        for score, seq in run:
            if score >= floor:
                hits.append(Hit(seq, min(1.0, max(-1.0, score))))
        start = end
    return hits[:k]


def _newest(pair: tuple[float, int]) -> int:
    return -pair[1]


def merged(parts: Iterable[Nearest]) -> Nearest:
    """The candidates of several sets of rows as those of all of them."""
    kept = [part for part in parts if len(part.seqs)]
    if len(kept) == 1:
        return kept[0]
    if not kept:
        return Nearest(np.empty(0, np.float32), np.empty(0, np.int64))
    return Nearest(np.concatenate([part.scores for part in kept]), np.concatenate([part.seqs for part in kept]))
