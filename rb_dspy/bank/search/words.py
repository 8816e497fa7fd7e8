"""Search by words: SQLite's FTS5 with its own BM25, in memory.

Chinese, Japanese, Korean and Thai have no words that a program could cut out without a dictionary, so each pair of
neighboring characters counts as a word.
"""

from __future__ import annotations

import re
import sqlite3
import threading
from collections.abc import Callable, Iterable
from unicodedata import normalize

from rb_dspy.bank.store.base import Hit
from rb_dspy.text import UNSPACED

_RUN = re.compile(f"[{UNSPACED}]+")
_WORDS = re.compile(rf"[{UNSPACED}]+|(?:(?![{UNSPACED}])\w)+")

_MOST = 200
"""Maximum number of different words searched per query."""


class WordIndex:
    """The texts of one scope and unit. Words are compared by their stems, without case and accents."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._database = sqlite3.connect(":memory:", check_same_thread=False, isolation_level=None)
        self._database.execute(
            "CREATE VIRTUAL TABLE words USING fts5(text, content='', tokenize="
            "\"porter unicode61 remove_diacritics 2 categories 'L* N* Co Mn Mc'\")"  # vowels of Thai are marks
        )

    def add(self, texts: Iterable[tuple[int, str]]) -> None:
        """Add texts by their numbers."""
        with self._lock, self._database:
            self._database.execute("BEGIN")  # otherwise each row is a transaction
            rows = ((seq, _separated(text)) for seq, text in texts)
            self._database.executemany("INSERT INTO words(rowid, text) VALUES (?, ?)", rows)

    def search(self, query: str, count: int, allowed: Callable[[list[int]], list[bool]]) -> list[Hit]:
        """The ``count`` best allowed rows that share a word with ``query``; equal scores newest first."""
        terms = query_words(normalize("NFKC", query))
        if not terms:
            return []
        match = " OR ".join(f'"{term}"*' if len(term) == 1 and is_unspaced(term) else f'"{term}"' for term in terms)
        with self._lock:
            rows = self._database.execute(
                "SELECT rowid, -bm25(words) FROM words WHERE words MATCH ? ORDER BY 2 DESC, 1 DESC", (match,)
            ).fetchall()
        passed = allowed([seq for seq, _ in rows])
        return [Hit(seq, max(score, 1e-9)) for (seq, score), may in zip(rows, passed, strict=True) if may][:count]


def query_words(query: str) -> list[str]:
    """The different words of a query, in lower case, at most 200."""
    words: list[str] = []
    for word in _WORDS.findall(query):
        words += [word[at : at + 2] for at in range(max(1, len(word) - 1))] if is_unspaced(word) else [word.lower()]
    return list(dict.fromkeys(words))[:_MOST]


def is_unspaced(word: str) -> bool:
    """Whether a word of ``query_words`` is of a script without spaces: a pair of characters, or a single one."""
    return _RUN.match(word) is not None


def _separated(text: str) -> str:
    """Write the pairs of neighboring characters as words; the last character is one too, to be found by its own."""
    if text.isascii():
        return text
    return _RUN.sub(_pairs, normalize("NFKC", text))


def _pairs(run: re.Match[str]) -> str:
    return f" {' '.join(run[0][at : at + 2] for at in range(len(run[0])))} "
