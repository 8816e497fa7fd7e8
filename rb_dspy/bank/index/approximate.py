"""Approximate nearest neighbours over rows that never change: inverted lists of half-precision vectors (FAISS).

Chosen by measurement (``experiments/bank/recall.py``). At a million rows, lists of 8-bit codes are not faster on one
thread, find less, and need the rows beside them to rank again; a graph (facts: stores) takes ten times as long to build
and twice the memory. Half precision is what the store keeps, so that scores are those of exact search.

What is found rests on texts lying in clusters, as embedded text does: recall@5 is 0.99 and more then. On vectors
without any structure, drawn at random, it is 0.25.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rb_dspy.bank.index.engine import faiss, one_thread, selector
from rb_dspy.bank.index.exact import ExactRows
from rb_dspy.bank.index.view import SPARE, TIE
from rb_dspy.protocols import Vectors

PROBED = 1 / 25
"""Share of the lists that a search reads, and ``AT_LEAST`` so many: what recall and time rest on."""
AT_LEAST = 40

_FURTHER = 8
"""How many times as many lists are read at most because the nearest rows are left out."""

_SAMPLE = 64
"""Rows a list that its centre is found with, and rounds of looking for it."""
_ROUNDS = 8

_CHUNK = 20_000
"""Rows that are held in single precision at once while an index is built."""

_ROUNDING = 5e-4
"""How far a score from half-precision codes, whose length is not quite 1, may be from the cosine: so far for rows with
few values that are not zero, a twentieth of it for embedded text."""

Allowed = Callable[[slice | NDArray[np.int64]], NDArray[np.bool_]]
"""Which rows of an index may be found."""


class ApproximateRows:
    """Rows ``start`` to ``stop`` of an index. Immutable; searched by any thread."""

    def __init__(self, start: int, index: Any) -> None:
        """``index``: what ``build`` made, or what was read from a file of it."""
        self.start = start
        self.stop = start + int(index.ntotal)
        self.index = index
        self._all_lists = int(index.nlist)
        self.exact = self._all_lists == 1
        """Whether all rows are read in every search: then nothing is missed."""
        if index.direct_map.array.size() != index.ntotal:
            index.make_direct_map()
        self._lengths = np.concatenate([_lengths(rows) for rows in self.vectors()]) if self.exact else None
        """Lengths of the rows as they are kept, where there are few enough of them."""

    def nearest(
        self, query: Vectors, k: int, allowed: Allowed | None, size: int
    ) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Scores and rows of the ``k`` nearest and of all that tie with the last of these, in no order.

        Only rows before ``size`` that are ``allowed``; None, all. Approximate in that near rows can be missed (see
        ``recall.py``), but neither few allowed rows nor a large ``k`` leaves a place empty: lists are read until ``k``
        rows are found, all if need be.
        """
        wanted, stop = min(k, min(self.stop, size) - self.start), min(self.stop, size)
        if wanted <= 0:
            return np.empty(0, np.float32), np.empty(0, np.int64)
        with one_thread():
            if allowed is None and stop == self.stop:
                return self._scored(query, *self._found(query, None, wanted, self.stop - self.start))
            # Most filters leave out little, and looking at some candidates is much cheaper than at all rows.
            fetch = min(4 * wanted + 6 * SPARE, self.stop - self.start)
            scores, rows = self._probe(query, fetch, self._lists(fetch, self.stop - self.start), None)
            kept = (rows >= 0) & (rows < stop - self.start)
            if allowed is not None:
                kept[kept] = allowed(rows[kept] + self.start)
            if np.count_nonzero(kept) >= wanted and scores.item(-1) < (least := _least(scores[kept], wanted)):
                kept &= scores >= least
                return self._scored(query, scores[kept], rows[kept])
            mask = np.zeros(self.stop - self.start, np.bool_)
            mask[: stop - self.start] = True if allowed is None else allowed(slice(self.start, stop))
            possible = int(np.count_nonzero(mask))
            if not possible:
                return np.empty(0, np.float32), np.empty(0, np.int64)
            # Where what is left out lies about the query, what is left lies further away than the usual lists.
            further = min(_FURTHER, len(kept) / (1 + np.count_nonzero(kept)))
            return self._scored(query, *self._found(query, mask, min(k, possible), possible, further))

    def vectors(self) -> Iterator[Vectors]:
        """All rows in order, in pieces; half precision, so not quite of length 1."""
        for first in range(0, self.stop - self.start, _CHUNK):
            yield self.rows(np.arange(first, min(first + _CHUNK, self.stop - self.start)))

    def rows(self, places: NDArray[np.int64]) -> Vectors:
        """The rows at ``places``, counted from ``start``; as ``vectors``."""
        return np.asarray(self.index.reconstruct_batch(places), np.float32)

    def _lists(self, fetch: int, possible: int) -> int:
        """How many lists to read for ``fetch`` rows, where ``possible`` of the rows may be found."""
        if self.exact:
            return 1
        lists = self._all_lists
        usual = max(AT_LEAST, lists * PROBED, lists * 8 * fetch / (self.stop - self.start))
        return min(lists, math.ceil(usual * (self.stop - self.start) / possible))

    def _found(
        self, query: Vectors, mask: NDArray[np.bool_] | None, wanted: int, possible: int, further: float = 1
    ) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Products with, and places of, the ``wanted`` nearest and what ties with the last of these."""
        fetch = min(wanted + 2 * SPARE, possible)
        lists = min(self._all_lists, math.ceil(further * self._lists(fetch, possible)))
        while True:
            scores, rows = self._probe(query, fetch, lists, mask)
            if rows.item(wanted - 1) >= 0:
                # A missing row's product is less than any.
                near = int(np.count_nonzero(scores >= _least(scores, wanted)))
                if near < fetch or fetch == possible:
                    return scores[:near], rows[:near]
                fetch = min(possible, 8 * fetch)
            else:
                lists = min(self._all_lists, 4 * lists)

    def _probe(
        self, query: Vectors, fetch: int, lists: int, mask: NDArray[np.bool_] | None
    ) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        parameters = None
        if mask is not None or lists > 1:
            chosen = None if mask is None else selector(mask)
            parameters = faiss().SearchParametersIVF(nprobe=lists, sel=chosen)
        # ``search`` does the same and checks what it is given once more.
        scores, rows = np.empty(fetch, np.float32), np.empty(fetch, np.int64)
        pointer = faiss().swig_ptr
        self.index.search_c(1, pointer(query), fetch, pointer(scores), pointer(rows), parameters)
        return scores, rows

    def _scored(
        self, query: Vectors, products: NDArray[np.float32], places: NDArray[np.int64]
    ) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Cosines, as exact search would give them."""
        if self._lengths is not None:
            return products / self._lengths[places], places + self.start
        rows = self.rows(places)
        return (rows @ query) / _lengths(rows), places + self.start


def _lengths(rows: Vectors) -> NDArray[np.float32]:
    lengths: NDArray[np.float32] = np.sqrt(np.einsum("ij,ij->i", rows, rows))
    return lengths


def build(
    parts: Sequence[ApproximateRows],
    tail: ExactRows,
    stopped: Callable[[], bool] = lambda: False,
    *,
    exact: bool = False,
) -> ApproximateRows | None:
    """One part of the rows of ``parts``, which follow on each other, and of ``tail``, which follows on these.

    ``exact``: in one list, for so few rows that all of them can be read. Deterministic. One thread, the interpreter
    free for others; needs memory for the new part and 64 rows a list. None when ``stopped``, which is asked about once
    a second, says so.
    """
    engine = faiss()
    start = parts[0].start if parts else tail.start
    count, dimension = tail.stop - start, tail.dimension
    lists = 1 if exact else max(1, math.isqrt(count))
    with one_thread():
        chosen = np.random.default_rng(0).choice(count, min(count, _SAMPLE * lists), replace=False)
        sample = _sample(parts, tail, np.sort(chosen) + start)
        quantizer = engine.IndexFlatIP(dimension)
        clustering = engine.Clustering(dimension, lists)
        clustering.niter, clustering.spherical, clustering.min_points_per_centroid = 1, True, 1
        for _ in range(_ROUNDS):  # each goes on from the centres that the one before found
            if stopped():
                return None
            clustering.train(sample, quantizer)
        index = engine.IndexIVFScalarQuantizer(
            quantizer, dimension, lists, engine.ScalarQuantizer.QT_fp16, engine.METRIC_INNER_PRODUCT, False
        )
        index.train(sample[:1])  # nothing is left to learn, but to say so
        for rows in _pieces(parts, tail):
            if stopped():
                return None
            index.add(rows)
    return ApproximateRows(start, index)


def _pieces(parts: Sequence[ApproximateRows], tail: ExactRows) -> Iterator[Vectors]:
    for part in parts:
        yield from part.vectors()
    for _, rows in tail.parts():
        for first in range(0, len(rows), _CHUNK):
            yield rows[first : first + _CHUNK]


def _sample(parts: Sequence[ApproximateRows], tail: ExactRows, rows: NDArray[np.int64]) -> Vectors:
    pieces = [part.rows(rows[(rows >= part.start) & (rows < part.stop)] - part.start) for part in parts]
    for first, block in tail.parts():
        pieces.append(block[rows[(rows >= first) & (rows < first + len(block))] - first])
    return np.concatenate(pieces)


def _least(products: NDArray[np.float32], wanted: int) -> float:
    """Below this is nothing that can tie with the ``wanted``-th of ``products``, best first, or be before it."""
    return products.item(wanted - 1) - TIE - 2 * _ROUNDING
