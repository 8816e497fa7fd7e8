"""Rows by the words they share with a query: BM25, by SQLite's FTS5 in a private temporary database."""

from __future__ import annotations

import sqlite3
import threading
import weakref
from collections.abc import Callable, Sequence

import numpy as np
import regex
from numpy.typing import NDArray

from rb_dspy.bank.index.view import Hit
from rb_dspy.errors import StorageError

MAX_TERMS = 64
"""Terms of a query that are looked up, from its beginning: time grows with each, and long texts repeat themselves."""

_COMMON_SHARE = 1 / 4
_COMMON = 1000
"""A word is common when more than this share of the rows have it, and more than so many rows.

Measured on 100,000 texts of 700 characters, 200 to 300 of them instructions of one family each: 100 ms a query with all
words, 32 ms without those in a quarter of the rows, the same five rows 91 % of the time; 1/8: 19 ms, 85 %.
"""

_WORDS = regex.compile(r"[\w\p{M}]+")
"""A word keeps its combining marks, which FTS5 takes for part of it, or splits at in texts and queries alike."""

_CACHE_KIB = 32 << 10


class LexicalIndex:
    """Texts of one unit in one scope: how rare a word is, which BM25 weighs, is counted within these alone.

    Rows that have ended stay in the counts. Safe to use from threads: calls wait for each other. Making one costs
    nothing; the database, a file in the system's folder for temporary files once it is large, is made with the first
    row and goes with the object.
    """

    def __init__(self, *, stemmed: bool = False) -> None:
        """``stemmed``: cut English words to their stems; case and accents are never looked at."""
        self._tokenizer = "porter unicode61 remove_diacritics 2" if stemmed else "unicode61 remove_diacritics 2"
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._mark = 0
        self._size = 0
        self._common: set[str] = set()
        self._common_at = 0

    def __len__(self) -> int:
        return self._size

    def add(self, rows: Sequence[tuple[int, str]]) -> None:
        """Put in texts by row number, in ascending order; numbers up to the highest that is in are skipped.

        All or nothing. Raises ``StorageError`` where there is no room for temporary files.
        """
        with self._lock:
            new = [(seq, text.encode("utf-8", "replace").decode()) for seq, text in rows if seq > self._mark]
            if not new:
                return
            try:
                connection = self._connection or self._made()
                with connection:
                    connection.executemany("INSERT INTO words (rowid, text) VALUES (?, ?)", new)
            except sqlite3.Error as exc:
                raise StorageError(f"the word index cannot be written ({exc}); free space for temporary files") from exc
            self._mark = new[-1][0]
            self._size += len(new)

    def search(self, text: str, k: int, allowed: Callable[[Sequence[int]], NDArray[np.bool_]]) -> list[Hit]:
        """The ``k`` rows that are ``allowed`` and share most with ``text``, best first, the newest first among equals.

        ``allowed`` gets row numbers and says for each whether it may be found; fewer than ``k`` hits only where no more
        rows share a word. Rare words count more, and words in short texts. Scores are above 0. No character of
        ``text`` has a special meaning; terms after the first ``MAX_TERMS`` different ones are not looked at.

        In a large index words that one row in four has do not count where rarer ones give ``k`` hits: they say little,
        and reading all their rows is most of the time.
        """
        terms = list(dict.fromkeys(_WORDS.findall(text.lower())))[:MAX_TERMS]
        if not terms or k <= 0:
            return []
        with self._lock:
            if self._connection is None:
                return []
            k = min(k, self._size)
            try:
                rare = self._rare(self._connection, terms)
                hits = _ranked(self._connection, rare, k, allowed) if rare else []
                if len(hits) < k and len(rare) < len(terms):
                    hits = _ranked(self._connection, terms, k, allowed)
            except sqlite3.Error as exc:
                raise StorageError(f"the word index cannot be read ({exc}); open the bank again") from exc
            return hits

    def _rare(self, connection: sqlite3.Connection, terms: list[str]) -> list[str]:
        """Those of ``terms`` that are not common."""
        if self._size > 2 * self._common_at:
            self._common, self._common_at = set(), self._size
        limit = int(max(_COMMON, self._size * _COMMON_SHARE)) + 1
        if self._size < limit:
            return terms
        rare = [term for term in terms if term not in self._common]
        for term in rare:
            ((rows,),) = connection.execute(_COUNT, (f'"{term}"', limit))
            if rows == limit:
                self._common.add(term)
        return [term for term in rare if term not in self._common]

    def _made(self) -> sqlite3.Connection:
        # Without a name it is SQLite's own temporary database: in memory while it is small, and nobody else's.
        connection = sqlite3.connect("", check_same_thread=False)
        weakref.finalize(self, connection.close)
        connection.execute("PRAGMA journal_mode = MEMORY")
        connection.execute("PRAGMA synchronous = OFF")
        connection.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
        connection.execute(f"CREATE VIRTUAL TABLE words USING fts5(text, content='', tokenize='{self._tokenizer}')")
        self._connection = connection
        return connection


_SEARCH = "SELECT rowid, bm25(words) AS score FROM words WHERE words MATCH ? ORDER BY score, rowid DESC LIMIT ?"
_COUNT = "SELECT count(*) FROM (SELECT 1 FROM words WHERE words MATCH ? LIMIT ?)"


def _ranked(
    connection: sqlite3.Connection, terms: list[str], k: int, allowed: Callable[[Sequence[int]], NDArray[np.bool_]]
) -> list[Hit]:
    query = " OR ".join(f'"{term}"' for term in terms)
    fetch = 2 * k + 16
    while True:
        found = connection.execute(_SEARCH, (query, fetch)).fetchall()
        mask = allowed([seq for seq, _ in found])
        hits = [Hit(seq, -score) for (seq, score), may in zip(found, mask, strict=True) if may]
        if len(hits) >= k or len(found) < fetch:
            return hits[:k]
        fetch *= 8
