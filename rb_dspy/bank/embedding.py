"""Embed texts and check the vectors before they are stored or ranked; move a bank to another embedder."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rb_dspy.bank.store import embedders
from rb_dspy.bank.store.sql import Database
from rb_dspy.errors import EmbedderMismatch, InvalidVector
from rb_dspy.protocols import Embedder, Vectors

_SMALLEST = 1e-6

_BATCH = 100
"""Texts that ``reindex`` embeds at once; other writers wait for the last batch only."""


def embed(embedder: Embedder, texts: Sequence[str]) -> Vectors:
    """Embed texts as unit float32 rows; rows of another length are scaled.

    Raises ``InvalidVector`` if the result has another shape, or a row is zero or contains NaN or infinity.
    """
    answer = embedder.embed(texts)
    try:
        rows = np.asarray(answer, dtype=np.float64)
    except (TypeError, ValueError) as exc:
        raise InvalidVector(f"embedder {embedder.id}: the result is not an array of numbers ({exc})") from exc
    expected = len(texts), embedder.dimension
    if rows.shape != expected:
        raise InvalidVector(f"embedder {embedder.id}: returned an array of shape {rows.shape}; expected {expected}")
    with np.errstate(over="ignore"):  # a row too large to square is rejected below
        lengths = np.linalg.norm(rows, axis=1)
    for row in np.flatnonzero(~(np.isfinite(lengths) & (lengths > _SMALLEST))).tolist():
        kind = "zero" if np.isfinite(lengths[row]) else "NaN or infinite"
        raise InvalidVector(f"embedder {embedder.id}: a {kind} vector for {texts[row][:40]!r}")
    unit: Vectors = (rows / lengths[:, None]).astype(np.float32)
    return unit


def reindex(database: Database, embedder: Embedder) -> int:
    """Create the missing vectors of ``embedder`` in all scopes, then switch the bank to it in one transaction.

    Returns the number of new vectors. Vectors of the current embedder stay until the switch. If the embedder raises,
    the bank stays usable, and the next call continues where this one stopped.

    Raises ``EmbedderMismatch`` if the embedder has the id of the current one but another dimension.
    """
    made, key = 0, (embedder.id, embedder.dimension)
    with database.reading() as connection:
        current = embedders.embedder_of(connection)
    if current is not None and current[0] == embedder.id and current != key:
        raise EmbedderMismatch(
            f"{database.location}: has {current[1]} dimensions, but {embedder.id} has {embedder.dimension} now; an"
            " embedder with other vectors needs another id"
        )
    while True:
        with database.reading() as connection:
            texts = embedders.unembedded(connection, embedder.id, _BATCH)
        if len(texts) < _BATCH:
            break
        vectors = dict(zip(texts, embed(embedder, [each.text for each in texts]), strict=True))
        with database.writing() as connection:  # others may have made some, or purged a row
            missing = [each for each in embedders.unembedded(connection, embedder.id, _BATCH) if each in vectors]
            made += embedders.add_vectors(connection, embedder.id, [(*each[:3], vectors[each]) for each in missing])
    with database.writing() as connection:
        texts = embedders.unembedded(connection, embedder.id, None)
        if texts:
            rows = zip(texts, embed(embedder, [each.text for each in texts]), strict=True)
            made += embedders.add_vectors(connection, embedder.id, [(*each[:3], row) for each, row in rows])
        embedders.change_over(connection, key, added=bool(made))
    return made
