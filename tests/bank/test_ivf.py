"""Approximate search in large indexes: nearly all of the nearest, exact scores, never fewer than there are."""

from __future__ import annotations

import gc
import logging
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from rb_dspy.bank import MemoryBank
from rb_dspy.bank.search.searchers import StoreSearcher
from rb_dspy.bank.search.vectors import VectorIndex
from rb_dspy.bank.store.base import Filter, Hit, IndexRow
from rb_dspy.protocols import Vectors
from rb_dspy.schema import ExperienceDraft, Verdict
from tests.bank.helpers import a_draft, a_rollout, a_task, add, finish, open_bank, start

DIMENSION = 32
ROWS = 8_000
EXACT = 1_500


def clustered(count: int, seed: int) -> Vectors:
    draw = np.random.default_rng(seed)
    centers = np.random.default_rng(0).standard_normal((300, DIMENSION), np.float32)
    vectors = centers[draw.integers(0, 300, count)] + 0.5 * draw.standard_normal((count, DIMENSION), np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


VECTORS, QUERIES = clustered(ROWS, 1), clustered(60, 2)


def rows(first: int, last: int, vectors: Vectors = VECTORS) -> list[IndexRow]:
    """Rows with the numbers ``first`` to ``last``."""
    return [
        IndexRow(
            seq, None, f"t{seq % 50}", "success" if seq % 2 else "failure", 1, vectors[seq - 1].astype("<f2").tobytes()
        )
        for seq in range(first, last + 1)
    ]


def wait() -> None:
    while any(thread.name == "rb_dspy-ivf" for thread in threading.enumerate()):  # one that only begins has no join
        time.sleep(0.002)


def an_index(*, exact_rows: int = EXACT, count: int = ROWS) -> VectorIndex:
    """An index whose cells are built; without cells if ``exact_rows`` is not less than ``count``."""
    index = VectorIndex(exact_rows)
    index.add(rows(1, count))
    index.search(QUERIES[0], 1, Filter())
    wait()
    assert len(index._ivf) == (count if count > exact_rows else 0)
    return index


def exact_index(count: int = ROWS) -> VectorIndex:
    return an_index(exact_rows=ROWS, count=count)


def recall(near: Sequence[Hit], exact: Sequence[Hit]) -> float:
    return len({hit.seq for hit in near} & {hit.seq for hit in exact}) / len(exact)


@pytest.mark.parametrize(
    "only",
    [
        Filter(),
        Filter(polarity="success"),
        Filter(exclude_tasks=frozenset({"t1", "t2", "absent"})),
        Filter(at=ROWS // 2),
        Filter(hidden=frozenset(range(1, ROWS, 3))),
    ],
)
def test_nearly_all_of_the_nearest_with_their_exact_scores(only: Filter) -> None:
    near, exact, recalls = an_index(), exact_index(), []
    for query in QUERIES:
        hits, truth = near.search(query, 5, only), exact.search(query, 5, only)
        recalls.append(recall(hits, truth))
        scores = dict(exact.search(query, 50, only))
        assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)
        assert all(scores.get(hit.seq, hit.score) == hit.score for hit in hits)
        assert len(hits) == 5
    assert np.mean(recalls) >= 0.95


def test_few_allowed_rows_are_all_returned() -> None:
    near, exact = an_index(), exact_index()
    few = Filter(hidden=frozenset(range(11, ROWS + 1)))
    for query in QUERIES[:10]:
        assert near.search(query, 20, few) == exact.search(query, 20, few)
        assert {hit.seq for hit in near.search(query, 20, few)} == set(range(1, 11))
        assert near.search(query, 5, few) == exact.search(query, 5, few)
    assert len(near.search(QUERIES[0], ROWS, Filter())) == ROWS


def test_of_equal_scores_the_newest_is_first() -> None:
    vectors = VECTORS.copy()
    same = [7, 2_000, 6_000, ROWS]
    vectors[[seq - 1 for seq in same]] = QUERIES[0]
    index = VectorIndex(EXACT)
    index.add(rows(1, ROWS - 1, vectors))
    index.search(QUERIES[0], 1, Filter())
    wait()
    index.add(rows(ROWS, ROWS, vectors))
    assert [hit.seq for hit in index.search(QUERIES[0], 3, Filter())] == [ROWS, 6_000, 2_000]


def test_ended_rows_are_not_returned_but_were_there_before() -> None:
    index = an_index()
    first = index.search(QUERIES[0], 3, Filter())
    index.end([(hit.seq, ROWS + 10) for hit in first])
    assert not {hit.seq for hit in index.search(QUERIES[0], 50, Filter())} & {hit.seq for hit in first}
    assert index.search(QUERIES[0], 3, Filter(at=ROWS + 9)) == first


def test_later_rows_are_found_at_once_and_then_taken_into_the_cells() -> None:
    count = ROWS // 4
    index = an_index(count=count)
    index.add(rows(count + 1, count + 30))
    for seq in range(count + 1, count + 31, 10):
        assert index.search(VECTORS[seq - 1], 1, Filter())[0].seq == seq
    assert len(index._ivf) == count
    index.add(rows(count + 31, ROWS))  # so many that new cells are made
    exact = exact_index()
    for _ in range(2):
        hits = [index.search(query, 5, Filter()) for query in QUERIES]
        truth = [exact.search(query, 5, Filter()) for query in QUERIES]
        assert np.mean([recall(*pair) for pair in zip(hits, truth, strict=True)]) >= 0.95
        wait()
    assert len(index._ivf) == ROWS


def test_a_failed_build_leaves_exact_search(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def fails(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr("faiss.Kmeans", fails)
    index, exact = VectorIndex(EXACT), exact_index()
    index.add(rows(1, ROWS))
    with caplog.at_level(logging.WARNING, "rb_dspy.bank"):
        for query in QUERIES[:5]:
            assert index.search(query, 5, Filter()) == exact.search(query, 5, Filter())
            wait()
    assert len(caplog.records) == 1


def test_threads_search_and_add_while_cells_are_built() -> None:
    index, exact, problems = VectorIndex(EXACT), exact_index(), []
    index.add(rows(1, EXACT))
    truth = [dict(exact.search(query, ROWS, Filter())) for query in QUERIES[:20]]
    done = threading.Event()

    def search() -> None:
        while not done.is_set():
            for query, scores in zip(QUERIES[:20], truth, strict=True):
                hits = index.search(query, 5, Filter())
                if len(hits) != 5 or any(scores[hit.seq] != hit.score for hit in hits):
                    problems.append(hits)

    threads = [threading.Thread(target=search) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for first in range(EXACT + 1, ROWS, 500):
            index.add(rows(first, first + 499))
        wait()
    finally:
        done.set()
        for thread in threads:
            thread.join()
    wait()
    assert problems == []
    assert len(index._ivf) > EXACT


def test_nothing_is_built_for_an_index_that_is_gone() -> None:
    index = VectorIndex(EXACT)
    index.add(rows(1, ROWS))
    ivf = index._ivf
    del index
    gc.collect()
    assert ivf.shortlist(QUERIES[0], 1, ROWS) is None
    wait()
    assert len(ivf) == 0


def test_python_can_end_while_cells_are_built() -> None:
    code = """
import threading, time
import numpy as np
from rb_dspy.bank.search.vectors import VectorIndex
from rb_dspy.bank.store.base import Filter, IndexRow
vectors = np.random.default_rng(0).standard_normal((30_000, 128)).astype("<f2")
index = VectorIndex(1_000)
index.add([IndexRow(seq, None, "t", "success", 1, row.tobytes()) for seq, row in enumerate(vectors, 1)])
index.search(vectors[0].astype(np.float32), 1, Filter())
assert any(thread.name == "rb_dspy-ivf" for thread in threading.enumerate())
time.sleep(0.1)
print("end")
"""
    assert finish(start(code)) == "end\n"


def a_bank(url: Path | None = None, *, count: int = 130) -> MemoryBank:
    """A bank that has cells from 101 rows on."""
    bank = open_bank(url)
    bank._searcher = StoreSearcher(bank._store, exact_rows=100)  # type: ignore[arg-type]
    if bank.stats().experiences:
        return bank
    bank.append_many(
        ExperienceDraft(
            task=a_task(f"t{number}", f"sort the numbers of list {number}"),
            trajectories=(a_rollout(f"t{number}"),),
            verdicts=(Verdict(label="success"),),
            drafts=(a_draft(f"Lesson {number}"),),
            run_id="r",
        )
        for number in range(count)
    )
    bank.retrieve("sort the numbers")
    wait()
    assert cells(bank) == count
    return bank


def cells(bank: MemoryBank) -> int:
    assert isinstance(bank._searcher, StoreSearcher)
    return len(bank._searcher._index("experience")[0]._ivf)


def test_a_fork_and_its_base_go_apart() -> None:
    bank, query = a_bank(), "sort the numbers of list 7"
    (first,) = bank.retrieve(query)
    fork = bank.fork()
    bank.delete(first.experience_id)
    new = add(bank, "new", query)
    assert [match.experience_id for match in bank.retrieve(query)] == [new.id]
    assert [match.experience_id for match in fork.retrieve(query)] == [first.experience_id]
    fork.delete(first.experience_id)
    own = add(fork, "own", query)
    assert [match.experience_id for match in fork.retrieve(query)] == [own.id]
    found = {match.experience_id for match in fork.retrieve(query, k=200)}
    assert len(found) == 130
    assert not found & {new.id, first.experience_id}


def test_another_process_builds_its_own_cells_and_a_purge_empties_them(tmp_path: Path) -> None:
    path = tmp_path / "bank.sqlite"
    with a_bank(path) as bank, a_bank(path) as other:
        assert len(other.retrieve("sort the numbers", k=3)) == 3
        wait()
        assert cells(other) == 130
        gone = bank.retrieve("sort the numbers of list 7")[0].experience_id
        bank.purge(gone)
        for each in (bank, other):
            assert gone not in {match.experience_id for match in each.retrieve("sort the numbers", k=130)}
            wait()
            assert cells(each) == 129
    assert {each.name for each in tmp_path.iterdir()} == {"bank.sqlite", "bank.sqlite.lock"}
