"""The index of a fork: another view's rows, shared, and what happened in the fork."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rb_dspy.bank.index.vector import IndexView, VectorIndex
from rb_dspy.bank.index.view import NO_FILTER, Filter, Nearest, View, merged
from rb_dspy.bank.parts import Changes
from rb_dspy.protocols import Vectors


@dataclass(frozen=True, slots=True)
class LayeredView:
    """A ``View`` of ``base`` less the rows that were ended here, and of rows of its own."""

    base: View
    own: IndexView
    ended: NDArray[np.int64]
    """Rows of ``base``, each with the number that ended it here, ``(m, 2)``, in ascending order of the latter."""
    gone: frozenset[int]
    """The rows in ``ended``."""

    @property
    def dimension(self) -> int:
        """See ``View.dimension``."""
        return self.own.dimension

    @property
    def mark(self) -> int:
        return max(self.base.mark, self.own.mark)

    def __len__(self) -> int:
        return len(self.base) - len(self.gone) + len(self.own)

    def allowed(self, seqs: Sequence[int], chosen: Filter = NO_FILTER) -> NDArray[np.bool_]:
        """See ``View.allowed``."""
        return self.base.allowed(seqs, self._below(chosen)) | self.own.allowed(seqs, chosen)

    def at(self, mark: int) -> View:
        """See ``View.at``."""
        if mark >= self.mark:
            return self
        if mark <= self.base.mark:
            return self.base.at(mark)
        ended = self.ended[: np.searchsorted(self.ended[:, 1], mark, side="right")]
        return LayeredView(self.base, self.own.at(mark), ended, frozenset(ended[:, 0].tolist()))

    def candidates(self, query: Vectors, k: int, chosen: Filter) -> Nearest:
        """See ``View.candidates``."""
        below = self.base.candidates(query, k, self._below(chosen))
        return merged([below, self.own.candidates(query, k, chosen)])

    def _below(self, chosen: Filter) -> Filter:
        """``chosen`` for ``base``: what was ended here is left out as well."""
        return Filter(chosen.tasks, chosen.polarity, self.gone.union(chosen.hidden) if chosen.hidden else self.gone)


class LayeredIndex:
    """What happens in a fork, over ``base``, which is shared and may be a fork's view itself.

    Making one takes microseconds and some hundred bytes, whatever the size of ``base``. As with ``VectorIndex``,
    ``apply`` is for one thread at a time, and ``view`` needs no lock.
    """

    def __init__(self, base: View, dimension: int) -> None:
        self._own = VectorIndex(dimension)
        self._view = LayeredView(base, self._own.view, _NOTHING, frozenset())

    @property
    def view(self) -> LayeredView:
        """The newest state, complete; it does not change when the index does."""
        return self._view

    def apply(self, changes: Changes) -> None:
        """Go on to ``changes.mark``: rows born here, and ends of these or of rows of the base. See ``VectorIndex``."""
        view = self._view
        self._own.apply(changes)
        own = self._own.view
        mine = own.columns.rows(changes.ended[:, 0]) >= 0
        new = [pair for pair in changes.ended[~mine].tolist() if pair[0] not in view.gone]
        if new:
            alive = view.base.allowed([seq for seq, _ in new])
            new = [pair for pair, lives in zip(new, alive.tolist(), strict=True) if lives]
        ended = np.concatenate([view.ended, np.array(new, np.int64).reshape(-1, 2)]) if new else view.ended
        gone = view.gone.union(seq for seq, _ in new) if new else view.gone
        self._view = LayeredView(view.base, own, ended, gone)


_NOTHING = np.empty((0, 2), np.int64)
