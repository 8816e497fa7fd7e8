"""How a bank keeps vectors: half precision on disk, unit float32 rows in memory.

Half precision moves a cosine by some 1e-5, far less than the embedder's own noise about meaning, and halves what a
lesson takes on disk and what a rebuild has to read.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from itertools import accumulate, pairwise

import numpy as np
from numpy.typing import NDArray

from rb_dspy.errors import InvalidVector
from rb_dspy.protocols import Vectors

_LENGTH_TOLERANCE = 0.01
"""Rounding to half precision moves the length of a unit row by less than a thousandth; more means a damaged row."""

_MANY = 64
"""From so many rows on they are packed in one piece. Then numpy lets go of Python's lock, so that others go on; for
few rows, getting it back takes longer than packing them."""


def packed(vector: Vectors) -> bytes:
    """One unit row, shape ``(dimension,)``, as little-endian half-precision floats."""
    return vector.astype("<f2").tobytes()


def all_packed(rows: Sequence[Vectors]) -> list[bytes]:
    """``packed`` of each."""
    if len(rows) < _MANY:
        return [packed(row) for row in rows]
    data = np.concatenate(rows).astype("<f2").tobytes()
    ends = accumulate([2 * len(row) for row in rows], initial=0)
    return [data[start:end] for start, end in pairwise(ends)]


def check_lengths(lengths: Set[int], embedder: tuple[str, int], location: str) -> None:
    """Raises ``InvalidVector`` where one of these lengths in bytes, of packed rows, is not that of this embedder's."""
    for odd in lengths - {2 * embedder[1]}:
        raise InvalidVector(
            f"{location}: a vector of {odd // 2} numbers; expected {embedder[1]}, as {embedder[0]} gives them"
        )


def unpacked(data: bytes | memoryview, dimension: int) -> tuple[Vectors, NDArray[np.bool_]]:
    """Unit float32 rows, shape ``(n, dimension)``, and which of them are sound, shape ``(n,)``.

    A row is damaged when it is not finite or its length was not 1; it comes back as zeros. Equal bytes give equal rows.
    """
    rows: Vectors = np.frombuffer(data, dtype="<f2").astype(np.float32).reshape(-1, dimension)
    lengths = np.sqrt(np.einsum("ij,ij->i", rows, rows))
    sound = np.abs(lengths - 1) < _LENGTH_TOLERANCE  # False for NaN
    rows[~sound] = 0
    rows[sound] /= lengths[sound, None]
    return rows, sound
