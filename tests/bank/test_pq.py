"""Codes of large parts say which rows to read; what is found is as without them, and so is what is saved."""

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rb_dspy.bank.index.pq import CODED_FROM, MOST
from rb_dspy.bank.index.sidecar import Sidecar
from rb_dspy.bank.index.vector import VectorIndex
from rb_dspy.bank.index.view import TIE, Filter, search
from rb_dspy.bank.parts import Changes, VectorBatch
from rb_dspy.bank.vectors import packed, unpacked
from rb_dspy.protocols import Vectors

ROWS, DIMENSION = 30_000, 32


def cloud(seed: int, count: int = ROWS, dimension: int = DIMENSION) -> Vectors:
    """Clustered unit rows as a store gives them back; the clusters are the same for every seed."""
    middle = np.random.default_rng(9).standard_normal((40, dimension))
    rng = np.random.default_rng(seed)
    rows = middle[rng.integers(0, 40, count)] + 0.5 * rng.standard_normal((count, dimension))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return unpacked(b"".join(packed(row) for row in rows.astype(np.float32)), dimension)[0]


def an_index(rows: Vectors) -> VectorIndex:
    """Row ``i`` has number ``i + 1``, is of task ``(i + 1) // 10``, and failed where its number ends in 0."""
    index = VectorIndex(rows.shape[1], exact_up_to=100)
    seqs = np.arange(1, len(rows) + 1)
    index.apply(Changes(len(rows), VectorBatch(seqs, seqs // 10, seqs % 10 > 0, rows), np.empty((0, 2), np.int64)))
    assert index.install(index.prepare())
    return index


@pytest.fixture(scope="module")
def rows() -> Vectors:
    return cloud(0)


@pytest.fixture(scope="module")
def index(rows: Vectors) -> VectorIndex:
    return an_index(rows)


def found(index: VectorIndex, rows: Vectors, left: np.ndarray, k: int, **filters: Any) -> float:
    """Share of the ``k`` places with a row as near as it should be; all have their own cosine, and may be given."""
    good, queries = 0, cloud(1, 40)
    for query in queries:
        hits = search(index.view, query, k, Filter(**filters))
        places = np.array([hit.seq - 1 for hit in hits])
        assert len(set(places.tolist())) == k
        assert left[places].all()
        assert [hit.score for hit in hits] == pytest.approx((rows[places] @ query).tolist(), abs=1e-5)
        least = np.sort((rows @ query)[left])[-k]
        good += sum(hit.score >= least - TIE for hit in hits)
    return good / (k * len(queries))


@pytest.mark.parametrize("k", [1, 5, 40, MOST, MOST + 1, 500])
def test_the_nearest_are_found(index: VectorIndex, rows: Vectors, k: int) -> None:
    assert found(index, rows, np.full(ROWS, True), k) >= 0.985


@pytest.mark.parametrize("k", [1, 5, 30, MOST])
@pytest.mark.parametrize(
    ("filters", "left"),
    [
        ({"tasks": [7]}, np.arange(1, ROWS + 1) // 10 != 7),
        ({"polarity": "failure"}, np.arange(1, ROWS + 1) % 10 == 0),
        ({"hidden": range(1, ROWS - 299)}, np.arange(ROWS) >= ROWS - 300),
    ],
)
def test_what_is_left_out_takes_nobodys_place(
    index: VectorIndex, rows: Vectors, k: int, filters: dict[str, Any], left: np.ndarray
) -> None:
    assert found(index, rows, left, k, **filters) >= 0.985


def test_rows_that_came_later_are_not_in_an_older_view(index: VectorIndex, rows: Vectors) -> None:
    older = index.view.at(20_000)
    for query in rows[25_000:25_010]:
        best = int(np.argmax(rows[:20_000] @ query))
        for k in (1, 5, 50):
            hits = search(older, query, k)
            assert len(hits) == k
            assert hits[0].seq == best + 1
            assert all(hit.seq <= 20_000 for hit in hits)


def test_lists_that_hold_too_few_are_not_all_that_is_read(rows: Vectors) -> None:
    """Nearly all rows are equal, and far from what is asked for."""
    rows = rows[:CODED_FROM].copy()
    far = rows[0]
    rows[np.argsort(rows @ -far)[:-150]] = far
    index = an_index(rows)
    for k in (5, MOST):
        expected = np.argsort(-(rows @ -far), kind="stable")[:k] + 1
        assert {hit.seq for hit in search(index.view, -far, k)} == set(expected.tolist())
        assert len(search(index.view, -far, k, Filter(tasks=[0]))) == k


@pytest.mark.parametrize("hidden", [20, 90, 1000])
def test_next_after_the_nearest(index: VectorIndex, rows: Vectors, hidden: int) -> None:
    good, queries = 0, cloud(2, 200)
    for query in queries:
        cosines = rows @ query
        order = np.argsort(-cosines)
        hits = search(index.view, query, 5, Filter(hidden=(order[:hidden] + 1).tolist()))
        assert not {hit.seq - 1 for hit in hits} & set(order[:hidden].tolist())
        good += sum(hit.score >= cosines[order[hidden + 4]] - TIE for hit in hits)
    assert good >= 0.95 * 5 * len(queries)


@pytest.mark.parametrize("equal", [30, 190, 210, 3000])
def test_all_that_tie_with_the_last_are_found(rows: Vectors, equal: int) -> None:
    """Equal rows have equal codes: fewer than are looked at, as many, and many more."""
    rows = rows[:6000].copy()
    rng = np.random.default_rng(equal)
    same = np.sort(rng.permutation(6000)[:equal])
    rows[same] = rows[same[0]]
    index = an_index(rows)
    newest = (same[::-1] + 1).tolist()
    near = np.argsort(-(rows @ rows[same[0]]), kind="stable")
    between = rows[same[0]] + 0.5 * rows[near[equal]]  # others are near to it as well
    for query in (rows[same[0]], (between / np.linalg.norm(between)).astype(np.float32)):
        before = int((rows @ query > rows[same[0]] @ query + TIE).sum())
        for k in (3, 20):
            hits = [hit.seq for hit in search(index.view, query, before + k)]
            assert hits[before:] == newest[:k]
            hits = [hit.seq for hit in search(index.view, query, before + k, Filter(hidden=newest[:2]))]
            assert hits[before:] == newest[2 : 2 + k]


@pytest.mark.parametrize("dimension", [1, 3, 15, 16, 130])
def test_any_dimension(dimension: int) -> None:
    rows = cloud(3, CODED_FROM, dimension)
    index = an_index(rows)
    assert [part.codes is not None for part in index.view.parts] == [dimension >= 16]  # of few, codes are too coarse
    for query in cloud(4, 5, dimension):
        hits = search(index.view, query, 3)
        assert hits[0].score >= (rows @ query).max() - 2 * TIE


def test_rows_that_are_all_equal() -> None:
    index = an_index(np.repeat(cloud(3, 1), CODED_FROM, axis=0))
    assert [hit.seq for hit in search(index.view, cloud(3, 1)[0], 3)] == [CODED_FROM - back for back in range(3)]


def test_small_parts_have_none(rows: Vectors) -> None:
    assert [part.codes for part in an_index(rows[: CODED_FROM - 1]).view.parts] == [None]


def answers(index: VectorIndex) -> Any:
    return [search(index.view, query, k, Filter(tasks=[3])) for query in cloud(5, 10) for k in (1, 20, 300)]


def test_building_is_repeatable(index: VectorIndex, rows: Vectors) -> None:
    assert answers(an_index(rows)) == answers(index)


def a_sidecar(folder: Path) -> Sidecar:
    return Sidecar(folder, "s", "item", embedder_id="e", dimension=DIMENSION)


def test_codes_are_saved_and_come_back(index: VectorIndex, tmp_path: Path) -> None:
    assert a_sidecar(tmp_path).save(index.view, str)
    assert len(list(tmp_path.glob("*.sketch"))) == 1
    sidecar = a_sidecar(tmp_path)
    loaded = sidecar.load(str)
    assert loaded is not None
    assert all(part.codes is not None for part in loaded.view.parts)
    assert answers(loaded) == answers(index)
    assert not sidecar.save(loaded.view, str)


@pytest.mark.parametrize("place", [0.0, 0.01, 0.5, 1.0, None])
def test_damaged_codes_are_not_used(
    index: VectorIndex, tmp_path: Path, place: float | None, caplog: pytest.LogCaptureFixture
) -> None:
    a_sidecar(tmp_path).save(index.view, str)
    (path,) = tmp_path.glob("*.sketch")
    data = bytearray(path.read_bytes())
    if place is None:
        path.unlink()
    else:
        data[int(place * (len(data) - 1))] ^= 4
        path.write_bytes(data)
    with caplog.at_level(logging.WARNING, logger="rb_dspy.bank"):
        assert a_sidecar(tmp_path).load(str) is None
    assert len(caplog.records) == 1
    assert a_sidecar(tmp_path).save(index.view, str)
    assert a_sidecar(tmp_path).load(str) is not None


def test_codes_of_other_rows_are_not_used(
    index: VectorIndex, rows: Vectors, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    a_sidecar(tmp_path).save(index.view, str)
    (manifest,) = tmp_path.glob("*.json")
    mine = manifest.read_text()
    a_sidecar(tmp_path / "other").save(an_index(rows[:20_000]).view, str)
    (theirs,) = (tmp_path / "other").glob("*.sketch")
    (path,) = tmp_path.glob("*.sketch")
    theirs.rename(tmp_path / theirs.name)
    other = (tmp_path / "other" / manifest.name).read_text()

    def told(text: str) -> str:
        start = text.index('"sketch":')
        return text[start : text.index("}", start)]

    manifest.write_text(mine.replace(told(mine), told(other)))
    with caplog.at_level(logging.WARNING, logger="rb_dspy.bank"):
        assert a_sidecar(tmp_path).load(str) is None
    assert "a sketch of other rows" in caplog.text
    assert path.exists()
