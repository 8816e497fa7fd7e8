"""Vectors that can be trusted: an embedder's answer is checked before anything is stored or ranked with it."""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import Sequence

import numpy as np

from rb_dspy.errors import InfrastructureError, InvalidVector, describe_error
from rb_dspy.protocols import Embedder, Vectors

_SMALLEST = 1e-6


def embed(embedder: Embedder, texts: Sequence[str]) -> Vectors:
    """Unit float32 rows, shape ``(len(texts), dimension)``. Rows of another length than 1 are scaled.

    Raises:
        InvalidVector: The answer has another shape, or a row is zero or holds NaN or infinity.
        InfrastructureError: The embedder was cancelled; whoever awaits this thread would take that for its own.
    """
    try:
        answer = embedder.embed(texts)
    except CancelledError as exc:
        raise InfrastructureError(f"embedder {embedder.id} broke: {describe_error(exc)}") from exc
    try:
        rows = np.asarray(answer, dtype=np.float64)
    except (TypeError, ValueError) as exc:
        raise InvalidVector(f"embedder {embedder.id}: not an array of numbers ({exc})") from exc
    expected = len(texts), embedder.dimension
    if rows.shape != expected:
        raise InvalidVector(f"embedder {embedder.id}: gave an array of shape {rows.shape}; expected {expected}")
    with np.errstate(over="ignore"):  # too large to square is too large to use
        lengths = np.linalg.norm(rows, axis=1)
    for row in np.flatnonzero(~(np.isfinite(lengths) & (lengths > _SMALLEST))).tolist():
        kind = "zero" if np.isfinite(lengths[row]) else "NaN or infinite"
        raise InvalidVector(f"embedder {embedder.id}: a {kind} vector for {texts[row][:40]!r}; nothing was stored")
    unit: Vectors = (rows / lengths[:, None]).astype(np.float32)
    return unit
