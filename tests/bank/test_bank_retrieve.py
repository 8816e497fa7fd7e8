"""The nearest, exactly; reading leaves no trace."""

import hashlib
import sqlite3
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import sqlalchemy as sa
from hypothesis import given, settings
from hypothesis import strategies as st

from rb_dspy.bank.index import TIE, ExactIndex
from rb_dspy.bank.interface import VectorBatch
from rb_dspy.errors import InputError
from rb_dspy.schema import Verdict
from tests.bank.helpers import a_draft, a_rollout, a_task, add, finish, open_bank, start


def test_experiences_are_found_by_their_task() -> None:
    bank = open_bank()
    add(bank, "sort", "sort the list of numbers in ascending order", lessons=2)
    phone = add(bank, "phone", "find the cheapest phone in the shop", lessons=3)
    (found,) = bank.retrieve("find the cheapest laptop in the shop")
    assert (found.experience_id, found.task_id, found.instruction) == (phone.id, "phone", phone.task.instruction)
    assert found.items == phone.items
    assert 0.4 < found.score < 1
    scores = [match.score for match in bank.retrieve("find the cheapest laptop in the shop", k=5)]
    assert len(scores) == 2
    assert scores == sorted(scores, reverse=True)
    assert bank.retrieve("find the cheapest phone in the shop")[0].score == pytest.approx(1.0)


def test_items_are_found_by_their_own_text() -> None:
    bank = open_bank()
    drafts = [
        a_draft("Use the search box", "Typing into search beats clicking through categories."),
        a_draft("Check totals", "Add the numbers again before the final answer."),
    ]
    made = bank.append(a_task("a", "buy a lamp"), a_rollout("a"), Verdict(label="success"), drafts)
    add(bank, "b", "add the numbers again before the final answer", lessons=1)
    (found,) = bank.retrieve("add the numbers again before the final answer", unit="item")
    assert found.items == made.items[1:]
    assert (found.task_id, found.experience_id, found.instruction) == ("a", made.id, "buy a lamp")
    assert len(bank.retrieve("anything", k=9, unit="item")) == 3


def test_experience_without_items_never_takes_a_place() -> None:
    bank = open_bank()
    kept = add(bank, "t1", "sort numbers downwards")
    for n in range(20):
        add(bank, f"empty{n}", "sort the numbers", lessons=0, label="unknown")
    assert [found.experience_id for found in bank.retrieve("sort the numbers", k=3)] == [kept.id]
    assert len(bank.experiences()) == 21


def test_the_task_itself_can_be_excluded() -> None:
    bank = open_bank()
    for run in range(5):
        add(bank, "self", "sort the numbers", run_id=f"r{run}")
    other = add(bank, "other", "sort the words")
    assert bank.retrieve("sort the numbers")[0].task_id == "self"
    for unit in ("experience", "item"):
        found = bank.retrieve("sort the numbers", k=3, unit=unit, exclude_tasks={"self", "absent"})  # type: ignore[arg-type]
        assert [match.experience_id for match in found] == [other.id]
    assert bank.retrieve("sort the numbers", k=3, exclude_tasks=("self", "other")) == []


def test_newest_first_among_equals() -> None:
    bank = open_bank()
    made = [add(bank, f"t{n}", "sort the numbers") for n in range(50)]
    far = add(bank, "far", "buy a lamp")
    assert [match.experience_id for match in bank.retrieve("sort the numbers", k=3)] == [e.id for e in made[:-4:-1]]
    assert bank.retrieve("sort the numbers", k=51)[-1].experience_id == far.id


def test_min_score() -> None:
    bank = open_bank()
    add(bank, "same", "sort the numbers")
    add(bank, "far", "buy a lamp")
    assert [match.task_id for match in bank.retrieve("sort the numbers", k=5, min_score=1.0)] == ["same"]
    assert len(bank.retrieve("sort the numbers", k=5, min_score=-1.0)) == 2
    assert bank.retrieve("walk the dog", k=5, min_score=0.99) == []


class Forbidden:
    id = "hash-64"
    dimension = 64

    def embed(self, texts: list[str]) -> np.ndarray:
        raise AssertionError("embedded")


def test_nothing_is_embedded_for_nothing(tmp_path: Path) -> None:
    bank = open_bank(tmp_path / "bank.sqlite", embedder=Forbidden())
    assert bank.retrieve("x") == []
    add(bank, "t", lessons=0)
    assert bank.retrieve("x", k=3) == []
    add(open_bank(tmp_path / "bank.sqlite"), "t2")
    assert bank.retrieve("x", k=0) == []
    with pytest.raises(AssertionError):
        bank.retrieve("x")


def test_bad_arguments() -> None:
    bank = open_bank()
    for arguments in ({"k": -1}, {"unit": "step"}, {"exclude_tasks": "t1"}):
        with pytest.raises(InputError):
            bank.retrieve("x", **arguments)  # type: ignore[arg-type]
    with pytest.raises(InputError):
        bank.retrieve(None)  # type: ignore[arg-type]


def test_odd_queries() -> None:
    bank = open_bank()
    add(bank)
    for query in ("", " ", "\0", "\ud800", "🙂", "word " * 500_000):
        assert len(bank.retrieve(query, k=100_000)) == 1


def test_retrieve_never_writes(tmp_path: Path) -> None:
    path = tmp_path / "bank.sqlite"
    with open_bank(path) as bank:
        for n in range(30):
            add(bank, f"t{n}", f"task number {n}")
    before = hashlib.sha256(path.read_bytes()).hexdigest()
    version = sqlite3.connect(path)
    seen = version.execute("PRAGMA data_version").fetchone()
    with open_bank(path) as bank:  # create=True, and still nothing to write
        for unit in ("experience", "item"):
            assert len(bank.retrieve("task number 7", k=5, unit=unit)) == 5  # type: ignore[arg-type]
        bank.stats()
        bank.experiences()
        assert version.execute("PRAGMA data_version").fetchone() == seen
    version.close()
    assert hashlib.sha256(path.read_bytes()).hexdigest() == before


def test_appends_of_another_process_are_found(tmp_path: Path) -> None:
    path = tmp_path / "bank.sqlite"
    with open_bank(path) as bank:
        add(bank, "mine", "sort the numbers")
        assert len(bank.retrieve("x", k=9)) == 1
        open_bank(path).close()  # must not drop the locks that this process holds through `bank`
        code = "import sys, tests.bank.helpers as h; h.add(h.open_bank(sys.argv[1]), 'theirs', 'buy a lamp')"
        finish(start(code, str(path)))
        assert [match.task_id for match in bank.retrieve("buy a lamp", k=9)] == ["theirs", "mine"]
        add(bank, "mine too", "walk the dog")
        finish(start(code.replace("theirs", "theirs too"), str(path)))
        assert len(bank) == 4
        assert len(bank.retrieve("x", k=9)) == 4


def unit(rows: np.ndarray) -> np.ndarray:
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def test_retrieve_looks_rows_up_and_scans_nothing(tmp_path: Path) -> None:
    path = tmp_path / "bank.sqlite"
    asked: list[tuple[str, tuple[object, ...]]] = []
    with open_bank(path) as bank:
        add(bank)
        engine = bank._store._engine  # type: ignore[attr-defined]
        sa.event.listen(
            engine, "before_cursor_execute", lambda c, cursor, text, values, *_: asked.append((text, values))
        )
        for unit in ("experience", "item"):
            bank.retrieve("x", k=3, unit=unit)  # type: ignore[arg-type]
    selects = [(text, values) for text, values in asked if text.startswith("SELECT")]
    assert len(selects) == 4  # for each unit: the new vectors, the matches
    connection = sqlite3.connect(path)
    for text, values in selects:
        for *_, plan in connection.execute(f"EXPLAIN QUERY PLAN {text}", values):
            assert plan.startswith("SEARCH"), plan
            assert "scope_id=? AND" in plan, plan
    connection.close()


def test_more_rows_than_one_read_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rb_dspy.bank.bank._VECTORS", 7)
    monkeypatch.setattr("rb_dspy.bank.bank._PAGE", 7)
    bank = open_bank()
    made = [add(bank, f"t{n}", f"task number {n}", lessons=2) for n in range(30)]
    assert len(bank.retrieve("task", k=99)) == 30
    assert len(bank.retrieve("task", k=99, unit="item")) == 60
    assert bank.experiences() == made


coarse = st.lists(st.tuples(*[st.integers(-2, 2)] * 3), min_size=1, max_size=60)


@settings(deadline=None, max_examples=200)
@given(rows=coarse, k=st.integers(1, 70), excluded=st.sets(st.integers(0, 6)), step=st.integers(1, 40))
def test_index_equals_brute_force(rows: list[tuple[int, int, int]], k: int, excluded: set[int], step: int) -> None:
    """Small whole numbers, so that many scores are equal, and exactly so; row i belongs to task i % 7."""
    vectors = np.array([(2 * x + 1, y, z) for x, y, z in rows])  # never zero
    query = np.array([4, 1, -2])
    index = ExactIndex(3)
    for at in range(0, len(rows), step):
        seqs = np.arange(at, min(at + step, len(rows)))
        index.add(VectorBatch(seqs * 3 + 1, [str(seq % 7) for seq in seqs], unit(vectors)[at : at + step]))
    products, squares = (vectors @ query).tolist(), (vectors**2).sum(axis=1).tolist()
    signed = [Fraction(product * abs(product), square) for product, square in zip(products, squares, strict=True)]
    allowed = [row for row in range(len(rows)) if row % 7 not in excluded]
    expected = sorted(allowed, key=lambda row: (-signed[row], -row))[:k]
    hits = index.search(unit(query[None])[0], k, exclude_tasks={str(task) for task in excluded})
    assert [(hit.seq - 1) // 3 for hit in hits] == expected
    exact = unit(vectors).astype(np.float64) @ unit(query[None])[0].astype(np.float64)
    assert [hit.score for hit in hits] == pytest.approx(exact[expected], abs=TIE)
    assert index.mark == 3 * (len(rows) - 1) + 1


def test_index_leaves_thread_settings_alone() -> None:
    import faiss

    index = ExactIndex(3)
    index.add(VectorBatch(np.array([1]), ["t"], unit(np.ones((1, 3)))))
    faiss.omp_set_num_threads(2)
    index.search(unit(np.ones((1, 3)))[0], 1)
    assert faiss.omp_get_max_threads() == 2
