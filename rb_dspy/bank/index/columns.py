"""What an index knows of its rows beside their vectors: 25 bytes a row."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rb_dspy.bank.index.view import Filter
from rb_dspy.bank.parts import VectorBatch

ALIVE = np.iinfo(np.int64).max
"""The end of rows that have none."""

_FEW = 8
"""Up to here, comparing with one key after the other is faster than sorting."""


@dataclass(frozen=True, slots=True)
class Columns:
    """Arrays of one length, of which the first ``size`` rows are in use; ascending in ``seqs``.

    ``ended`` is written in place: numbers only grow, so that whoever looks at an older number sees no difference.
    """

    size: int
    seqs: NDArray[np.int64]
    tasks: NDArray[np.int64]
    successes: NDArray[np.bool_]
    ended: NDArray[np.int64]

    def after(self, batch: VectorBatch) -> Columns:
        """These rows and then those of ``batch``, alive. One thread at a time, and only on the newest."""
        end = self.size + len(batch)
        columns = self if end <= len(self.seqs) else self._grown(max(end, 2 * len(self.seqs), 16))
        columns.seqs[self.size : end] = batch.seqs
        columns.tasks[self.size : end] = batch.tasks
        columns.successes[self.size : end] = batch.successes
        columns.ended[self.size : end] = ALIVE
        return Columns(end, columns.seqs, columns.tasks, columns.successes, columns.ended)

    def end(self, pairs: NDArray[np.int64]) -> int:
        """Note the ends in ``pairs``, ``(m, 2)``, of rows that are here and alive; how many these were."""
        rows = self.rows(pairs[:, 0])
        rows, numbers = rows[rows >= 0], pairs[rows >= 0, 1]
        new = self.ended[rows] == ALIVE
        self.ended[rows[new]] = numbers[new]
        return int(np.count_nonzero(new))

    def before(self, mark: int) -> Columns:
        """The rows that were born up to ``mark``."""
        size = int(np.searchsorted(self.seqs[: self.size], mark, side="right"))
        return Columns(size, self.seqs, self.tasks, self.successes, self.ended)

    def rows(self, seqs: NDArray[np.int64]) -> NDArray[np.int64]:
        """The row of each number; -1 where there is none."""
        if not self.size:
            return np.full(len(seqs), -1, np.int64)
        rows = np.minimum(np.searchsorted(self.seqs[: self.size], seqs), self.size - 1)
        return np.where(self.seqs[rows] == seqs, rows, -1)

    def allowed(self, rows: slice | NDArray[np.int64], mark: int, chosen: Filter) -> NDArray[np.bool_]:
        """Which of ``rows`` are alive at ``mark`` and not left out."""
        mask = self.ended[rows] > mark
        if chosen.tasks:
            tasks = self.tasks[rows]
            if len(chosen.tasks) <= _FEW:
                for key in chosen.tasks:
                    mask &= tasks != key
            else:
                mask &= ~np.isin(tasks, _numbers(chosen.tasks))
        if chosen.polarity is not None:
            mask &= self.successes[rows] == (chosen.polarity == "success")
        if chosen.hidden:
            if isinstance(rows, slice):
                hidden = self.rows(_numbers(chosen.hidden))
                start, stop, _ = rows.indices(self.size)
                mask[hidden[(hidden >= start) & (hidden < stop)] - start] = False
            else:
                mask &= ~np.isin(self.seqs[rows], _numbers(chosen.hidden))
        return mask

    def _grown(self, capacity: int) -> Columns:
        columns = (self.seqs, self.tasks, self.successes, self.ended)
        return Columns(self.size, *(_longer(values[: self.size], capacity) for values in columns))


def no_rows() -> Columns:
    """Columns without a row."""
    numbers = np.empty(0, np.int64)
    return Columns(0, numbers, numbers, np.empty(0, np.bool_), numbers)


def _longer(values: NDArray[Any], capacity: int) -> NDArray[Any]:
    grown = np.empty(capacity, values.dtype)
    grown[: len(values)] = values
    return grown


def _numbers(values: Collection[int]) -> NDArray[np.int64]:
    return np.fromiter(values, np.int64, len(values))
