"""``Part``: rows in half precision that never change, and how far their products are to be trusted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from rb_dspy.bank.index.engine import faiss
from rb_dspy.bank.index.view import TIE
from rb_dspy.protocols import Vectors

CHUNK = 20_000
"""Rows that are held in single precision at once."""

_ROUNDING = 5e-4
"""How far a score from half-precision codes, whose length is not quite 1, may be from the cosine: so far for rows with
few values that are not zero, a twentieth of it for embedded text."""

Allowed = Callable[[slice | NDArray[np.int64]], NDArray[np.bool_]]
"""Which rows of an index may be found."""

ScoredRows = tuple[NDArray[np.float32], NDArray[np.int64]]
"""Products with, and places of, rows of a part; or scores and rows."""


class Part(Protocol):
    """Rows ``start`` to ``stop`` of an index, in half precision. Immutable; searched by any thread."""

    @property
    def start(self) -> int: ...

    @property
    def stop(self) -> int: ...

    @property
    def exact(self) -> bool:
        """Whether all rows are read wherever there is a doubt. Such a part is faster made again than a file checked."""
        ...

    def nearest(self, query: Vectors, k: int, allowed: Allowed | None, size: int) -> ScoredRows:
        """Scores and rows of the ``k`` nearest and of all that tie with the last of these, in no order.

        Only rows before ``size`` that are ``allowed``; None, all.
        """
        ...

    def vectors(self) -> Iterator[Vectors]:
        """All rows in order, in pieces; half precision, so not quite of length 1."""
        ...

    def rows(self, places: NDArray[np.int64]) -> Vectors:
        """The rows at ``places``, counted from ``start``; as ``vectors``."""
        ...


def lengths(rows: Vectors) -> NDArray[np.float32]:
    """The length of each row."""
    found: NDArray[np.float32] = np.sqrt(np.einsum("ij,ij->i", rows, rows))
    return found


def least(products: NDArray[np.float32], wanted: int) -> float:
    """Below this is nothing that can tie with the ``wanted``-th of ``products``, best first, or be before it."""
    return products.item(wanted - 1) - TIE - 2 * _ROUNDING


def read(fp16: NDArray[np.float16], query: Vectors) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Products of rows with ``query``, greatest first, and whose they are.

    FAISS does that in half of the time that NumPy takes to convert the rows.
    """
    engine = faiss()
    rows, dimension = fp16.shape
    index = engine.IndexScalarQuantizer(dimension, engine.ScalarQuantizer.QT_fp16, engine.METRIC_INNER_PRODUCT)
    pointer = engine.swig_ptr
    index.add_sa_codes_c(rows, pointer(fp16.view(np.uint8)), None)
    products, order = np.empty(rows, np.float32), np.empty(rows, np.int64)
    index.search_c(1, pointer(query), rows, pointer(products), pointer(order), None)
    return products, order
