"""Parts of an index are built aside: what is learned from rows, and rows and codes that are laid down after it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rb_dspy.bank.index.engine import faiss, one_thread
from rb_dspy.bank.index.exact import ExactRows
from rb_dspy.bank.index.flat_fp16 import Fp16Rows, fp16_of
from rb_dspy.bank.index.ivf import IvfRows
from rb_dspy.bank.index.part import CHUNK, Part, lengths
from rb_dspy.bank.index.pq import PqTrainer, is_worth_it
from rb_dspy.bank.index.pq_screen import ERRORS, PqScreen, is_told
from rb_dspy.protocols import Vectors

_SAMPLE = 64
"""Rows a list that its centre is found with, and rounds of looking for it."""
_ROUNDS = 8

_SCREENED = 2 / 3
"""Share of the directions in the codes of rows that are all looked through. Half of them leave more doubts than they
save time; all of them take longer than reading twice as many rows."""

_SCREENED_ROUNDS = 10
"""Rounds of looking for these codes: such a part is made each time that a bank is opened."""

_SCREENED_UP_TO = 1024
"""Dimensions: of more, the directions take seconds to learn."""


class _Stopped(Exception):
    pass


class _Rows:
    """What a part is to be built of: ``parts``, which follow on each other, and ``tail``, which follows on these."""

    def __init__(self, parts: Sequence[Part], tail: ExactRows, stopped: Callable[[], bool]) -> None:
        self.start = parts[0].start if parts else tail.start
        self.count = tail.stop - self.start
        self.dimension = tail.dimension
        self._parts = parts
        self._tail = tail
        self._stopped = stopped

    def check(self) -> None:
        if self._stopped():
            raise _Stopped

    def sample(self, most: int) -> Vectors:
        """So many rows at most, in order."""
        chosen = np.random.default_rng(0).choice(self.count, min(self.count, most), replace=False)
        rows = np.sort(chosen) + self.start
        pieces = [part.rows(rows[(rows >= part.start) & (rows < part.stop)] - part.start) for part in self._parts]
        for first, block in self._tail.parts():
            pieces.append(block[rows[(rows >= first) & (rows < first + len(block))] - first])
        return np.concatenate(pieces)

    def pieces(self) -> Iterator[Vectors]:
        """All of them, in order."""
        for part in self._parts:
            for rows in part.vectors():
                self.check()
                yield rows
        for _, rows in self._tail.parts():
            for first in range(0, len(rows), CHUNK):
                self.check()
                yield rows[first : first + CHUNK]


def build(
    parts: Sequence[Part], tail: ExactRows, stopped: Callable[[], bool] = lambda: False, *, exact: bool = False
) -> Part | None:
    """One part of the rows of ``parts``, which follow on each other, and of ``tail``, which follows on these.

    ``exact``: for so few rows that all of them can be read. Deterministic. One thread, the interpreter free for others;
    needs memory for the new part and some samples. None when ``stopped`` says so. It is asked about once a second, only
    not while directions and codes are learned: a second or two for 1,024 dimensions, nine for 2,048.
    """
    rows = _Rows(parts, tail, stopped)
    try:
        with one_thread():
            return _flat_fp16(rows) if exact else _ivf(rows)
    except _Stopped:
        return None


def _flat_fp16(given: _Rows) -> Fp16Rows:
    engine = faiss()
    index = engine.IndexScalarQuantizer(given.dimension, engine.ScalarQuantizer.QT_fp16, engine.METRIC_INNER_PRODUCT)
    trainer, centre = None, np.empty(0, np.float32)
    if is_worth_it(given.count, given.dimension) and given.dimension <= _SCREENED_UP_TO:
        given.check()
        sample = given.sample(PqTrainer.SAMPLE)
        centre = sample.mean(axis=0)
        trainer = PqTrainer(_quantizer(centre[None]), sample, _SCREENED, _SCREENED_ROUNDS)
    far, some = [np.empty(0, np.float32)], [np.empty((0, given.dimension), np.float32)]
    for rows in given.pieces():
        index.add(rows)
        if trainer is not None:
            trainer.add(rows, np.zeros(len(rows), np.int64))
            left_out = trainer.left_out(rows, centre)
            far.append(lengths(left_out))
            some.append(left_out[:: -(-given.count // ERRORS)])
    if trainer is None or not is_told(np.concatenate(far)):
        return Fp16Rows(given.start, index)
    screen = PqScreen(fp16_of(index), trainer.done(), centre, np.concatenate(far), np.concatenate(some))
    return Fp16Rows(given.start, index, screen)


def _ivf(given: _Rows) -> IvfRows:
    engine = faiss()
    lists = max(1, math.isqrt(given.count))
    sample = given.sample(_SAMPLE * lists)
    quantizer = engine.IndexFlatIP(given.dimension)
    clustering = engine.Clustering(given.dimension, lists)
    clustering.niter, clustering.spherical, clustering.min_points_per_centroid = 1, True, 1
    for _ in range(_ROUNDS):  # each goes on from the centres that the one before found
        given.check()
        clustering.train(sample, quantizer)
    index = engine.IndexIVFScalarQuantizer(
        quantizer, given.dimension, lists, engine.ScalarQuantizer.QT_fp16, engine.METRIC_INNER_PRODUCT, False
    )
    index.train(sample[:1])  # nothing is left to learn, but to say so
    trainer = PqTrainer(quantizer, sample) if lists > 1 and is_worth_it(given.count, given.dimension) else None
    pointer = engine.swig_ptr
    for rows in given.pieces():
        nearest: NDArray[np.int64] = quantizer.assign(rows, 1)
        index.add_core(len(rows), pointer(rows), None, pointer(nearest))
        if trainer is not None:
            trainer.add(rows, nearest)
    return IvfRows(given.start, index, None if trainer is None else trainer.done())


def _quantizer(centres: Vectors) -> Any:
    quantizer = faiss().IndexFlatIP(centres.shape[1])
    quantizer.add(centres)
    return quantizer
