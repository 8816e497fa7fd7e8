"""Search by words: SQLite's FTS5 with its own BM25, in memory."""

from __future__ import annotations

import re
import sqlite3
import threading
from collections.abc import Callable, Iterable

from rb_dspy.bank.store.base import Hit

_WORDS = re.compile(r"\w+")

_MOST = 200
"""Maximum number of different words searched per query."""


class WordIndex:
    """The texts of one scope and unit. Words are compared by their stems, without case and accents."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._database = sqlite3.connect(":memory:", check_same_thread=False, isolation_level=None)
        self._database.execute(
            "CREATE VIRTUAL TABLE words USING fts5(text, content='', tokenize='porter unicode61 remove_diacritics 2')"
        )

    def add(self, texts: Iterable[tuple[int, str]]) -> None:
        """Add texts by their numbers."""
        with self._lock, self._database:
            self._database.execute("BEGIN")  # otherwise each row is a transaction
            self._database.executemany("INSERT INTO words(rowid, text) VALUES (?, ?)", texts)

    def search(self, query: str, count: int, allowed: Callable[[list[int]], list[bool]]) -> list[Hit]:
        """The ``count`` best allowed rows that share a word with ``query``; equal scores newest first."""
        terms = query_words(query)
        if not terms:
            return []
        match = " OR ".join(f'"{term}"' for term in terms)
        with self._lock:
            rows = self._database.execute(
                "SELECT rowid, -bm25(words) FROM words WHERE words MATCH ? ORDER BY 2 DESC, 1 DESC", (match,)
            ).fetchall()
        passed = allowed([seq for seq, _ in rows])
        return [Hit(seq, max(score, 1e-9)) for (seq, score), may in zip(rows, passed, strict=True) if may][:count]


def query_words(query: str) -> list[str]:
    """The different words of a query, in lower case, at most 200."""
    return list(dict.fromkeys(word.lower() for word in _WORDS.findall(query)))[:_MOST]
