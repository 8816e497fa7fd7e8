"""Product quantization (FAISS): small codes of rows, to see which few of the rows of inverted lists are worth reading.

A row is kept as what is left of it beside the centre of its list, along the half of the directions that differ most,
with 4 bits for two of these: 48 bytes for 384 dimensions, where half precision takes 768. Chosen by measurement
(``experiments/bank/recall.py --structures``): scalar codes of 4 bits take longer than half precision, codes of one or
two bits, and codes without turning the rows first, put the nearest rows further down.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rb_dspy.bank.index.engine import faiss
from rb_dspy.protocols import Vectors

CODED_FROM = 1 << 12
"""Rows of a part that are worth it: in fewer, the lists that are read anyway hold most of them."""

_DIMENSIONS = range(16, 2049)
"""Fewer make no more than a few codes, which are too coarse, and little is read anyway; of more, the directions take
minutes to learn."""

_PROBED = 1 / 16
"""Share of the lists that are looked through."""
_AT_LEAST = 1 << 16
"""Rows that are looked through where there are so many: in half a millisecond."""

MOST = 100
"""Nearest rows that codes are asked for at most: they put the later ones ever further from their places."""
_ALWAYS, _EACH = 140, 12

_SMALLEST = 128
"""Directions that are kept where there are so many; beyond twice as many, half of them."""


def is_worth_it(rows: int, dimension: int) -> bool:
    """Whether a part is to have codes."""
    return rows >= CODED_FROM and dimension in _DIMENSIONS


def candidates(wanted: int) -> int:
    """How many rows codes have to give for the ``wanted`` nearest to be among them."""
    return _ALWAYS + _EACH * wanted


def looked_through(lists: int, rows: int) -> float:
    """How many of the lists of a part are looked through; can be more than there are."""
    return lists * max(_PROBED, _AT_LEAST / rows)


class PqCodes:
    """Codes of the rows of a part, in the same lists as the rows. Immutable; searched by any thread."""

    def __init__(self, index: Any, rows: int, lists: int, dimension: int) -> None:
        """``index``: what ``PqTrainer`` made of so many ``rows`` in ``lists``, or what was read from a file of it.

        Raises ``ValueError`` for others.
        """
        engine = faiss()
        self.index = index
        codes = engine.downcast_index(index.index) if isinstance(index, engine.IndexPreTransform) else None
        if not isinstance(codes, engine.IndexIVFPQFastScan) or not codes.by_residual or index.chain.size() != 1:
            raise ValueError("another kind of index")
        if (codes.ntotal, codes.nlist, index.d) != (rows, lists, dimension):
            raise ValueError("a sketch of other rows")  # as their file is called: see ``sidecar``
        self._codes = codes
        turn = engine.downcast_VectorTransform(index.chain.at(0))
        self._turn: Vectors = engine.vector_to_array(turn.A).reshape(turn.d_out, turn.d_in)
        words = engine.vector_to_array(codes.pq.centroids).reshape(codes.pq.M, codes.pq.ksub, codes.pq.dsub)
        self._words: Vectors = np.ascontiguousarray(2 * words.transpose(2, 1, 0))
        """Twice what codes stand for: by direction within a code, value of the code, code."""
        self._squares: Vectors = (self._words**2).sum(axis=0) / 4

    def nearest(
        self, query: Vectors, fetch: int, lists: NDArray[np.int64], centres: Vectors
    ) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Estimated products with, and places of, ``fetch`` rows of ``lists``, best first; -1 where there are no more.

        ``centres``: the query's products with those of ``lists``. Rows with equal codes have equal products: which
        of these come last is chance.
        """
        engine = faiss()
        products, places = np.empty(fetch, np.float32), np.empty(fetch, np.int64)
        pointer, turned = engine.swig_ptr, self._turn @ query
        parameters = engine.SearchParametersIVF(nprobe=len(lists))
        self._codes.search_preassigned_c(
            1, pointer(turned), fetch, pointer(lists), pointer(centres), pointer(products), pointer(places), False,
            parameters,
        )  # fmt: skip
        return products, places

    def left_out(self, row: Vectors) -> float:
        """The length of what the codes of ``row``, less the centre of its list, would leave out of it."""
        turned = (self._turn @ row).reshape(-1, len(self._words)).T
        squares = self._squares.copy()
        for words, part in zip(self._words, turned, strict=True):
            squares -= words * part
        return math.sqrt(max(0.0, float(row @ row) + float(squares.min(axis=0).sum())))


class PqTrainer:
    """Learns codes from a sample, then codes the rows. Deterministic; for one thread, with FAISS kept to it."""

    SAMPLE = 1 << 14
    """Rows that directions and codes are learned from."""

    def __init__(self, quantizer: Any, sample: Vectors, share: float = 1 / 2, rounds: int = 25) -> None:
        """``quantizer``: finds the list of a row. ``sample``: some rows.

        ``share``: of the directions, that are kept. ``rounds``: of looking for what codes stand for.
        """
        engine = faiss()
        centres = quantizer.reconstruct_n(0, quantizer.ntotal)
        sample = sample[:: -(-len(sample) // self.SAMPLE)]
        left = sample - centres[quantizer.assign(sample, 1)[:, 0]]
        dimension = sample.shape[1]
        kept = min(dimension, max(_SMALLEST, int(dimension * share)))
        codes = max(1, kept // 2)
        kept = min(kept, 2 * codes)
        learned = engine.PCAMatrix(dimension, kept)
        learned.balanced_bins = codes  # strong directions share a code with weak ones
        learned.train(left)
        # Products are kept by turning alone, which is what was learned without its mean.
        self._turn = engine.LinearTransform(dimension, kept, False)
        engine.copy_array_to_vector(engine.vector_to_array(learned.A)[: kept * dimension], self._turn.A)
        self._turn.is_trained = True
        turned = engine.IndexFlatIP(kept)
        turned.add(self._turn.apply(centres))
        self._index = engine.IndexIVFPQ(turned, kept, quantizer.ntotal, codes, 4, engine.METRIC_INNER_PRODUCT)
        self._index.pq.cp.niter = rounds
        self._index.pq.train(self._turn.apply(left))
        self._index.by_residual = self._index.is_trained = True

    def add(self, rows: Vectors, lists: NDArray[np.int64]) -> None:
        """The next rows, and the list of each."""
        pointer, turned = faiss().swig_ptr, self._turn.apply(rows)
        self._index.add_core(len(rows), pointer(turned), None, pointer(lists))

    def left_out(self, rows: Vectors, centre: Vectors) -> Vectors:
        """What the codes of ``rows``, the last that were added, leave out of them; ``centre``: of the list of all."""
        self._index.make_direct_map()
        turned = self._index.reconstruct_n(self._index.ntotal - len(rows), len(rows))
        self._index.make_direct_map(False)
        turn = faiss().vector_to_array(self._turn.A).reshape(self._turn.d_out, self._turn.d_in)
        coded: Vectors = (turned - self._turn.apply(centre[None])) @ turn
        return rows - centre - coded

    def done(self) -> PqCodes:
        """The codes of all rows that were added."""
        engine = faiss()
        # The copy lets go of what the packed codes were made from.
        packed = engine.clone_index(engine.IndexIVFPQFastScan(self._index))
        index = engine.IndexPreTransform(self._turn, packed)
        return PqCodes(index, packed.ntotal, packed.nlist, index.d)
