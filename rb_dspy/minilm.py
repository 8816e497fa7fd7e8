"""all-MiniLM-L6-v2 in numpy, because the imports of torch and of sentence-transformers take seconds each.

The vectors are those of sentence-transformers, up to rounding: BERT's layers, the mean over the tokens, length 1. The
texts of a batch lie end to end in one array, so none is padded; only attention takes them one by one.
"""

from __future__ import annotations

import json
import os
import threading
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file
from threadpoolctl import ThreadpoolController
from tokenizers import Tokenizer

from rb_dspy.protocols import Vectors

_BATCH = 8
"""Texts of one batch: at most 2,048 tokens, so that the largest array takes 12 MB."""
_one_thread = threading.RLock()
"""Held while BLAS, which multiplies for numpy, is set to one thread. A fork waits for it, so no child inherits that."""
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_one_thread.acquire, after_in_parent=_one_thread.release, after_in_child=_one_thread.release
    )


class MiniLM:
    """The loaded model. Calls leave no state behind.

    Args:
        folder: The model's files, as sentence-transformers saves them.

    Raises:
        Exception: A file is missing or damaged; tokenizers raises nothing more specific.
    """

    def __init__(self, folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text("utf-8"))
        self.limit = int(json.loads((folder / "sentence_bert_config.json").read_text("utf-8"))["max_seq_length"])
        self._layers = int(config["num_hidden_layers"])
        self._heads = int(config["num_attention_heads"])
        self._epsilon = float(config["layer_norm_eps"])
        self._weights: dict[str, Vectors] = load_file(folder / "model.safetensors")
        self._tokenizer = Tokenizer.from_str((folder / "tokenizer.json").read_text("utf-8"))
        self._blas = ThreadpoolController()
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        self.dimension = self._weights["embeddings.word_embeddings.weight"].shape[1]

    def count(self, text: str) -> int:
        """Count the tokens of ``text``, also those beyond the limit."""
        return len(self._tokenizer.encode(text).ids)

    def embed(self, texts: list[str]) -> Vectors:
        """Embed texts as unit rows."""
        return np.concatenate([self._embed(texts[at : at + _BATCH]) for at in range(0, len(texts), _BATCH)])

    def _embed(self, texts: list[str]) -> Vectors:
        # Threads of BLAS spin while they wait for each other; on busy cores that takes several times as long as one
        # thread does. Underflow rounds to 0, also where the user has numpy raise it.
        with _one_thread, self._blas.limit(limits=1, user_api="blas"), np.errstate(under="ignore"):
            return self._compute(texts)

    def _compute(self, texts: list[str]) -> Vectors:
        # encode_batch would start threads, and tokenizers warns on stderr of a fork after that.
        tokens = [self._cut(self._tokenizer.encode(text).ids) for text in texts]
        places = np.concatenate([np.arange(len(each)) for each in tokens])
        bounds = np.cumsum([0, *map(len, tokens)])
        x = self._weights["embeddings.word_embeddings.weight"][np.concatenate(tokens)]
        x += self._weights["embeddings.position_embeddings.weight"][places]
        x += self._weights["embeddings.token_type_embeddings.weight"][0]
        x = self._normalize(x, "embeddings")
        for number in range(self._layers):
            layer = f"encoder.layer.{number}"
            mixed = self._attend(x, f"{layer}.attention.self", bounds)
            x = self._normalize(x + self._linear(mixed, f"{layer}.attention.output.dense"), f"{layer}.attention.output")
            inner = _gelu(self._linear(x, f"{layer}.intermediate.dense"))
            x = self._normalize(x + self._linear(inner, f"{layer}.output.dense"), f"{layer}.output")
        sums = np.add.reduceat(x, bounds[:-1])
        rows: Vectors = sums / np.linalg.norm(sums, axis=1, keepdims=True)
        return rows

    def _cut(self, tokens: list[int]) -> list[int]:
        return tokens if len(tokens) <= self.limit else [*tokens[: self.limit - 1], tokens[-1]]

    def _linear(self, x: Vectors, name: str) -> Vectors:
        y: Vectors = x @ self._weights[f"{name}.weight"].T
        y += self._weights[f"{name}.bias"]
        return y

    def _normalize(self, x: Vectors, name: str) -> Vectors:
        x = x - x.mean(axis=1, keepdims=True)
        x /= np.sqrt(np.square(x).mean(axis=1, keepdims=True) + self._epsilon)
        x *= self._weights[f"{name}.LayerNorm.weight"]
        x += self._weights[f"{name}.LayerNorm.bias"]
        return x

    def _attend(self, x: Vectors, name: str, bounds: NDArray[np.int64]) -> Vectors:
        """Mix the rows of each text; ``bounds`` has the first row of each, and the number of rows."""
        shape = (len(x), self._heads, -1)
        parts = (self._linear(x, f"{name}.{part}") for part in ("query", "key", "value"))
        q, k, v = (part.reshape(shape).swapaxes(0, 1) for part in parts)
        q /= np.sqrt(q.shape[2], dtype=np.float32)
        mixed = np.empty_like(x).reshape(shape)
        for start, end in pairwise(bounds):
            scores = q[:, start:end] @ k[:, start:end].swapaxes(1, 2)
            scores -= scores.max(axis=2, keepdims=True)
            np.exp(scores, out=scores)
            scores /= scores.sum(axis=2, keepdims=True)
            mixed[start:end] = (scores @ v[:, start:end]).swapaxes(0, 1)
        return mixed.reshape(x.shape)


def _gelu(x: Vectors) -> Vectors:
    """Replace x by ``x * (1 + erf(x / sqrt(2))) / 2``; erf by Abramowitz and Stegun 7.1.26, at most 1.5e-7 off."""
    for rows in np.array_split(x, len(x) // 64 + 1):  # few at a time stay in the processor's cache
        size = np.abs(rows)
        t = 1 / (1 + 0.3275911 * 0.5**0.5 * size)
        tail = 1.061405429 * t
        for factor in (-1.453152027, 1.421413741, -0.284496736, 0.254829592):
            tail += factor
            tail *= t
        tail *= np.exp(np.square(size) * -0.5)
        tail *= size / 2
        np.maximum(rows, 0, out=rows)
        rows -= tail
    return x
