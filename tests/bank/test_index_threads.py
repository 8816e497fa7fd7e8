"""Views are searched without a lock while rows come, end, and are moved into approximate parts."""

import threading
import time

import numpy as np
import pytest

from rb_dspy.bank.index.layered import LayeredIndex
from rb_dspy.bank.index.vector import IndexView, VectorIndex
from rb_dspy.bank.index.view import search
from rb_dspy.bank.parts import Changes, VectorBatch

ROWS, DIMENSION, PAGE = 60_000, 64, 100


def row_vectors(seqs: np.ndarray) -> np.ndarray:
    """What belongs to each number: any row can be made again from its number."""
    angles = np.outer(seqs, np.arange(1, DIMENSION + 1) * np.pi / 977).astype(np.float64)
    rows = np.cos(angles) + 0.01
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def pages() -> list[Changes]:
    """Rows with odd numbers; every page ends one row of the page before, with an even number."""
    made = []
    for start in range(0, ROWS, PAGE):
        seqs = 2 * np.arange(start, start + PAGE) + 1
        mark = 2 * (start + PAGE)
        ended = np.array([[2 * start - 1, mark]]) if start else np.empty((0, 2), np.int64)
        batch = VectorBatch(seqs, seqs % 100, seqs % 3 == 0, row_vectors(seqs))
        made.append(Changes(mark, batch, ended.astype(np.int64)))
    return made


def wrong(view: IndexView, rng: np.random.Generator) -> list[str]:
    """What cannot be in a view at its number, and what must be."""
    found = []
    born = view.mark // 2
    if len(view) != born - max(0, born // PAGE - 1):
        found.append(f"{len(view)} rows at {view.mark}")
    if born:
        seq = int(2 * rng.integers(0, born) + 1)
        gone = (seq + 1) % (2 * PAGE) == 0 and seq + 1 < view.mark
        hits = search(view, row_vectors(np.array([seq]))[0], 3)
        for hit in hits:
            if not 0 < hit.seq < view.mark or ((hit.seq + 1) % (2 * PAGE) == 0 and hit.seq + 1 < view.mark):
                found.append(f"{hit} at {view.mark}")
            cosine = float(row_vectors(np.array([hit.seq]))[0] @ row_vectors(np.array([seq]))[0])
            if abs(cosine - hit.score) > 1e-3:
                found.append(f"{hit} scores {cosine}")
        if not gone and hits[0].score < 0.999:
            found.append(f"{seq} not found at {view.mark}: {hits}")
    return found


@pytest.mark.parametrize("exact_up_to", [10**9, 5_000])
def test_readers_beside_a_writer(exact_up_to: int) -> None:
    index = VectorIndex(DIMENSION, exact_up_to=exact_up_to, tail=5_000, block=4096)
    changes, lock, done = pages(), threading.Lock(), threading.Event()
    kept: list[IndexView] = []
    errors: list[str] = []
    searches = [0, 0, 0]

    def read(reader: int) -> None:
        rng = np.random.default_rng(reader)
        while not done.is_set():
            errors.extend(wrong(index.view, rng))
            if kept:
                errors.extend(wrong(kept[rng.integers(len(kept))], rng))
            searches[reader] += 1

    def consolidate() -> None:
        while not done.is_set():
            if index.wants_base:
                prepared = index.prepare()
                with lock:
                    index.install(prepared)
            done.wait(0.001)

    threads = [threading.Thread(target=read, args=(reader,)) for reader in range(3)]
    threads.append(threading.Thread(target=consolidate))
    for thread in threads:
        thread.start()
    for number, page in enumerate(changes):
        with lock:
            index.apply(page)
        if number % 40 == 0:
            kept.append(index.view)
    end = time.monotonic() + 60
    while index.wants_base and time.monotonic() < end:  # beside the readers, however busy the machine is
        time.sleep(0.001)
    done.set()
    for thread in threads:
        thread.join()
    rng = np.random.default_rng(9)
    for view in [*kept, index.view]:
        errors += wrong(view, rng)
    assert not errors, errors[:5]
    assert min(searches) > 3
    assert index.view.parts
    assert index.view.exact == (exact_up_to >= ROWS)
    assert len(index.view) == ROWS - ROWS // PAGE + 1


def test_forks_of_a_growing_index_see_nothing_of_it() -> None:
    index = VectorIndex(DIMENSION, exact_up_to=5_000, tail=1_000, block=4096)
    forks = []
    for page in pages()[:200]:
        index.apply(page)
        forks.append(LayeredIndex(index.view, DIMENSION))
        if index.wants_base:
            index.install(index.prepare())
    rng = np.random.default_rng(0)
    for fork in forks:
        mark = fork.view.mark
        query = row_vectors(np.array([mark + 1]))[0]
        assert all(hit.seq < mark for hit in search(fork.view, query, 10))
        new = np.array([mark + 1])
        fork.apply(Changes(mark + 2, VectorBatch(new, new, new > 0, row_vectors(new)), np.array([[1, mark + 2]])))
        assert search(fork.view, query, 1)[0].seq == mark + 1
        assert not fork.view.allowed([1])[0]
    assert index.view.allowed([1])[0]
    assert not wrong(index.view, rng)
