"""Nearest neighbours over rows that never change, in half precision as in the store: half as much to read.

With a screen a tenth of that; where it leaves a doubt, all rows are read.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rb_dspy.bank.index.engine import faiss, one_thread, selector
from rb_dspy.bank.index.part import CHUNK, Allowed, ScoredRows, least, lengths
from rb_dspy.bank.index.pq_screen import PqScreen
from rb_dspy.bank.index.view import SPARE
from rb_dspy.protocols import Vectors


class Fp16Rows:
    """A ``Part`` of which all rows are read where there is no screen of them, or it leaves a doubt."""

    exact = True

    def __init__(self, start: int, index: Any, screen: PqScreen | None = None) -> None:
        """``index``, ``screen``: what ``build`` made."""
        self.start = start
        self.stop = start + int(index.ntotal)
        self.screen = screen
        self._index = index
        self._fp16 = fp16_of(index)
        self._lengths = np.concatenate([lengths(rows) for rows in self.vectors()])

    def nearest(self, query: Vectors, k: int, allowed: Allowed | None, size: int) -> ScoredRows:
        """See ``Part``."""
        stop = min(self.stop, size)
        wanted = min(k, stop - self.start)
        if wanted <= 0:
            return np.empty(0, np.float32), np.empty(0, np.int64)

        def kept(places: NDArray[np.int64]) -> NDArray[np.bool_]:
            mask = places < stop - self.start
            if allowed is not None:
                mask[mask] = allowed(places[mask] + self.start)
            return mask

        every = allowed is None and stop == self.stop
        with one_thread():
            found = None if self.screen is None else self.screen.nearest(query, wanted, None if every else kept)
            if found is None:
                found = self._read(query, wanted, None if every else self._mask(allowed, stop))
        products, places = found
        return products / self._lengths[places], places + self.start

    def vectors(self) -> Iterator[Vectors]:
        """See ``Part``."""
        for first in range(0, self.stop - self.start, CHUNK):
            yield self._fp16[first : first + CHUNK].astype(np.float32)

    def rows(self, places: NDArray[np.int64]) -> Vectors:
        """See ``Part``."""
        return self._fp16[places].astype(np.float32)

    def _mask(self, allowed: Allowed | None, stop: int) -> NDArray[np.bool_]:
        mask = np.zeros(self.stop - self.start, np.bool_)
        mask[: stop - self.start] = True if allowed is None else allowed(slice(self.start, stop))
        return mask

    def _read(self, query: Vectors, wanted: int, mask: NDArray[np.bool_] | None) -> ScoredRows:
        possible = self.stop - self.start if mask is None else int(np.count_nonzero(mask))
        wanted = min(wanted, possible)
        if not wanted:
            return np.empty(0, np.float32), np.empty(0, np.int64)
        engine, fetch = faiss(), min(wanted + 2 * SPARE, possible)
        parameters = None if mask is None else engine.SearchParameters(sel=selector(mask))
        while True:
            # ``search`` does the same and checks what it is given once more.
            products, places = np.empty(fetch, np.float32), np.empty(fetch, np.int64)
            pointer = engine.swig_ptr
            self._index.search_c(1, pointer(query), fetch, pointer(products), pointer(places), parameters)
            near = int(np.count_nonzero(products >= least(products, wanted)))
            if near < fetch or fetch == possible:
                return products[:near], places[:near]
            fetch = min(possible, 8 * fetch)


def fp16_of(index: Any) -> NDArray[np.float16]:
    """The rows of FAISS's index in half precision, ``(rows, dimension)``; to be used for as long as the index lives."""
    codes: NDArray[np.uint8] = faiss().rev_swig_ptr(index.codes.data(), int(index.ntotal * index.code_size))
    return codes.view(np.float16).reshape(-1, index.d)
