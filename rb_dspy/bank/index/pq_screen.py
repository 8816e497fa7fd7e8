"""The nearest of many rows without reading all of them, wherever codes leave no doubt about which these are.

In codes ``x'`` stands for the row ``x``, and its product with ``q`` is off by ``q · e``, where ``e = x - x'``. A code
stands for the mean of the rows that have it, so ``e`` is about perpendicular to ``x'``, and a query that is near to the
row underestimates it by a share of ``|e|²``: rows that are alone with what they say can look far away. Such outliers
are few, and are always read. A query that would be one itself is out-of-distribution: the codes cannot say what it
asks, and it gets no answer. For all others errors look like noise. How much of it there is, show some of the rows, and
those that were estimated best and then read: where all rows that are wanted lie further above the last estimate than
noise goes, nothing was missed. Else there is no answer. Where there is none, all rows have to be read.

That is no proof. What was tried: ``experiments/bank/mislead.py``, and ``recall.py`` beside it.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from rb_dspy.bank.index.part import ScoredRows, least, read
from rb_dspy.bank.index.pq import PqCodes
from rb_dspy.protocols import Vectors

_SURE = 6.0
"""Standard deviations that a row has to be above the estimates of those that were not read."""

_ALWAYS, _EACH, _OF = 100, 8, 1000
"""Rows that are read: always, for each one wanted, and one of so many, which lie closer to each other where there are
more. Where that leaves a doubt, ``_MORE`` times as many are."""
_MORE = 3

_SHARE = 1 / 8
"""Of the rows, that are read at most; then to read all of them is as fast."""

_OUTLYING = 1.5
"""Rows are outliers whose ``|e|`` is so many times the median."""

_OUT_OF_DISTRIBUTION = 1.4
"""A query is out-of-distribution whose own code leaves out so many times the median ``|e|``."""

_MOST_OUTLIERS = 1 / 16
"""Where more of the rows are outliers, codes say too little of them."""

ERRORS = 128
"""Rows whose ``e`` is kept: those that are near to a query can be alike, and code better than others."""

_LIST = np.zeros(1, np.int64)
"""All rows are in one list."""


class PqScreen:
    """Rows of one list, their codes, and which of them are outliers. Immutable; used by any thread."""

    def __init__(
        self, fp16: NDArray[np.float16], codes: PqCodes, centre: Vectors, far: NDArray[np.float32], errors: Vectors
    ) -> None:
        """``centre``: of the list. ``far``: for each row its ``|e|``. ``errors``: of some rows, their ``e``."""
        self._usual = float(np.median(far))
        outliers = np.flatnonzero(far > _OUTLYING * self._usual)
        self._fp16 = fp16
        self._codes = codes
        self._centre = centre
        self._errors = errors
        self._outliers = outliers
        self._outlier_rows: Vectors = fp16[outliers].astype(np.float32)
        self._is_outlier = np.zeros(len(fp16), np.bool_)
        self._is_outlier[outliers] = True

    def nearest(
        self,
        query: Vectors,
        wanted: int,
        allowed: Callable[[NDArray[np.int64]], NDArray[np.bool_]] | None,
    ) -> ScoredRows | None:
        """Products with, and places of, the ``wanted`` nearest and what ties with the last of these, in no order.

        Only of rows whose places are ``allowed``; None, all. None where there is a doubt.
        """
        rows = len(self._fp16)
        most, few = int(_SHARE * rows), _ALWAYS + _EACH * wanted + rows // _OF
        if few > most:
            return None
        if (
            self._codes.left_out(query / (math.sqrt(query @ query) or 1.0) - self._centre)
            > _OUT_OF_DISTRIBUTION * self._usual
        ):
            return None
        outlying, usually = self._outlier_rows @ query, _noise(self._errors @ query)
        centre = np.array([self._centre @ query], np.float32)
        for fetch in (few, min(_MORE * few, most)):
            estimates, places = self._codes.nearest(query, fetch, _LIST, centre)
            if places.item(-1) < 0:  # no code makes a difference for this query: FAISS gives nothing
                return None
            above = estimates.item(-1)
            products, order = read(self._fp16[places], query)
            places = places[order]
            above += max(usually, _noise(products - estimates[order]))
            if len(outlying):
                usual = ~self._is_outlier[places]
                products, places = (
                    np.concatenate([products[usual], outlying]),
                    np.concatenate([places[usual], self._outliers]),
                )
            if allowed is not None:
                kept = allowed(places)
                products, places = products[kept], places[kept]
            if len(places) >= wanted:
                limit = least(-np.sort(-products) if len(outlying) else products, wanted)
                if limit > above:
                    near = products >= limit
                    return products[near], places[near]
        return None


def _noise(errors: NDArray[np.float32]) -> float:
    """How much more than its estimate the product of a row is that was not read, at most."""
    mean = float(errors.sum()) / len(errors)
    spread = math.sqrt(max(0.0, float(errors @ errors) / len(errors) - mean * mean))
    # Those with the highest estimates were rather overestimated. The others were not.
    return max(0.0, mean) + _SURE * spread


def is_told(far: NDArray[np.float32]) -> bool:
    """Whether codes that leave so much out of the rows, ``|e|`` for each, say enough of them."""
    return int(np.count_nonzero(far > _OUTLYING * np.median(far))) <= _MOST_OUTLIERS * len(far)
