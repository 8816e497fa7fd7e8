"""Rank the rows of a scope with an index in memory that follows its store; a fork uses its base's and its own."""

from __future__ import annotations

import threading
from dataclasses import replace
from itertools import islice

from rb_dspy.bank.search.ivf import EXACT_ROWS
from rb_dspy.bank.search.postgres import PostgresSearcher
from rb_dspy.bank.search.vectors import VectorIndex
from rb_dspy.bank.search.words import WordIndex
from rb_dspy.bank.store.base import Filter, Hit, Unit
from rb_dspy.bank.store.overlay import Overlay
from rb_dspy.bank.store.sql import SqlScope
from rb_dspy.protocols import Vectors

_PAGE = 5_000
"""Rows added to an index at once."""


class StoreSearcher:
    """Ranks the rows of a database in memory."""

    def __init__(self, scope: SqlScope, exact_rows: int = EXACT_ROWS) -> None:
        """``exact_rows``: see ``VectorIndex``."""
        self.embedder = ""
        self._scope = scope
        self._exact_rows = exact_rows
        self._epoch = 0
        self._lock = threading.Lock()
        self._vectors: dict[Unit, tuple[VectorIndex, int]] = {}
        self._words: dict[Unit, tuple[WordIndex, int]] = {}

    def is_empty(self, unit: Unit) -> bool:
        cached = self._vectors.get(unit)
        return not (cached and len(cached[0])) and not len(self._index(unit)[0])

    def nearest(self, unit: Unit, vector: Vectors, count: int, only: Filter) -> list[Hit]:
        return self._index(unit)[0].search(vector, count, only)

    def matching(self, unit: Unit, query: str, count: int, only: Filter) -> list[Hit]:
        index, upto = self._index(unit)
        with self._lock:
            words, mark = self._words.pop(unit) if unit in self._words else (WordIndex(), 0)
            if upto > mark:
                words.add(self._scope.texts(unit, after=mark, upto=upto))
            self._words[unit] = words, max(mark, upto)
        return words.search(query, count, lambda seqs: index.allowed(seqs, only))

    def _index(self, unit: Unit) -> tuple[VectorIndex, int]:
        """Return the index, with everything committed before this call, and the last number in it."""
        seq, epoch, self.embedder = self._scope.watermark(self.embedder)
        if epoch != self._epoch:
            with self._lock:
                self._epoch = epoch
                self._vectors.clear()
                self._words.clear()
        cached = self._vectors.get(unit)
        if cached is not None and cached[1] >= seq:
            return cached
        with self._lock:
            # popped, so that an index is dropped if this is interrupted
            index, mark = self._vectors.pop(unit) if unit in self._vectors else (VectorIndex(self._exact_rows), 0)
            if mark < seq:
                rows = self._scope.index_rows(unit, after=mark, upto=seq)
                while page := list(islice(rows, _PAGE)):
                    index.add(page)
                index.end(self._scope.index_ended(unit, after=mark, upto=seq))
            cached = self._vectors[unit] = index, max(mark, seq)
        return cached


class OverlaySearcher:
    """Ranks the rows of a fork or a snapshot: those of its base as they were, and its own."""

    def __init__(self, overlay: Overlay, base: Searcher) -> None:
        self._overlay = overlay
        self._base = base
        self._lock = threading.Lock()
        self._own: StoreSearcher | None = None

    @property
    def embedder(self) -> str:
        return self._base.embedder or (self._own.embedder if self._own else "")

    def is_empty(self, unit: Unit) -> bool:
        own = self._searcher()
        return self._base.is_empty(unit) and (own is None or own.is_empty(unit))

    def nearest(self, unit: Unit, vector: Vectors, count: int, only: Filter) -> list[Hit]:
        own = self._searcher()
        hits = self._base.nearest(unit, vector, count, self._below(only))
        return _merged(hits, [] if own is None else own.nearest(unit, vector, count, only), count)

    def matching(self, unit: Unit, query: str, count: int, only: Filter) -> list[Hit]:
        own = self._searcher()
        hits = self._base.matching(unit, query, count, self._below(only))
        return _merged(hits, [] if own is None else own.matching(unit, query, count, only), count)

    def _below(self, only: Filter) -> Filter:
        born, hidden = self._overlay.born, self._overlay.hidden
        if only.at is not None:
            hidden = {seq: at for seq, at in hidden.items() if at <= only.at}
        at = born if only.at is None else min(only.at, born)
        return replace(only, at=at, hidden={*hidden, *only.hidden})

    def _searcher(self) -> StoreSearcher | None:
        own = self._overlay.own
        if own is not None and self._own is None:
            with self._lock:
                self._own = self._own or StoreSearcher(own)
        return self._own


def _merged(below: list[Hit], own: list[Hit], count: int) -> list[Hit]:
    return sorted([*below, *own], key=lambda hit: (-hit.score, -hit.seq))[:count]


Searcher = StoreSearcher | PostgresSearcher | OverlaySearcher
"""Ranks the rows of a scope as it is now. Safe to use from threads.

``embedder`` is the id of the embedder whose vectors were ranked last, empty if there were none. ``is_empty``: whether
the scope has never had rows of a unit. ``nearest`` returns rows by cosine, ``matching`` those that share words.
"""
