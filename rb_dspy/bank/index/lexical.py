"""The words of rows: which rows have one, and how often, by SQLite's FTS5 in a private temporary database."""

from __future__ import annotations

import sqlite3
import threading
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce

import numpy as np
from numpy.typing import NDArray

from rb_dspy.bank.index.word_view import COMMON, Postings, Term
from rb_dspy.errors import StorageError

_CACHE_KIB = 32 << 10

_OFFSETS = 32
"""Bits for where in its text a token stands, beside the row in one number."""


@dataclass(frozen=True, slots=True)
class LexicalView:
    """A ``WordView`` of the first ``size`` rows of ``index``."""

    index: LexicalIndex
    size: int

    @property
    def mark(self) -> int:
        """See ``WordView.mark``."""
        return self.index.mark(self.size)

    @property
    def tokens(self) -> int:
        """See ``WordView.tokens``."""
        return self.index.tokens(self.size)

    def __len__(self) -> int:
        return self.size

    def at(self, mark: int) -> LexicalView:
        """See ``WordView.at``."""
        return self if mark >= self.mark else LexicalView(self.index, self.index.size(mark))

    def terms(self, words: Sequence[str]) -> list[Term]:
        """See ``WordView.terms``."""
        return self.index.terms(words)

    def count(self, term: Term) -> int:
        """See ``WordView.count``."""
        return self.index.count(term, self.size)

    def postings(self, term: Term) -> Postings:
        """See ``WordView.postings``."""
        return self.index.postings(term, self.size)


class LexicalIndex:
    """Texts of one unit in one scope: how rare a word is, which BM25 weighs, is counted within these alone.

    Safe to use from threads: calls wait for each other. Making one costs nothing; the database, a file in the system's
    folder for temporary files once it is large, is made when it is first used and goes with the object.
    """

    def __init__(self, *, stemmed: bool = False) -> None:
        """``stemmed``: cut English words to their stems; case and accents are never looked at."""
        self._tokenizer = "porter unicode61 remove_diacritics 2" if stemmed else "unicode61 remove_diacritics 2"
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._size = 0
        # Of rows that are in they never change, so that they are read without the lock.
        self._seqs = np.empty(0, np.int64)
        self._ends = np.zeros(1, np.int64)
        """The tokens of the rows before each; what comes after the last in use is of no meaning."""
        self._counted: dict[str, tuple[int, int]] = {}
        """Of common words: how many of the first so many rows have it."""

    def __len__(self) -> int:
        return self._size

    @property
    def view(self) -> LexicalView:
        """All rows; it does not change when the index does."""
        return LexicalView(self, self._size)

    def add(self, rows: Sequence[tuple[int, str]]) -> None:
        """Put in texts by row number, in ascending order; numbers up to the highest that is in are skipped.

        All or nothing. Raises ``StorageError`` where there is no room for temporary files.
        """
        with self._lock:
            mark = self.mark(self._size)
            new = [(seq, text.encode("utf-8", "replace").decode()) for seq, text in rows if seq > mark]
            if not new:
                return
            try:
                connection = self._made()
                with connection:
                    texts = enumerate((text for _, text in new), self._size + 1)
                    connection.executemany("INSERT INTO words (rowid, text) VALUES (?, ?)", texts)
                    sizes = connection.execute(_SIZES, (self._size,)).fetchall()
            except sqlite3.Error as exc:
                raise StorageError(f"the word index cannot be written ({exc}); free space for temporary files") from exc
            end = self._size + len(new)
            if end > len(self._seqs):
                capacity = max(end, 2 * len(self._seqs))
                self._seqs = _longer(self._seqs[: self._size], capacity)
                self._ends = _longer(self._ends[: self._size + 1], capacity + 1)
            self._seqs[self._size : end] = [seq for seq, _ in new]
            lengths = np.array([_number(size) for (size,) in sizes], np.int64)
            self._ends[self._size + 1 : end + 1] = self._ends[self._size] + np.cumsum(lengths)
            self._size = end

    def mark(self, size: int) -> int:
        """The highest number of the first ``size`` rows."""
        return int(self._seqs[size - 1]) if size else 0

    def size(self, mark: int) -> int:
        """How many rows have numbers up to ``mark``."""
        size = self._size  # before the array: that of another moment may be shorter
        return int(np.searchsorted(self._seqs[:size], mark, side="right"))

    def tokens(self, size: int) -> int:
        """The length of the first ``size`` texts together."""
        return int(self._ends[size])

    def terms(self, words: Sequence[str]) -> list[Term]:
        """See ``WordView.terms``."""
        found: dict[int, list[str]] = {}
        with self._reading() as connection:
            for table in (f"asked USING fts5(text, content='', tokenize='{self._tokenizer}')", _ASKED_PLACES):
                connection.execute(f"CREATE VIRTUAL TABLE IF NOT EXISTS {table}")
            try:
                connection.executemany("INSERT INTO asked (rowid, text) VALUES (?, ?)", enumerate(words))
                for place, token in connection.execute("SELECT doc, term FROM asked_places ORDER BY doc, offset"):
                    found.setdefault(place, []).append(token)
            finally:
                connection.rollback()
        return [Term(words[place], tuple(tokens)) for place, tokens in found.items()]

    def count(self, term: Term, size: int) -> int:
        """How many of the first ``size`` rows have it; a common word's rows are read only as far as they are new."""
        if not self._size:
            return 0
        with self._reading() as connection:
            at, rows = self._counted.get(term.word, (0, 0))
            if at != size:
                ((between,),) = connection.execute(_COUNT, (f'"{term.word}"', min(at, size), max(at, size)))
                rows += between if at < size else -between
                if at < size and rows >= COMMON:
                    self._counted[term.word] = size, rows
            return rows

    def postings(self, term: Term, size: int) -> Postings:
        """Those of the first ``size`` rows that have it."""
        if not self._size:
            return _NONE
        with self._reading() as connection:
            if len(term.tokens) == 1:
                rows = _numbers(connection.execute(_ROWS, term.tokens).fetchone()[0])
            else:
                rows = _side_by_side(connection, term.tokens)
        rows, times = np.unique(rows[rows <= size], return_counts=True)
        return Postings(self._seqs[rows - 1], times.astype(np.int64), self._ends[rows] - self._ends[rows - 1])

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            try:
                yield self._made()
            except sqlite3.Error as exc:
                raise StorageError(f"the word index cannot be read ({exc}); open the bank again") from exc

    def _made(self) -> sqlite3.Connection:
        if self._connection is not None:
            return self._connection
        # Without a name it is SQLite's own temporary database: in memory while it is small, and nobody else's.
        connection = sqlite3.connect("", check_same_thread=False)
        weakref.finalize(self, connection.close)
        connection.execute("PRAGMA journal_mode = MEMORY")
        connection.execute("PRAGMA synchronous = OFF")
        connection.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
        connection.execute(f"CREATE VIRTUAL TABLE words USING fts5(text, content='', tokenize='{self._tokenizer}')")
        connection.execute("CREATE VIRTUAL TABLE places USING fts5vocab(words, instance)")
        self._connection = connection
        return connection


_ASKED_PLACES = "asked_places USING fts5vocab(asked, instance)"
_SIZES = "SELECT sz FROM words_docsize WHERE id > ? ORDER BY id"
_COUNT = "SELECT count(*) FROM words WHERE words MATCH ? AND rowid > ? AND rowid <= ?"
_ROWS = "SELECT group_concat(doc) FROM places WHERE term = ?"
"""One text for all places: three times as fast as a row for each."""
_PLACES = f"SELECT group_concat((doc << {_OFFSETS}) + offset) FROM places WHERE term = ?"

_NOTHING = np.empty(0, np.int64)
_NONE = Postings(_NOTHING, _NOTHING, _NOTHING)


def _side_by_side(connection: sqlite3.Connection, tokens: Sequence[str]) -> NDArray[np.int64]:
    """The rows of all places where ``tokens`` stand one after the other."""
    starts = [_numbers(connection.execute(_PLACES, (token,)).fetchone()[0]) - n for n, token in enumerate(tokens)]
    found: NDArray[np.int64] = reduce(np.intersect1d, starts)
    return found >> _OFFSETS


def _numbers(text: str | None) -> NDArray[np.int64]:
    return np.fromstring(text, np.int64, sep=",") if text else _NOTHING


def _number(data: bytes) -> int:
    """How FTS5 keeps the length of a text: seven bits a byte, the highest first."""
    return reduce(lambda number, byte: number << 7 | byte & 127, data, 0)


def _longer(values: NDArray[np.int64], capacity: int) -> NDArray[np.int64]:
    grown = np.empty(capacity, np.int64)
    grown[: len(values)] = values
    return grown
