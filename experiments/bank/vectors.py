"""Vectors that lie as embedded text does, for benchmarks of storage and search; and how near to text they come.

Uniform random vectors mislead: an approximate index finds a quarter of their neighbours where it finds all on text.

    python experiments/bank/vectors.py [--texts 6000] [--large 100000]

compares ``clustered`` with MiniLM embeddings of the paragraphs in the standard library's docstrings.
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import sysconfig
from pathlib import Path
from typing import Any

# Before numpy: with two threads on a busy machine the many small products below took 40 times as long.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
from numpy.typing import NDArray

Vectors = NDArray[np.float32]

# Fitted by random search to 6,000 paragraphs of docstrings, those of installed packages among them: cosines of
# neighbours at 500, 1,500 and 5,500 rows and of random pairs, effective and local dimensions. The standard library's,
# which `main` takes since they are everywhere, lie somewhat nearer to each other: these are the harder ones to search.
_MEAN = 0.308
_DOMAINS, _DOMAIN_SHARE = 40, 0.2
_TOPICS, _TOPIC_SHARE = 2_000, 0.1
_RANK = 96
_RESTATED = 0.1
_BLOCK = 10_000


def clustered(n: int, dimension: int = 384, seed: int = 0) -> Vectors:
    """Unit rows, shape ``(n, dimension)``: a mean, 40 domains, 2,000 topics of uneven size, and in each domain a space
    of 96 directions of its own in which texts differ. One row in ten restates another one.

    The clusters are the same for every ``seed``, which draws the rows: another seed gives queries for these rows. The
    first rows of a larger ``n`` are those of a smaller one. Deterministic on one machine; 1e6 rows take some 3 s.
    """
    shape = np.random.default_rng(dimension)
    spread = np.sqrt(_power(dimension, 3, 0.95))

    def directions(count: int) -> Vectors:
        return (shape.standard_normal((count, dimension)) * spread).astype(np.float32)

    mean = np.zeros(dimension, np.float32)
    mean[-1] = _MEAN
    rest = 1 - _MEAN**2
    domains = directions(_DOMAINS) * np.sqrt(_DOMAIN_SHARE * rest, dtype=np.float32)
    topics = directions(_TOPICS) * np.sqrt(_TOPIC_SHARE * rest, dtype=np.float32)
    domain_of = shape.integers(0, _DOMAINS, _TOPICS)
    sizes = _power(_TOPICS, 5, 0.9)
    inside = np.sqrt((1 - _DOMAIN_SHARE - _TOPIC_SHARE) * rest * _power(_RANK, 1, 0.4))[:, None].astype(np.float32)
    bases = [directions(_RANK) * inside for _ in range(_DOMAINS)]

    rows = np.empty((n, dimension), np.float32)
    for block, start in enumerate(range(0, n, _BLOCK)):
        draw = np.random.default_rng((seed, block))
        topic = draw.choice(_TOPICS, _BLOCK, p=sizes)
        domain = domain_of[topic]
        drawn = mean + domains[domain] + topics[topic]
        for number, base in enumerate(bases):
            here = np.flatnonzero(domain == number)
            drawn[here] += draw.standard_normal((len(here), _RANK), dtype=np.float32) @ base
        restating = np.flatnonzero(draw.random(_BLOCK) < _RESTATED)
        near = draw.uniform(0.5, 0.95, (len(restating), 1)).astype(np.float32)
        drawn[restating] = (
            near * drawn[draw.integers(0, _BLOCK, len(restating))] + np.sqrt(1 - near**2) * drawn[restating]
        )
        drawn /= np.linalg.norm(drawn, axis=1, keepdims=True)
        rows[start : start + _BLOCK] = drawn[: n - start]
    return rows


def _power(count: int, offset: float, exponent: float) -> NDArray[np.float64]:
    """A power law over ``count`` places, with sum 1."""
    places = (np.arange(count) + offset) ** -exponent
    return np.asarray(places / places.sum())


def docstring_paragraphs(limit: int) -> list[str]:
    """Paragraphs of 60 to 500 characters from the standard library's docstrings, in an order drawn once."""
    found: set[str] = set()
    for path in sorted(Path(sysconfig.get_path("stdlib")).rglob("*.py")):
        if "site-packages" in path.parts or "test" in path.parts or "tests" in path.parts:
            continue
        try:
            tree = ast.parse(path.read_text(encoding="utf-8"))
        except (SyntaxError, UnicodeDecodeError, ValueError):
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module):
                paragraphs = (ast.get_docstring(node) or "").split("\n\n")
                found |= {text for text in (" ".join(p.split()) for p in paragraphs) if 60 < len(text) < 500}
    texts = sorted(found)
    random.Random(0).shuffle(texts)
    return texts[:limit]


def figures(vectors: Vectors) -> dict[str, float]:
    """What describes a cloud of unit rows: 500 of them look for neighbours among growing parts of the others."""
    import faiss

    order = np.random.default_rng(0).permutation(len(vectors))
    queries, others = vectors[order[:500]], vectors[order[500:]]
    found: dict[str, float] = {}
    for size in (500, 1_500, 5_500, 20_000, 100_000):
        if size <= len(others):
            scores, _ = faiss.knn(queries, others[:size], 10, metric=faiss.METRIC_INNER_PRODUCT)
            found[f"1st of {size:,}"] = float(np.median(scores[:, 0]))
            found[f"5th of {size:,}"] = float(np.median(scores[:, 4]))
    pairs = (queries * others[:500]).sum(axis=1)
    found["random pairs"], found["their deviation"] = float(pairs.mean()), float(pairs.std())
    part = others[:5_500]
    covariance = np.cov(part.T)
    found["effective dimension"] = float(np.trace(covariance) ** 2 / (covariance**2).sum())
    scores, _ = faiss.knn(part[:2_000], part, 21, metric=faiss.METRIC_INNER_PRODUCT)
    far = np.sqrt(np.maximum(2 - 2 * scores[:, 1:], 1e-6))
    found["local dimension (20 nearest)"] = float(np.median(-1 / np.log(far[:, :-1] / far[:, -1:]).mean(axis=1)))
    return found


def hnsw_recall(vectors: Vectors, queries: Vectors, breadth: int, k: int = 5) -> float:
    """Recall@k of HNSW32 with this efSearch against exact search."""
    import faiss

    _, exact = faiss.knn(queries, vectors, k, metric=faiss.METRIC_INNER_PRODUCT)
    index: Any = faiss.IndexHNSWFlat(vectors.shape[1], 32, faiss.METRIC_INNER_PRODUCT)
    index.hnsw.efConstruction = 80
    index.add(vectors)
    index.hnsw.efSearch = breadth
    _, near = index.search(queries, k)
    return float(np.mean([len(set(a) & set(b)) / k for a, b in zip(exact, near, strict=True)]))


def main() -> None:
    """Embed real text, draw vectors, print both."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--texts", type=int, default=6_000)
    options.add_argument("--large", type=int, default=100_000, help="rows of the last columns; 0 leaves them out")
    chosen = options.parse_args()

    from rb_dspy.embedder import minilm

    text = minilm().embed(docstring_paragraphs(chosen.texts))
    clouds = {"docstrings": text, "clustered": clustered(len(text))}
    random_rows = np.random.default_rng(0).standard_normal(text.shape, dtype=np.float32)
    clouds["uniform"] = random_rows / np.linalg.norm(random_rows, axis=1, keepdims=True)
    if chosen.large:
        clouds[f"clustered, {chosen.large:,}"] = clustered(chosen.large + 500)
    columns = {name: figures(cloud) for name, cloud in clouds.items()}
    for name, cloud in clouds.items():
        columns[name] |= {
            f"HNSW32 recall@5, ef {breadth}": hnsw_recall(cloud[500:], cloud[:500], breadth) for breadth in (64, 128)
        }
    names = list(dict.fromkeys(row for column in columns.values() for row in column))
    print("| | " + " | ".join(columns) + " |\n|---|" + "---|" * len(columns))
    for row in names:
        cells = (f"{column[row]:.3f}" if row in column else "" for column in columns.values())
        print(f"| {row} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
