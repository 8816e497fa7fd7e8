"""Exact nearest neighbours by inner product, over blocks of float32 rows that grow without moving.

FAISS crashes when a search meets an add, so rows are written behind what is published, and what is published never
changes. Blocks of a fixed size: growing copies no more than one block, and views of different ages share all others.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rb_dspy.bank.index.engine import faiss, one_thread, selector
from rb_dspy.bank.index.view import SPARE, TIE
from rb_dspy.protocols import Vectors

BLOCK = 1 << 16
"""Rows of a block: 100 MB at 384 dimensions. Searching one more block costs some 10 microseconds."""

_FIRST = 16
"""Rows that the first block begins with; it doubles until it is full."""

_LINE = 16
"""Floats of a cache line."""

_ROUNDING = 1e-6
"""Two ways to compute the same inner product of unit rows differ by less."""


@dataclass(frozen=True, slots=True)
class ExactRows:
    """Rows ``start`` to ``stop`` of an index, unit float32 vectors.

    ``after`` may be called by one thread at a time, and only on the newest; ``nearest`` by any thread.
    """

    start: int
    stop: int
    blocks: tuple[Vectors, ...]
    """All are full, with ``block`` rows, but the last."""
    dimension: int
    block: int = BLOCK

    def after(self, vectors: Vectors) -> ExactRows:
        """These rows and then ``vectors``; what is shared with the rows before does not change."""
        blocks = list(self.blocks)
        done, used = 0, self.stop - self.start
        while done < len(vectors):
            full, inside = divmod(used, self.block)
            if full == len(blocks):
                first = self.block if full else min(self.block, max(_FIRST, len(vectors)))
                blocks.append(_room(first, self.dimension))
            here = min(len(vectors) - done, self.block - inside)
            if inside + here > len(blocks[full]):
                capacity = min(self.block, max(inside + here, 2 * len(blocks[full])))
                grown = _room(capacity, self.dimension)
                grown[:inside] = blocks[full][:inside]
                blocks[full] = grown
            blocks[full][inside : inside + here] = vectors[done : done + here]
            done += here
            used += here
        return ExactRows(self.start, self.start + used, tuple(blocks), self.dimension, self.block)

    def before(self, stop: int) -> ExactRows:
        """The rows up to ``stop``."""
        stop = min(self.stop, max(self.start, stop))
        kept = -(-(stop - self.start) // self.block)
        return ExactRows(self.start, stop, self.blocks[:kept], self.dimension, self.block)

    def since(self, start: int) -> ExactRows:
        """A copy of the rows from ``start`` on."""
        empty = ExactRows(start, start, (), self.dimension, self.block)
        for at, rows in self.parts():
            if at + len(rows) > start:
                empty = empty.after(rows[max(0, start - at) :])
        return empty

    def parts(self) -> list[tuple[int, Vectors]]:
        """The rows, block by block, each with the number of its first row."""
        firsts = range(self.start, self.stop, self.block)
        return [(first, rows[: self.stop - first]) for first, rows in zip(firsts, self.blocks, strict=True)]

    def nearest(
        self, query: Vectors, k: int, mask: NDArray[np.bool_] | None
    ) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Scores and rows of the ``k`` nearest and of all that tie with the last of these, in no order.

        ``mask``, shape ``(stop - start,)``: which rows may be found; None, all.
        """
        found = []
        with one_thread():
            for first, rows in self.parts():
                chosen = None if mask is None else mask[first - self.start : first - self.start + len(rows)]
                scores, places = _nearest(query, rows, k, chosen)
                found.append((scores, places + first))
        if len(found) == 1:
            return found[0]
        if not found:
            return np.empty(0, np.float32), np.empty(0, np.int64)
        return np.concatenate([scores for scores, _ in found]), np.concatenate([rows for _, rows in found])


def _room(rows: int, dimension: int) -> Vectors:
    """Space for rows that begins with a cache line: one that does not made searches a third slower."""
    memory = np.empty(rows * dimension + _LINE, np.float32)
    skipped = -memory.ctypes.data // 4 % _LINE
    return memory[skipped : skipped + rows * dimension].reshape(rows, dimension)


def _nearest(
    query: Vectors, rows: Vectors, k: int, mask: NDArray[np.bool_] | None
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    possible = len(rows) if mask is None else int(np.count_nonzero(mask))
    wanted = min(k, possible)
    fetch = min(wanted + SPARE, possible)
    if wanted <= 0:
        return np.empty(0, np.float32), np.empty(0, np.int64)
    chosen = selector(mask) if mask is not None and possible < len(rows) else None
    engine = faiss()
    scores, places = np.empty(fetch, np.float32), np.empty(fetch, np.int64)
    pointer, dimension = engine.swig_ptr, rows.shape[1]
    engine.knn_inner_product(
        pointer(query), pointer(rows), dimension, 1, len(rows), fetch, pointer(scores), pointer(places), chosen
    )
    last = scores[wanted - 1] - TIE - _ROUNDING
    if fetch == possible or scores[-1] < last:
        return scores, places
    # The last place is shared by more than were fetched: take all down to there.
    result = engine.RangeSearchResult(1)
    engine.range_search_inner_product(
        pointer(query), pointer(rows), dimension, 1, len(rows), float(last), result, chosen
    )
    count = int(engine.rev_swig_ptr(result.lims, 2)[1])
    return engine.rev_swig_ptr(result.distances, count).copy(), engine.rev_swig_ptr(result.labels, count).copy()
