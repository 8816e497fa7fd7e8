"""Search over the vectors of one scope and unit: exact, or by cells if there are very many."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rb_dspy.bank.search.ivf import EXACT_ROWS, Ivf
from rb_dspy.bank.store.base import HELD, Filter, Hit, IndexRow
from rb_dspy.bank.store.embedders import unpacked
from rb_dspy.protocols import Vectors

_NEVER: Final = np.iinfo(np.int64).max
"""The ``ended`` of a live row."""

_DIGITS = 5
"""Decimals of a score: vectors are stored in half precision."""

_SHARE = 8
"""Search is exact if fewer than one candidate in this many passes the filter."""

_MANY = 2_000
"""Rows from which on FAISS is faster than numpy."""

_MARGIN = 16
"""Rows looked at beyond those requested, in case some do not pass the filter or have equal scores."""

_OUT = -2.0
"""The score of a row that may not be returned; cosines are at least -1."""


@dataclass(frozen=True)
class _Rows:
    """Arrays with room for more rows than ``count``; later rows are ignored."""

    count: int
    vectors: Vectors
    seqs: NDArray[np.int64]
    ended: NDArray[np.int64]
    tasks: NDArray[np.int32]
    kinds: NDArray[np.int32]
    successes: NDArray[np.bool_]
    held: NDArray[np.bool_]


class VectorIndex:
    """Rows in the order of their numbers. One thread adds at a time; readers take no lock.

    Search is exact up to ``exact_rows`` rows. Beyond that, some of the nearest may be missed, but scores are exact, and
    ``count`` rows are returned whenever ``count`` pass the filter.
    """

    def __init__(self, exact_rows: int = EXACT_ROWS) -> None:
        self._ivf = Ivf(self._vectors, exact_rows)
        self._rows = _empty(0, 0)
        self._tasks: dict[str, int] = {}
        self._kinds: dict[str, int] = {}
        self._adding = threading.Lock()

    def __len__(self) -> int:
        return self._rows.count

    def add(self, new: Sequence[IndexRow]) -> None:
        """Add rows. Their numbers must be higher than all existing ones."""
        if not new:
            return
        with self._adding:
            rows, start = self._rows, self._rows.count
            end = start + len(new)
            if start == 0:
                rows = _empty(len(new[0].data) // 2, end)
            elif end > len(rows.seqs):
                rows = _grown(rows, max(end, 2 * len(rows.seqs)))
            rows.vectors[start:end] = unpacked([row.data for row in new], rows.vectors.shape[1])
            rows.seqs[start:end] = [row.seq for row in new]
            rows.ended[start:end] = [_NEVER if row.ended is None else row.ended for row in new]
            rows.tasks[start:end] = [self._tasks.setdefault(row.task_id, len(self._tasks)) for row in new]
            rows.kinds[start:end] = [self._kinds.setdefault(row.kind, len(self._kinds)) for row in new]
            rows.successes[start:end] = [row.polarity == "success" for row in new]
            rows.held[start:end] = [row.level == HELD for row in new]
            self._rows = replace(rows, count=end)

    def end(self, ended: Iterable[tuple[int, int]]) -> None:
        """Mark rows as ended; unknown numbers are skipped."""
        pairs = np.array(list(ended), np.int64).reshape(-1, 2)
        with self._adding:
            places, found = _places(self._rows, pairs[:, 0])
            self._rows.ended[places[found]] = pairs[found, 1]

    def search(self, vector: Vectors, count: int, only: Filter) -> list[Hit]:
        """Return the best ``count`` rows found that pass ``only``, best first; of equal scores the newest first."""
        rows = self._rows
        if not rows.count:
            return []
        shortlist = self._ivf.shortlist(vector, count, rows.count)
        if shortlist is not None:
            places, first = shortlist
            near = self._search(_taken(rows, places), vector, len(places), only)
            if len(near) >= max(count, len(places) // _SHARE):
                late = self._search(_taken(rows, slice(first, rows.count)), vector, count, only)
                return sorted([*near, *late], key=lambda hit: (-hit.score, -hit.seq))[:count]
        return self._search(rows, vector, count, only)

    def _search(self, rows: _Rows, vector: Vectors, count: int, only: Filter) -> list[Hit]:
        born = rows.count if only.at is None else int(np.searchsorted(rows.seqs[: rows.count], only.at, side="right"))
        few = count + _MARGIN
        if born > max(_MANY, few):  # as a rule most rows pass, so the first of all rows, by a faster library, do
            import faiss

            nearest = faiss.knn(vector[None], rows.vectors[:born], few, metric=faiss.METRIC_INNER_PRODUCT)
            least, places = nearest[0][0, -1], np.sort(nearest[1][0])
            hits = self._compared(_taken(rows, places), few, vector, count, only)
            if len(hits) == count and hits[-1].score > least + 10**-_DIGITS:
                return hits
        return self._compared(rows, born, vector, count, only)

    def _compared(self, rows: _Rows, born: int, vector: Vectors, count: int, only: Filter) -> list[Hit]:
        """Compare with each of the first ``born`` rows."""
        scores = rows.vectors[:born] @ vector
        allowed = self._allowed(rows, born, only)
        if not allowed.all():
            scores[~allowed] = _OUT
        return best(rows.seqs[:born], scores, count)

    def allowed(self, seqs: Sequence[int], only: Filter) -> list[bool]:
        """Return for each number whether it is in the index and passes ``only``."""
        rows = self._rows
        places, found = _places(rows, np.asarray(seqs, np.int64))
        passed = np.zeros(len(seqs), np.bool_)
        passed[found] = self._allowed(rows, rows.count, only)[places[found]]
        if only.at is not None:
            passed &= np.asarray(seqs, np.int64) <= only.at
        return [bool(each) for each in passed]

    def _vectors(self) -> Vectors:
        rows = self._rows
        return rows.vectors[: rows.count]

    def _allowed(self, rows: _Rows, born: int, only: Filter) -> NDArray[np.bool_]:
        allowed: NDArray[np.bool_] = rows.ended[:born] > (_NEVER - 1 if only.at is None else only.at)
        excluded = [self._tasks[task] for task in only.exclude_tasks if task in self._tasks]
        if excluded:
            allowed &= ~np.isin(rows.tasks[:born], excluded)
        if only.kinds is not None:
            allowed &= np.isin(rows.kinds[:born], [self._kinds[kind] for kind in only.kinds if kind in self._kinds])
        if only.polarity is not None:
            allowed &= rows.successes[:born] == (only.polarity == "success")
        held = rows.held[:born]
        if held.any():
            held = held.copy()
            held[_within(rows, only.released, born)] = False
            allowed &= ~held
        if only.hidden:
            allowed[_within(rows, only.hidden, born)] = False
        if only.within is not None:
            inside = np.zeros(born, np.bool_)
            inside[_within(rows, only.within, born)] = True
            allowed &= inside
        return allowed


def best(seqs: NDArray[np.int64], scores: NDArray[np.float32], count: int) -> list[Hit]:
    """The ``count`` best rows above ``_OUT``, best first; scores are rounded, and equal ones ordered newest first."""
    least = np.float32(_OUT)
    if count < len(scores):
        least = np.partition(scores, -count)[-count] - np.float32(10**-_DIGITS)  # others may be rounded to the same
    chosen = np.flatnonzero((scores >= least) & (scores > _OUT))
    rounded = np.round(scores[chosen], _DIGITS)
    order = np.lexsort((-seqs[chosen], -rounded))[:count]
    return [
        Hit(seq, round(score, _DIGITS))
        for seq, score in zip(seqs[chosen[order]].tolist(), rounded[order].tolist(), strict=True)
    ]


_ARRAYS = [field.name for field in fields(_Rows)][1:]


def _places(rows: _Rows, seqs: NDArray[np.int64]) -> tuple[NDArray[np.intp], NDArray[np.bool_]]:
    """Return the positions of these numbers, and which of the numbers exist."""
    known = rows.seqs[: rows.count]
    places = np.searchsorted(known, seqs)
    found = places < rows.count
    found[found] = known[places[found]] == seqs[found]
    return places, found


def _within(rows: _Rows, seqs: Collection[int], born: int) -> NDArray[np.intp]:
    """The positions below ``born`` of those of these numbers that exist."""
    places, found = _places(rows, np.fromiter(seqs, np.int64, len(seqs)))
    places = places[found]
    return places[places < born]


def _empty(dimension: int, room: int) -> _Rows:
    return _Rows(
        count=0,
        vectors=np.empty((room, dimension), np.float32),
        seqs=np.empty(room, np.int64),
        ended=np.empty(room, np.int64),
        tasks=np.empty(room, np.int32),
        kinds=np.empty(room, np.int32),
        successes=np.empty(room, np.bool_),
        held=np.empty(room, np.bool_),
    )


def _taken(rows: _Rows, places: NDArray[np.int64] | slice) -> _Rows:
    """Select rows, in their order; a slice does not copy them."""
    taken = {name: getattr(rows, name)[places] for name in _ARRAYS}
    return _Rows(len(taken["seqs"]), **taken)


def _grown(rows: _Rows, room: int) -> _Rows:
    """Copy the rows to larger arrays; readers continue with the old ones."""
    new, count = _empty(rows.vectors.shape[1], room), rows.count
    for name in _ARRAYS:
        getattr(new, name)[:count] = getattr(rows, name)[:count]
    return new
