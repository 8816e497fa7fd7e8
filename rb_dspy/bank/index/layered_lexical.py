"""The word index of a fork: another view's rows, shared, and what was learned in the fork."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rb_dspy.bank.index.lexical import LexicalIndex, LexicalView
from rb_dspy.bank.index.word_view import Postings, Term, WordView


@dataclass(frozen=True, slots=True)
class LayeredLexicalView:
    """A ``WordView`` of ``base`` and of rows of its own, whose numbers are higher.

    Everything that a score depends on is added up over both, so that ``search`` gives what it would give in one index
    of all these rows. Nothing is left out of ``base``: who searches says what may be found, and what has ended counts
    as everywhere.
    """

    base: WordView
    own: LexicalView

    @property
    def mark(self) -> int:
        """See ``WordView.mark``."""
        return max(self.base.mark, self.own.mark)

    @property
    def tokens(self) -> int:
        """See ``WordView.tokens``."""
        return self.base.tokens + self.own.tokens

    def __len__(self) -> int:
        return len(self.base) + len(self.own)

    def at(self, mark: int) -> WordView:
        """See ``WordView.at``."""
        if mark >= self.mark:
            return self
        if mark <= self.base.mark:
            return self.base.at(mark)
        return LayeredLexicalView(self.base, self.own.at(mark))

    def terms(self, words: Sequence[str]) -> list[Term]:
        """See ``WordView.terms``: the base cuts words as this does."""
        return self.base.terms(words)

    def count(self, term: Term) -> int:
        """See ``WordView.count``."""
        return self.base.count(term) + self.own.count(term)

    def postings(self, term: Term) -> Postings:
        """See ``WordView.postings``."""
        pairs = zip(self.base.postings(term), self.own.postings(term), strict=True)
        return Postings(*(np.concatenate(pair) for pair in pairs))


class LayeredLexicalIndex:
    """What is learned in a fork, over ``base``, which is shared and may be a fork's view itself.

    Making one takes microseconds and some hundred bytes, whatever the size of ``base``; it has a database of its own
    from its first row on. Safe to use from threads; who reads ``base`` waits for each other.
    """

    def __init__(self, base: WordView, *, stemmed: bool = False) -> None:
        """``stemmed``: as in ``base``."""
        self._base = base
        self._own = LexicalIndex(stemmed=stemmed)

    @property
    def view(self) -> LayeredLexicalView:
        """All rows; it does not change when the index does."""
        return LayeredLexicalView(self._base, self._own.view)

    def add(self, rows: Sequence[tuple[int, str]]) -> None:
        """Put in rows of the fork, whose numbers are higher than those of ``base``. See ``LexicalIndex.add``."""
        self._own.add(rows)
