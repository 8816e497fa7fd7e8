"""Vectors that can be trusted: an embedder's answer is checked before anything is stored or ranked with it."""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import Sequence
from itertools import islice

import numpy as np

from rb_dspy.bank.parts import NewExperience, item_text
from rb_dspy.errors import InfrastructureError, InvalidVector, describe_error
from rb_dspy.protocols import Embedder, Vectors

_SMALLEST = 1e-6

_LEAST, _MOST = (1 - 1e-6) ** 2, (1 + 1e-6) ** 2
"""Squared lengths of unit rows, as far as rounding to float32 changes them; such rows are used as they are."""


def embed(embedder: Embedder, texts: Sequence[str], dimension: int) -> Vectors:
    """Unit float32 rows, shape ``(len(texts), dimension)``.

    Raises ``InvalidVector`` for an answer of another shape and for rows that are zero or hold NaN or infinity. Rows of
    another length than 1 are scaled, so that inner products are cosines. What the embedder raises is passed on, but a
    cancel, which is an ``InfrastructureError``: whoever awaits the thread that this runs in would take it for its own.
    """
    try:
        answer = embedder.embed(texts)
    except CancelledError as exc:
        raise InfrastructureError(f"embedder {embedder.id} broke: {describe_error(exc)}") from exc
    try:
        rows = np.asarray(answer)
        if rows.dtype != np.float32:
            rows = rows.astype(np.float64)
    except (TypeError, ValueError) as exc:
        raise InvalidVector(f"embedder {embedder.id}: not an array of numbers ({exc})") from exc
    if rows.shape != (len(texts), dimension):
        raise InvalidVector(
            f"embedder {embedder.id}: gave an array of shape {rows.shape}; expected {(len(texts), dimension)}"
        )
    with np.errstate(over="ignore"):  # too large to square is too large to use: refused as infinite
        squares = np.vecdot(rows, rows)
    if rows.dtype == np.float32 and all(_LEAST < square < _MOST for square in squares.tolist()):
        return rows
    lengths = np.sqrt(squares)
    for row in np.flatnonzero(~(np.isfinite(lengths) & (lengths > _SMALLEST))).tolist():
        kind = "zero" if np.isfinite(lengths[row]) else "NaN or infinite"
        raise InvalidVector(f"embedder {embedder.id}: a {kind} vector for {texts[row][:40]!r}; nothing was stored")
    unit: Vectors = (rows / lengths[:, None]).astype(np.float32)
    return unit


def with_vectors(page: list[NewExperience], embedder: Embedder) -> list[NewExperience]:
    """The page with its vectors, all made in one call; an experience without items gets none.

    Raises like ``embed``.
    """
    texts = [text for new in page if new.items for text in (new.task.instruction, *map(item_text, new.items))]
    if not texts:
        return page
    rows = iter(embed(embedder, texts, embedder.dimension))
    return [new.with_vectors(next(rows), tuple(islice(rows, len(new.items)))) if new.items else new for new in page]
