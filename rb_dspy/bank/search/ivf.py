"""Approximate search in large indexes: FAISS cells (IVF) over the first rows, built by a thread in the background.

It only returns candidates. ``VectorIndex`` computes their scores from its own rows, applies the filter, searches the
later rows exactly, and searches all rows exactly when too few candidates pass.
"""

from __future__ import annotations

import atexit
import logging
import math
import threading
import weakref
from collections.abc import Callable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rb_dspy.protocols import Vectors

EXACT_ROWS: Final = 200_000
"""Search is exact up to this many rows."""

_PROBES = 20
"""Cells searched per query."""

_SPARE = 4
"""Candidates per requested row; the filter may drop some."""

_LEAST, _MOST = 64, 2_048
"""Limits of the number of candidates; search is exact if more would be needed."""

_TAIL = 64
"""Later rows are added to the cells when there is more than one for this many rows in the cells."""

_SAMPLE, _ROUNDS = 40, 8
"""k-means: sampled rows per cell, and rounds."""

_STEP = 10_000
"""Rows per step; a build can be stopped between two steps."""

_log = logging.getLogger("rb_dspy.bank")


class Ivf:
    """Finds candidates among the first rows of an index. Readers take no lock; one thread at a time builds.

    If a build fails, a warning is logged, and search goes on without it.
    """

    def __init__(self, rows: Callable[[], Vectors], exact_rows: int = EXACT_ROWS) -> None:
        """``rows``: a method that returns all current rows; they do not change, and new ones are added at the end.

        The reference to it is weak: a build stops early when the index no longer exists.
        """
        self._rows = weakref.WeakMethod(rows)
        self._exact_rows = exact_rows
        self._index: Any = None
        self._may_build = threading.Lock()

    def __len__(self) -> int:
        """Number of rows in the cells."""
        return 0 if self._index is None else int(self._index.ntotal)

    def shortlist(self, vector: Vectors, count: int, total: int) -> tuple[NDArray[np.int64], int] | None:
        """Return candidates for the ``count`` nearest of the ``total`` current rows; None: search exactly.

        Candidates are sorted positions among the first rows, with the number of these rows. Starts a build in the
        background when enough rows are in no cell.
        """
        if total <= self._exact_rows:
            return None
        index = self._index
        rows = 0 if index is None else int(index.ntotal)
        if total - rows > rows // _TAIL and self._may_build.acquire(blocking=False):
            self._start(total)
        wanted = max(_SPARE * count, _LEAST)
        if index is None or wanted > _MOST:
            return None
        _, places = index.search(vector[None], wanted)
        return np.sort(places[(places >= 0) & (places < total)]), rows

    def _start(self, total: int) -> None:
        thread = threading.Thread(target=self._build, args=(total,), name="rb_dspy-ivf", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # no thread can be started, or Python is exiting
            self._may_build.release()
        else:
            _builds.add(thread)

    def _build(self, total: int) -> None:
        try:
            self._build_cells(total)
        except _Stopped:
            return
        except (ImportError, MemoryError, RuntimeError) as exc:
            _log.warning("approximate search could not be prepared, so search stays exact: %r", exc)
            return  # it is not retried
        self._may_build.release()

    def _build_cells(self, total: int) -> None:
        import faiss

        number, index = math.isqrt(total), self._index
        if index is None or 2 * number > 3 * index.nlist:
            index = self._without_rows(self._centroids(total, number))
        else:
            index = faiss.clone_index(index)  # readers use the old one meanwhile
        for start in range(index.ntotal, total, _STEP):
            index.add(self._current()[start : min(start + _STEP, total)])
        self._index = index

    def _centroids(self, total: int, number: int) -> Vectors:
        """k-means on a sample, one round at a time."""
        import faiss

        places = np.linspace(0, total - 1, min(total, _SAMPLE * number)).astype(np.int64)
        sample = self._current()[places]
        centroids: Vectors | None = None
        for _ in range(_ROUNDS):
            self._current()
            means = faiss.Kmeans(sample.shape[1], number, niter=1, spherical=True, min_points_per_centroid=1)
            means.train(sample, init_centroids=centroids)
            centroids = means.centroids
        assert centroids is not None
        return centroids

    def _without_rows(self, centroids: Vectors) -> Any:
        import faiss

        number, dimension = centroids.shape
        index: Any = faiss.index_factory(dimension, f"IVF{number},SQfp16", faiss.METRIC_INNER_PRODUCT)
        index.quantizer.add(centroids)
        index.by_residual = False
        index.train(centroids)
        index.nprobe = _PROBES
        return index

    def _current(self) -> Vectors:
        """All current rows. Use them for one step only, because they may move to a larger array."""
        rows = self._rows()
        if rows is None or _exiting.is_set():
            raise _Stopped
        return rows()


class _Stopped(Exception):
    """The build is no longer needed."""


_exiting = threading.Event()
_builds: weakref.WeakSet[threading.Thread] = weakref.WeakSet()


@atexit.register
def _stop_builds() -> None:
    """Wait for builds before Python exits: a thread in C++ still needs the interpreter."""
    _exiting.set()
    for thread in list(_builds):
        thread.join(timeout=5)
