"""An embedder without a model: fast, offline, the same on every machine."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence

import numpy as np

from rb_dspy.protocols import Vectors

_READ = 20_000
"""Maximum characters of a text that are read; a real model has a limit too."""


class HashEmbedder:
    """Bag of words and character trigrams, hashed into ``dimension`` buckets; unit rows.

    Texts that share words are near each other; meaning is ignored. Equal texts give bit-identical vectors, on every
    machine and in every process. ``salt`` makes another space of the same dimension, with another ``id``.
    """

    def __init__(self, dimension: int = 64, *, salt: str = "") -> None:
        self.dimension = dimension
        self.salt = salt

    @property
    def id(self) -> str:
        """``hash-DIMENSION``, plus the salt if there is one."""
        return f"hash-{self.dimension}" + (f"-{self.salt}" if self.salt else "")

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Return unit rows of shape ``(len(texts), dimension)``."""
        rows = np.zeros((len(texts), self.dimension), dtype=np.float64)
        for row, text in zip(rows, texts, strict=True):
            for feature in _features(text):
                digest = hashlib.blake2b(f"{self.salt}\0{feature}".encode("utf-8", "replace"), digest_size=8).digest()
                number = int.from_bytes(digest, "little")
                row[(number >> 1) % self.dimension] += 1.0 if number & 1 else -1.0
            if not row.any():  # a few features can cancel out
                row[0] = 1.0
            row /= np.linalg.norm(row)
        return rows.astype(np.float32)


def _features(text: str) -> list[str]:
    """Words, and the trigrams inside them; the text itself if it has no word."""
    words = re.findall(r"\w+", text[:_READ].lower())
    trigrams = [f"#{word[i : i + 3]}" for word in words for i in range(len(word) - 2)]
    return [*words, *trigrams] or [text[:_READ]]
