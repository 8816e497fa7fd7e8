"""Rank the rows of a scope in PostgreSQL: pgvector for vectors, PostgreSQL's full text search for words."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection, bindparam, text

from rb_dspy.bank.search.words import is_unspaced, query_words
from rb_dspy.bank.store.base import HELD, Filter, Hit, Unit
from rb_dspy.bank.store.postgres import MAX_EXACT, MAX_INDEXED, PostgresDatabase
from rb_dspy.bank.store.sql import SqlScope
from rb_dspy.protocols import Vectors
from rb_dspy.text import normalize

_MARGIN = 16
"""Extra rows requested from the index, because it compares in half precision and scores are rounded."""

_MOST = 2**31 - 1
"""Maximum number of rows requested."""

_LONGEST = 2_000
"""Maximum bytes of a word that PostgreSQL can search; longer words are not indexed either."""


class PostgresSearcher:
    """Ranks the rows of a scope in the database; nothing is cached in memory.

    ``matching`` is PostgreSQL's full text search with its English stemmer and ``ts_rank_cd``. That is not BM25: it does
    not count how rare a word is, words such as "the" and "not" are not searched, and accents count.
    """

    def __init__(self, database: PostgresDatabase, scope: SqlScope) -> None:
        self.embedder = ""
        self._database = database
        self._scope = scope

    def is_empty(self, unit: Unit) -> bool:
        with self._reading() as (connection, _):
            return not connection.execute(_ANY, self._values(unit)).scalar_one()

    def nearest(self, unit: Unit, vector: Vectors, count: int, only: Filter) -> list[Hit]:
        """The rows nearest to ``vector``, filtered before they are ranked.

        Uses the index in a large scope. The index may miss rows; if it finds fewer than ``count``, the search is exact.
        """
        where, values = _filters(only)
        values |= self._values(unit) | {
            "vector": json.dumps(vector.tolist()),
            "count": min(count, _MOST),
            "most": count + _MARGIN,
        }
        score = "round((1 - (CAST(vectors.data AS vector) <=> CAST(:vector AS vector))) * 100000) / 100000"
        rows = f"SELECT seq, {score} AS score FROM {unit}s JOIN vectors USING (scope_id, seq) WHERE {where}"
        half = f"halfvec({len(vector)})"
        near = f"{rows} ORDER BY CAST(vectors.data AS {half}) <#> CAST(:vector AS {half}), seq DESC LIMIT :most"
        best = "ORDER BY score DESC, seq DESC LIMIT :count"
        with self._reading() as (connection, mark):
            if mark > MAX_EXACT and count < mark and len(vector) <= MAX_INDEXED:
                hits = _hits(connection, f"SELECT * FROM ({near}) AS near {best}", values)
                if len(hits) >= count:
                    return hits
            return _hits(connection, f"{rows} {best}", values)

    def matching(self, unit: Unit, query: str, count: int, only: Filter) -> list[Hit]:
        """The rows that share words with ``query``, by ``ts_rank_cd``."""
        words = [part for each in query_words(query) for part in each.split("_") if 0 < len(part.encode()) <= _LONGEST]
        if not words:
            return []
        sought = " | ".join(_phrase(word) if is_unspaced(word) else f"'{word}'" for word in words)
        where, values = _filters(only)
        values |= self._values(unit) | {"sought": sought, "count": min(count, _MOST)}
        statement = (
            f"SELECT seq, greatest(ts_rank_cd(words, {_SOUGHT}), 1e-9) AS score FROM {unit}s"
            f" JOIN vectors USING (scope_id, seq) WHERE {where} AND words @@ {_SOUGHT}"
            " ORDER BY score DESC, seq DESC LIMIT :count"
        )
        with self._reading() as (connection, _):
            return _hits(connection, statement, values)

    @contextmanager
    def _reading(self) -> Iterator[tuple[Connection, int]]:
        """Yield a connection, and the highest number used. Raises ``EmbedderMismatch`` if the bank was moved."""
        with self._database.reading() as connection:
            mark, _, self.embedder = self._scope.watermark(self.embedder)
            yield connection, mark

    def _values(self, unit: Unit) -> dict[str, Any]:
        return {"scope": self._scope.id, "unit": unit, "embedder": self.embedder}


_OURS = "scope_id = :scope AND unit = :unit AND embedder = :embedder"

_SOUGHT = "to_tsquery('english', :sought)"

_ANY = text(f"SELECT EXISTS (SELECT 1 FROM vectors WHERE {_OURS})")


def _filters(only: Filter) -> tuple[str, dict[str, Any]]:
    """The condition that rows must meet, and its values."""
    values: dict[str, Any] = {}
    parts = [_OURS, "ended IS NULL" if only.at is None else "seq <= :at AND (ended IS NULL OR ended > :at)"]
    if only.at is not None:
        values["at"] = only.at
    # a text that is not normalized is no task's id, and PostgreSQL would reject some of them
    tasks = [task for task in only.exclude_tasks if normalize(task) == task]
    if tasks:
        parts.append("task_id <> ALL(:tasks)")
        values["tasks"] = tasks
    if only.polarity is not None:
        parts.append("polarity = :polarity")
        values["polarity"] = only.polarity
    if only.kinds is not None:
        parts.append("kind = ANY(:kinds)")
        values["kinds"] = [kind for kind in only.kinds if normalize(kind) == kind]
    for name, seqs, part in (
        ("hidden", only.hidden or None, "seq <> ALL(:hidden)"),
        ("within", only.within, "seq = ANY(:within)"),
        ("released", only.released or None, f"(level > {HELD} OR seq = ANY(:released))"),
    ):
        if seqs is not None:
            parts.append(part)
            values[name] = list(seqs)
    if not only.released:
        parts.append(f"level > {HELD}")
    return " AND ".join(parts), values


def _hits(connection: Connection, statement: str, values: dict[str, Any]) -> list[Hit]:
    """Run the statement. The conditions of the index are literals; the planner could not use it with parameters."""
    indexed = ("unit", "embedder")
    literals: list[Any] = [bindparam(name, values[name], literal_execute=True) for name in indexed]
    others = {name: value for name, value in values.items() if name not in indexed}
    rows = connection.execute(text(statement).bindparams(*literals), others)
    return [Hit(int(seq), float(score)) for seq, score in rows]


def _phrase(pair: str) -> str:
    """Two neighboring characters, each a word of its own."""
    return "(" + " <-> ".join(f"'{each}'" for each in pair) + ")"
