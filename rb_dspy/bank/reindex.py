"""Moving a bank to another embedder, and making vectors that are missing."""

from __future__ import annotations

from rb_dspy.bank.embedding import embed
from rb_dspy.bank.store import sql
from rb_dspy.bank.store.sql import Database
from rb_dspy.protocols import Embedder

_BATCH = 100
"""Texts that are embedded at once; other writers wait for the last batch at most."""


def reindex(database: Database, embedder: Embedder) -> int:
    """Make the vectors of ``embedder`` that are missing in all scopes, beside those of the embedder until now; then
    change over to it in one transaction. Returns how many were made.

    If the embedder raises, the bank works on as it was, and the next call goes on where this one ended.
    """
    whose = embedder.id, embedder.dimension
    made = 0
    while True:
        with database.reading() as connection:
            texts = sql.unembedded(connection, embedder.id, _BATCH)
        if len(texts) < _BATCH:
            break
        rows = embed(embedder, [each.text for each in texts])
        with database.writing() as connection:
            made += sql.add_vectors(connection, embedder.id, texts, rows)
    with database.writing() as connection:
        texts = sql.unembedded(connection, embedder.id, None)
        if texts:
            made += sql.add_vectors(connection, embedder.id, texts, embed(embedder, [each.text for each in texts]))
        sql.change_over(connection, whose, anew=bool(made))
    return made
