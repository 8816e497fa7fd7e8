"""Approximate nearest neighbours over rows that never change: inverted lists of half-precision vectors (FAISS), and
codes of them that say which rows to read.

Chosen by measurement (``experiments/bank/recall.py``). At a million rows, lists of 8-bit codes are not faster on one
thread, find less, and need the rows beside them to rank again; a graph (facts: stores) takes ten times as long to build
and twice the memory. Half precision is what the store keeps, so that scores are those of exact search. What a search
takes is the time to read memory: the codes are a sixteenth of the rows.

What is found rests on texts lying in clusters, as embedded text does: recall@5 is 0.99 and more then. On vectors
without any structure, drawn at random, it is 0.09.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rb_dspy.bank.index.engine import faiss, one_thread, selector
from rb_dspy.bank.index.part import CHUNK, Allowed, ScoredRows, least, lengths
from rb_dspy.bank.index.pq import MOST, PqCodes, candidates, looked_through
from rb_dspy.bank.index.view import SPARE
from rb_dspy.protocols import Vectors

PROBED = 1 / 25
"""Share of the lists that a search without codes reads, and ``AT_LEAST`` so many: what recall and time rest on."""
AT_LEAST = 40

_FURTHER = 8
"""How many times as many lists are read at most because the nearest rows are left out."""

_DEPTHS = ((40, 1), (MOST, 3))
"""With a filter: down to which place among all rows the codes may have to go for those wanted, and how many times as
many lists and candidates they take. Further down scores are closer to each other, and rows lie in more lists."""


class IvfRows:
    """A ``Part`` of which near rows can be missed: see ``recall.py``.

    But neither few allowed rows nor a large ``k`` leaves a place empty: lists are read until ``k`` rows are found, all
    if need be.
    """

    exact = False

    def __init__(self, start: int, index: Any, codes: PqCodes | None = None) -> None:
        """``index``, ``codes``: what ``build`` made, or what was read from files of it."""
        self.start = start
        self.stop = start + int(index.ntotal)
        self.index = index
        self.codes = codes
        self._all_lists = int(index.nlist)
        if index.direct_map.array.size() != index.ntotal:
            index.make_direct_map()
        self._centres = faiss().downcast_index(index.quantizer)
        self._places: NDArray[np.int64] = faiss().rev_swig_ptr(index.direct_map.array.data(), int(index.ntotal))
        """Where each row is: its list, and in the lower half of the bits its place there."""

    def nearest(self, query: Vectors, k: int, allowed: Allowed | None, size: int) -> ScoredRows:
        """See ``Part``."""
        wanted, stop = min(k, min(self.stop, size) - self.start), min(self.stop, size)
        if wanted <= 0:
            return np.empty(0, np.float32), np.empty(0, np.int64)
        with one_thread():
            if allowed is None and stop == self.stop:
                return self._scored(query, *self._found(query, None, wanted, self.stop - self.start))
            # Most filters leave out little, and looking at some candidates is much cheaper than at all rows.
            found, further = self._looked(query, wanted, allowed, stop)
            if found is not None:
                return self._scored(query, *found)
            mask = np.zeros(self.stop - self.start, np.bool_)
            mask[: stop - self.start] = True if allowed is None else allowed(slice(self.start, stop))
            possible = int(np.count_nonzero(mask))
            if not possible:
                return np.empty(0, np.float32), np.empty(0, np.int64)
            return self._scored(query, *self._found(query, mask, min(k, possible), possible, further))

    def vectors(self) -> Iterator[Vectors]:
        """See ``Part``."""
        for first in range(0, self.stop - self.start, CHUNK):
            yield self.rows(np.arange(first, min(first + CHUNK, self.stop - self.start)))

    def rows(self, places: NDArray[np.int64]) -> Vectors:
        """See ``Part``."""
        return np.asarray(self.index.reconstruct_batch(places), np.float32)

    def _lists(self, fetch: int, possible: int) -> int:
        """How many lists to read for ``fetch`` rows, where ``possible`` of the rows may be found."""
        lists = self._all_lists
        usual = max(AT_LEAST, lists * PROBED, lists * 8 * fetch / (self.stop - self.start))
        return min(lists, math.ceil(usual * (self.stop - self.start) / possible))

    def _looked(
        self, query: Vectors, wanted: int, allowed: Allowed | None, stop: int
    ) -> tuple[ScoredRows | None, float]:
        """What is found among candidates that are looked for without the filter, None where these do not suffice; and
        how much further to look then: where what is left out lies about the query, what is left lies further away."""
        every, depth = self.stop - self.start, wanted

        def kept_of(rows: NDArray[np.int64]) -> NDArray[np.bool_]:
            kept = (rows >= 0) & (rows < stop - self.start)
            if allowed is not None:
                kept[kept] = allowed(rows[kept] + self.start)
            return kept

        if self.codes is None or wanted > MOST:
            fetch = min(4 * wanted + 6 * SPARE, every)
            scores, rows = self._probe(query, fetch, self._lists(fetch, every), None)
            kept = kept_of(rows)
            count = int(np.count_nonzero(kept))
            if count >= wanted and scores.item(-1) < (floor := least(scores[kept], wanted)):
                kept &= scores >= floor
                return (scores[kept], rows[kept]), 1
            return None, min(_FURTHER, fetch / (1 + count))
        for most, further in _DEPTHS:
            if depth <= most:
                fetch = min(further * candidates(most), every)
                scores, rows = self._estimated(query, fetch, further)
                kept = kept_of(rows)
                places = np.flatnonzero(kept)
                depth = places.item(wanted - 1) + 1 if len(places) >= wanted else fetch
                if depth <= most:
                    enough = min(further * candidates(depth), fetch)
                    found = self._best(query, (scores[:enough], rows[:enough]), wanted, kept[:enough])
                    return found, min(_FURTHER, depth / wanted)
                depth = min(depth, MOST)
        return None, _FURTHER

    def _found(
        self, query: Vectors, mask: NDArray[np.bool_] | None, wanted: int, possible: int, further: float = 1
    ) -> ScoredRows:
        """Products with, and places of, the ``wanted`` nearest and what ties with the last of these."""
        if self.codes is not None and mask is None and wanted <= MOST:
            found = self._best(query, self._estimated(query, min(candidates(wanted), possible), 1), wanted)
            if found is not None:
                return found
        fetch = min(wanted + 2 * SPARE, possible)
        lists = min(self._all_lists, math.ceil(further * self._lists(fetch, possible)))
        while True:
            scores, rows = self._probe(query, fetch, lists, mask)
            if rows.item(wanted - 1) >= 0:
                # A missing row's product is less than any.
                near = int(np.count_nonzero(scores >= least(scores, wanted)))
                if near < fetch or fetch == possible:
                    return scores[:near], rows[:near]
                fetch = min(possible, 8 * fetch)
            else:
                lists = min(self._all_lists, 4 * lists)

    def _probe(self, query: Vectors, fetch: int, lists: int, mask: NDArray[np.bool_] | None) -> ScoredRows:
        chosen = None if mask is None else selector(mask)
        parameters = faiss().SearchParametersIVF(nprobe=lists, sel=chosen)
        # ``search`` does the same and checks what it is given once more.
        scores, rows = np.empty(fetch, np.float32), np.empty(fetch, np.int64)
        pointer = faiss().swig_ptr
        self.index.search_c(1, pointer(query), fetch, pointer(scores), pointer(rows), parameters)
        return scores, rows

    def _estimated(self, query: Vectors, fetch: int, further: int) -> ScoredRows:
        """What the codes take for the ``fetch`` nearest, best first; -1 where these lists hold no more.

        ``further``: how many times as many lists as usual are looked through.
        """
        assert self.codes is not None
        count = min(self._all_lists, math.ceil(further * looked_through(self._all_lists, self.stop - self.start)))
        centres, lists = np.empty(count, np.float32), np.empty(count, np.int64)
        pointer = faiss().swig_ptr
        self._centres.search_c(1, pointer(query), count, pointer(centres), pointer(lists), None)
        return self.codes.nearest(query, fetch, lists, centres)

    def _best(
        self, query: Vectors, given: ScoredRows, wanted: int, kept: NDArray[np.bool_] | slice = slice(None)
    ) -> ScoredRows | None:
        """``_found`` of the candidates ``given``, best first as they were estimated, that are ``kept``.

        None where the estimates do not tell all that ties with the last one.
        """
        estimates, rows = given
        if rows.item(-1) < 0:
            return None
        # Of rows with one estimate, equal ones above all, the last were given by chance.
        chance = rows[estimates <= estimates[-1]].tolist()
        engine, rows = faiss(), rows[kept]
        lists = np.unique(self._places[rows] >> 32)
        products, found = np.empty(len(rows), np.float32), np.empty(len(rows), np.int64)
        pointer, unused = engine.swig_ptr, np.zeros(len(lists), np.float32)
        parameters = engine.SearchParametersIVF(nprobe=len(lists), sel=engine.IDSelectorBatch(rows))
        self.index.search_preassigned_c(
            1, pointer(query), len(rows), pointer(lists), pointer(unused), pointer(products), pointer(found), False,
            parameters,
        )  # fmt: skip
        near = int(np.count_nonzero(products >= least(products, wanted)))
        return (products[:near], found[:near]) if set(found[:near].tolist()).isdisjoint(chance) else None

    def _scored(self, query: Vectors, products: NDArray[np.float32], places: NDArray[np.int64]) -> ScoredRows:
        """Cosines, as exact search would give them."""
        rows = self.rows(places)
        return (rows @ query) / lengths(rows), places + self.start
