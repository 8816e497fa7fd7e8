"""Rows that are made to mislead the codes of an index, and whether the answers are those of exact search.

    python experiments/bank/mislead.py [--rows 12000] [--vectors clustered|text] [--seed 0]

Single lessons and topics in directions of their own (any direction, those in which the other rows differ least, and
others), asked for directly and by what lies between them and other rows; rows that share a little of such a direction,
asked for by what lies mostly in it; many equal rows; rows without structure, with
few values, in tight clusters, and of topics of very different size. Wrong is an answer with a score that is not that of
exact search at its place.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import faiss
import numpy as np
from recall import DIMENSION, pages, stored, text_like
from vectors import Vectors, clustered

from rb_dspy.bank.index.flat_fp16 import Fp16Rows
from rb_dspy.bank.index.vector import VectorIndex
from rb_dspy.bank.index.view import search

_NEAR = 3e-5
_TOPICS = ((1, 1), (40, 1), (400, 1), (1, 3), (100, 3), (4, 5), (20, 6), (4, 20), (30, 20), (3, 100), (1, 500))
"""How many topics, and of how many rows each."""


def unit(rows: Any) -> Vectors:
    return np.asarray(rows / np.linalg.norm(rows, axis=-1, keepdims=True), np.float32)


def asked(name: str, rows: Vectors, queries: Vectors, k: int = 5) -> int:
    """Print a line, and give the number of wrong answers."""
    rows, index = stored(rows.copy()), VectorIndex(DIMENSION)
    for page in pages(rows):
        index.apply(page)
    index.install(index.prepare())
    (part,) = index.view.parts
    assert isinstance(part, Fp16Rows)
    expected, _ = faiss.knn(queries, rows, k, metric=faiss.METRIC_INNER_PRODUCT)
    began, wrong = time.process_time(), 0
    for query, scores in zip(queries, expected, strict=True):
        hits = search(index.view, query, k)
        wrong += any(abs(hit.score - score) > _NEAR for hit, score in zip(hits, scores, strict=True))
    took = (time.process_time() - began) / len(queries) * 1e3
    told = "-"
    if part.screen is not None:
        told = str(sum(part.screen.nearest(query, k, None) is not None for query in queries))
    print(f"| {name} | {k} | {len(queries)} | {told} | {wrong} | {took:.3f} |", flush=True)
    return wrong


def topics(rows: Vectors, directions: Any, number: int, size: int, rng: np.random.Generator) -> tuple[Vectors, Vectors]:
    """Rows with so many topics in them, and questions about them."""
    changed, places, queries = rows.copy(), rng.permutation(len(rows)), []
    each = max(1, 400 // number)
    for topic in range(number):
        middle = unit(directions @ rng.standard_normal(directions.shape[1]))
        own = places[topic * size : (topic + 1) * size]
        changed[own] = unit(0.75 * middle + 0.66 * unit(rng.standard_normal((size, DIMENSION))))
        share = rng.uniform(0.1, 0.7, (each, 1))
        queries += [
            unit(0.75 * middle + 0.66 * unit(rng.standard_normal((each, DIMENSION)))),
            unit(share * middle + (1 - share) * rows[rng.choice(len(rows), each)]),
            unit(changed[own[0]] + rng.uniform(0, 2, (each, 1)) * unit(rng.standard_normal((each, DIMENSION)))),
        ]
    return changed, np.concatenate(queries)


def sharing(
    rows: Vectors, directions: Any, size: int, share: float, rng: np.random.Generator
) -> tuple[Vectors, Vectors]:
    """Rows, some of which have a little of one direction, and what lies between it and others."""
    middle = unit(directions @ rng.standard_normal(directions.shape[1]))
    changed, own = rows.copy(), rng.choice(len(rows), size, replace=False)
    changed[own] = unit(share * middle + (1 - share**2) ** 0.5 * rows[own])
    weight, others = rng.uniform(0.1, 0.9, (200, 1)), rows[rng.choice(len(rows), (2, 200))]
    given = unit(share * middle + (1 - share**2) ** 0.5 * others[1])
    return changed, np.concatenate([unit(weight * middle + (1 - weight) * others[0]), given])


def main() -> None:
    """Measure and print."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rows", type=int, default=12_000)
    options.add_argument("--vectors", choices=("clustered", "text"), default="clustered")
    options.add_argument("--seed", type=int, default=0)
    chosen = options.parse_args()
    faiss.omp_set_num_threads(1)
    n, rng = chosen.rows, np.random.default_rng(chosen.seed)
    rows, queries = text_like(n) if chosen.vectors == "text" else (clustered(n), clustered(500, seed=1))
    print("| rows | k | queries | no doubt | wrong | CPU ms |\n|---|---|---|---|---|---|")
    wrong = sum(asked("as they are", rows, queries, k) for k in (1, 5, 20, 100))
    left = rows - rows.mean(axis=0)
    _, found = np.linalg.eigh(left.T @ left)
    for where, directions in (
        ("any direction", np.eye(DIMENSION)),
        ("weak directions", found[:, :100]),
        ("others", found[:, 100:250]),
    ):
        for number, size in _TOPICS:
            if number * size <= n // 8:
                given = topics(rows, directions, number, size, rng)
                wrong += asked(f"{number} topic(s) of {size} in {where}", *given)

        for size in (3, 10, 40):
            for little in (0.2, 0.3, 0.4):
                given = sharing(rows, directions, size, little, rng)
                wrong += asked(f"{size} share {little} of {where}", *given)

    def noise(count: int) -> Any:
        return rng.standard_normal((count, DIMENSION))

    equal = rows.copy()
    equal[: n // 3] = rows[0]
    share = rng.uniform(0.1, 0.9, (500, 1))
    wrong += asked("a third equal", equal, unit(share * rows[0] + (1 - share) * rows[rng.choice(n, 500)]))
    wrong += asked("each twenty times", rows[rng.choice(n // 20, n)], queries)
    wrong += asked("without structure", unit(noise(n)), unit(noise(200)))
    wrong += asked("skewed", unit(np.abs(noise(n)) ** 3), unit(np.abs(noise(200)) ** 3))
    few = np.zeros((n, DIMENSION))
    for weight in (1.0, 0.5):
        few[np.arange(n), rng.integers(0, DIMENSION, n)] += weight
    wrong += asked("few values", unit(few), unit(few[:100] + few[100:200]))
    middle = unit(noise(2_000))
    tight = unit(middle[rng.integers(0, 300, n)] + 0.02 * noise(n))
    wrong += asked("tight clusters", tight, unit(middle[:200] + 0.02 * noise(200)))
    uneven = unit(middle[rng.zipf(1.5, n) % 2_000] + 0.5 * unit(noise(n)))
    wrong += asked("topics of any size", uneven, unit(middle[rng.integers(0, 2_000, 500)] + 0.5 * unit(noise(500))))
    print(f"\nwrong in all: {wrong}")


if __name__ == "__main__":
    main()
