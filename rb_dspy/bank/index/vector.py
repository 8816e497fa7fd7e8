"""The vector index of one unit in one scope: derived from the store, searched without a lock.

Up to ``EXACT_UP_TO`` rows as good as exact (see ``pq_screen``), then approximate in the bulk and exact in what is new.
The bulk is in half precision, as in the store: half as much to read. What was measured, and what the numbers below rest
on: ``experiments/bank/recall.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rb_dspy.bank.index.building import build
from rb_dspy.bank.index.columns import Columns, no_rows
from rb_dspy.bank.index.exact import BLOCK, ExactRows
from rb_dspy.bank.index.part import Part
from rb_dspy.bank.index.view import NO_FILTER, TIE, Filter, Hit, Nearest, View, merged
from rb_dspy.bank.parts import Changes, VectorBatch
from rb_dspy.errors import InvalidVector
from rb_dspy.protocols import Vectors

__all__ = ["EXACT_UP_TO", "TAIL", "TIE", "Hit", "IndexView", "PreparedPart", "VectorIndex", "View"]

EXACT_UP_TO = 1 << 17
"""Rows up to which all are read wherever there is a doubt: in 5 ms."""

HALF_FROM = 1 << 12
"""Rows that are worth a part in half precision: what searching it costs beside reading it is made good."""

TAIL = 1 << 14
"""Once part of the index is approximate: rows that may be added before they are worth a part of their own."""

_GROWTH = 3
"""A new part takes in the one before it, unless that is more than this many times as large: few parts, few rebuilds."""

_LENGTH_TOLERANCE = 1e-3
"""How far the length of a unit float32 row may be from 1."""


@dataclass(frozen=True, slots=True)
class IndexView:
    """A ``View`` of a ``VectorIndex``."""

    mark: int
    columns: Columns
    parts: tuple[Part, ...]
    """The first rows, in ascending order."""
    tail: ExactRows
    """All rows after these."""
    dead: int
    """How many rows have ended."""

    def __len__(self) -> int:
        return self.columns.size - self.dead

    @property
    def dimension(self) -> int:
        """See ``View.dimension``."""
        return self.tail.dimension

    @property
    def exact(self) -> bool:
        """Whether all rows are read wherever there is a doubt: faster made again than a file of it checked."""
        return all(part.exact for part in self.parts)

    def allowed(self, seqs: Sequence[int], chosen: Filter = NO_FILTER) -> NDArray[np.bool_]:
        """See ``View.allowed``."""
        rows = self.columns.rows(np.asarray(seqs, np.int64))
        if not self.columns.size:
            return rows >= 0
        return (rows >= 0) & self.columns.allowed(rows, self.mark, chosen)

    def at(self, mark: int) -> IndexView:
        """See ``View.at``. Takes 0.5 ms for a million rows."""
        if mark >= self.mark:
            return self
        columns = self.columns.before(mark)
        dead = int(np.count_nonzero(columns.ended[: columns.size] <= mark))
        parts = tuple(part for part in self.parts if part.start < columns.size)
        return IndexView(mark, columns, parts, self.tail.before(columns.size), dead)

    def candidates(self, query: Vectors, k: int, chosen: Filter) -> Nearest:
        """See ``View.candidates``. Exact in rows that no part holds; in those, see ``Fp16Rows`` and ``IvfRows``."""
        filtered = self.dead > 0 or bool(chosen)

        def allowed(rows: slice | NDArray[np.int64]) -> NDArray[np.bool_]:
            return self.columns.allowed(rows, self.mark, chosen)

        found = []
        for part in self.parts:
            whole = part.stop <= self.columns.size
            scores, rows = part.nearest(query, k, allowed if filtered or not whole else None, self.columns.size)
            found.append(Nearest(scores, self.columns.seqs[rows]))
        if self.tail.stop > self.tail.start:
            mask = allowed(slice(self.tail.start, self.tail.stop)) if filtered else None
            scores, rows = self.tail.nearest(query, k, mask)
            found.append(Nearest(scores, self.columns.seqs[rows]))
        return merged(found)


@dataclass(frozen=True, slots=True)
class PreparedPart:
    """A part that was built aside, to be put in place of what it was built from."""

    part: Part
    replaced: tuple[Part, ...]


class VectorIndex:
    """Unit vectors of one scope and unit, ranked by inner product.

    ``apply`` and ``install`` are for one thread at a time: the caller holds a lock. ``view`` needs none, and what it
    gives can be searched while they run.
    """

    def __init__(
        self,
        dimension: int,
        *,
        begin: IndexView | None = None,
        exact_up_to: int = EXACT_UP_TO,
        half_from: int = HALF_FROM,
        tail: int = TAIL,
        block: int = BLOCK,
    ) -> None:
        """``begin``: a state that nobody else goes on from. The sizes: see the constants; tests make them small."""
        self._exact_up_to = exact_up_to
        self._half_from = half_from
        self._tail = tail
        self._view = begin or IndexView(0, no_rows(), (), ExactRows(0, 0, (), dimension, block), 0)

    @property
    def view(self) -> IndexView:
        """The newest state, complete; it does not change when the index does."""
        return self._view

    def apply(self, changes: Changes) -> None:
        """Go on to ``changes.mark``. Rows that are in already are skipped; ends of rows that never came, ignored.

        All or nothing: raises ``InvalidVector``, and changes nothing, for rows that are not finite unit vectors of the
        dimension.
        """
        view = self._view
        batch = _checked(changes.added, view.mark, view.tail.dimension)
        columns = view.columns.after(batch) if len(batch) else view.columns
        tail = view.tail.after(batch.vectors) if len(batch) else view.tail
        dead = view.dead + columns.end(changes.ended)
        self._view = IndexView(max(view.mark, changes.mark), columns, view.parts, tail, dead)

    @property
    def wants_base(self) -> bool:
        """Whether searches would be faster after ``prepare`` and ``install``."""
        view = self._view
        size = view.columns.size
        enough = self._tail if size > self._exact_up_to else max(self._half_from, size // 8)
        return view.tail.stop - view.tail.start > enough

    def prepare(self, stopped: Callable[[], bool] = lambda: False) -> PreparedPart | None:
        """Build a part of the rows that are in now, aside. Hold no lock: it takes a while.

        Some 20 CPU seconds for a million rows, on one thread, the interpreter free for others; what is searched or
        applied meanwhile is not affected. By one thread at a time, else work is done twice. None when ``stopped``,
        which is asked about once a second, says so.
        """
        view = self._view
        exact = view.columns.size <= self._exact_up_to
        replaced: list[Part] = []
        start = view.tail.start
        for part in reversed(view.parts):
            if part.stop - part.start > _GROWTH * (view.tail.stop - start) and part.exact == exact:
                break
            replaced.insert(0, part)
            start = part.start
        built = build(replaced, view.tail, stopped, exact=exact)
        return None if built is None else PreparedPart(built, tuple(replaced))

    def install(self, prepared: PreparedPart | None) -> bool:
        """Search what was prepared from now on: a millisecond. False where there is none, or another was faster."""
        if prepared is None:
            return False
        view = self._view
        kept = view.parts[: len(view.parts) - len(prepared.replaced)]
        follows = prepared.part.start == (kept[-1].stop if kept else 0)
        if view.parts[len(kept) :] != prepared.replaced or not follows:
            return False
        tail = view.tail.since(prepared.part.stop)
        self._view = IndexView(view.mark, view.columns, (*kept, prepared.part), tail, view.dead)
        return True


def _checked(batch: VectorBatch, mark: int, dimension: int) -> VectorBatch:
    """The rows of ``batch`` that come after ``mark``."""
    if batch.vectors.shape != (len(batch), dimension):
        raise InvalidVector(
            f"vectors to index have shape {batch.vectors.shape}; expected ({len(batch)}, {dimension}): reindex the bank"
        )
    known = int(np.searchsorted(batch.seqs, mark, side="right"))
    if known:
        batch = VectorBatch(batch.seqs[known:], batch.tasks[known:], batch.successes[known:], batch.vectors[known:])
    lengths = np.einsum("ij,ij->i", batch.vectors, batch.vectors)
    wrong = ~(np.abs(lengths - 1) < 2 * _LENGTH_TOLERANCE)  # True for NaN
    if wrong.any():
        raise InvalidVector(
            f"vector {int(batch.seqs[wrong][0])} is not of length 1; expected a unit row: reindex the bank"
        )
    return batch
