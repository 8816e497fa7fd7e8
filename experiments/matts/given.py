"""What both sides of the benchmark are given; imports nothing of rb_dspy, since the peer's interpreter reads it too."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "bank"))

import numpy as np
from made import DIMENSION, row_of
from vectors import Vectors, clustered

LATENCY = 0.05
"""Seconds that every call of the fake language model takes."""

LESSONS = 3
"""Lessons that a call of MaTTS gives: as many as the peer keeps."""

_VECTORS = 20_000
_FIRST = 5_000
"""The first of the lessons that are learned; those below are for filling banks."""


def lesson_rows(number: int) -> list[int]:
    """Numbers of the made-up lessons that task ``number`` teaches; so far apart that no two share a sentence."""
    return [(_FIRST + 10 * (LESSONS * number + lesson)) % _VECTORS for lesson in range(LESSONS)]


def instruction(number: int) -> str:
    """The text of a task. No lesson quotes it: a lesson that does is not admitted to our bank."""
    return f"t{number:08d} go on until it is done"


class Space:
    """An embedder by look-up; the texts of lessons and tasks are made up (``experiments/bank/made.py``).

    With these seeds no two of the lessons are so alike that the peer would ask whether to merge them.
    """

    id = "matts-bench-384"
    dimension = DIMENSION

    def __init__(self) -> None:
        self._tables = {"i": clustered(_VECTORS, seed=2), "t": clustered(_VECTORS, seed=4)}

    def embed(self, texts: Sequence[str]) -> Vectors:
        found = [row_of(text) for text in texts]
        return np.stack([self._tables[kind][row % _VECTORS] for kind, row in found])
