"""Among some thousands of rows codes spare reading most of them; what is found is what reading all would find."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from rb_dspy.bank.index.flat_fp16 import Fp16Rows
from rb_dspy.bank.index.pq_screen import PqScreen
from rb_dspy.bank.index.vector import HALF_FROM, VectorIndex
from rb_dspy.bank.index.view import TIE, Filter, search
from rb_dspy.bank.parts import Changes, VectorBatch
from rb_dspy.bank.vectors import packed, unpacked
from rb_dspy.protocols import Vectors

ROWS, DIMENSION = 6_000, 256


def unit(rows: np.ndarray) -> Vectors:
    return np.asarray(rows / np.linalg.norm(rows, axis=-1, keepdims=True), np.float32)


def noise(seed: int, count: int) -> Vectors:
    return unit(np.random.default_rng(seed).standard_normal((count, DIMENSION)))


def cloud(seed: int, count: int = ROWS) -> Vectors:
    """Clustered rows whose directions differ in strength, as those of texts do; the clusters are the same ones."""
    strength = np.linspace(1.5, 0.1, DIMENSION)
    middle = unit(np.random.default_rng(9).standard_normal((40, DIMENSION)) * strength)
    rng = np.random.default_rng(seed)
    return unit(middle[rng.integers(0, 40, count)] + 0.06 * rng.standard_normal((count, DIMENSION)) * strength)


def stored(rows: Vectors) -> Vectors:
    return unpacked(b"".join(packed(row) for row in rows), rows.shape[1])[0]


def an_index(rows: Vectors) -> tuple[VectorIndex, Fp16Rows]:
    """Row ``i`` has number ``i + 1``, is of task ``(i + 1) // 10``, and failed where its number ends in 0."""
    index = VectorIndex(rows.shape[1])
    seqs = np.arange(1, len(rows) + 1)
    index.apply(Changes(len(rows), VectorBatch(seqs, seqs // 10, seqs % 10 > 0, rows), np.empty((0, 2), np.int64)))
    assert index.install(index.prepare())
    (part,) = index.view.parts
    assert isinstance(part, Fp16Rows)
    return index, part


def misses(index: VectorIndex, rows: Vectors, queries: Vectors, k: int, left: np.ndarray, **filters: Any) -> int:
    """How many places have a row that is not as near as it should be."""
    wrong = 0
    for query in queries:
        products = rows @ query
        hits = search(index.view, query, k, Filter(**filters))
        places = [hit.seq - 1 for hit in hits]
        assert len(set(places)) == min(k, np.count_nonzero(left))
        assert left[places].all()
        best = -np.sort(-products[left])[: len(places)]
        wrong += int((products[places] < best - 5 * TIE).sum())
    return wrong


def share_told(part: Fp16Rows, queries: Vectors, k: int = 5) -> float:
    """Of how many queries the codes leave no doubt."""
    assert part.screen is not None
    return float(np.mean([part.screen.nearest(query, k, None) is not None for query in queries]))


EVERY = np.full(ROWS, True)


@pytest.fixture(scope="module")
def rows() -> Vectors:
    return stored(cloud(0))


@pytest.fixture(scope="module")
def made(rows: Vectors) -> tuple[VectorIndex, Fp16Rows]:
    return an_index(rows)


@pytest.mark.parametrize("k", [1, 5, 40, 100, 700, ROWS, ROWS + 1])
def test_the_nearest_are_found(made: tuple[VectorIndex, Fp16Rows], rows: Vectors, k: int) -> None:
    assert misses(made[0], rows, cloud(1, 60), k, EVERY) == 0


def test_most_rows_are_not_read(made: tuple[VectorIndex, Fp16Rows]) -> None:
    assert share_told(made[1], cloud(1, 60)) > 0.9


@pytest.mark.parametrize("k", [1, 5, 30])
@pytest.mark.parametrize(
    ("filters", "left"),
    [
        ({"tasks": [7]}, np.arange(1, ROWS + 1) // 10 != 7),
        ({"polarity": "failure"}, np.arange(1, ROWS + 1) % 10 == 0),
        ({"hidden": range(1, ROWS - 99)}, np.arange(ROWS) >= ROWS - 100),
        ({"hidden": range(1, ROWS + 1)}, ~EVERY),
    ],
)
def test_what_is_left_out_takes_nobodys_place(
    made: tuple[VectorIndex, Fp16Rows], rows: Vectors, k: int, filters: dict[str, Any], left: np.ndarray
) -> None:
    assert misses(made[0], rows, cloud(2, 30), k, left, **filters) == 0


def test_rows_that_came_later_are_not_in_an_older_view(made: tuple[VectorIndex, Fp16Rows], rows: Vectors) -> None:
    older = made[0].view.at(4_000)
    for query in rows[5_000:5_030]:
        expected = np.argsort(-(rows[:4_000] @ query), kind="stable")[:5] + 1
        assert {hit.seq for hit in search(older, query, 5)} == set(expected.tolist())


def test_what_ended_is_not_found(rows: Vectors) -> None:
    index, _ = an_index(rows)
    ended = np.column_stack([np.arange(1, ROWS + 1, 2), np.full(ROWS // 2, ROWS + 1)])
    none = np.empty(0, np.int64)
    nothing = VectorBatch(none, none, none > 0, rows[:0])
    index.apply(Changes(ROWS + 1, nothing, ended))
    assert misses(index, rows, cloud(3, 30), 5, np.arange(1, ROWS + 1) % 2 == 0) == 0


def singles(rows: Vectors, first: int, last: int, share: float, others: Vectors) -> tuple[Vectors, Vectors]:
    """Twelve rows with such a share of directions of their own among those of ``rows``, weakest first; and these."""
    _, directions = np.linalg.eigh(rows.T @ rows)
    own = unit(noise(11, 12)[:, : last - first] @ directions[:, first:last].T)
    changed = rows.copy()
    changed[np.arange(12) * 400] = unit(share * own + np.sqrt(1 - share**2) * others)
    return changed, own


def between(rows: Vectors, others: Vectors, least: float, most: float) -> Vectors:
    share = np.random.default_rng(0).uniform(least, most, (600, 1))
    return unit(share * np.repeat(rows, 600 // len(rows), axis=0) + (1 - share) * others)


def single_lessons(rows: Vectors) -> tuple[Vectors, Vectors]:
    """Codes say too little of single rows."""
    changed, own = singles(rows, 150, DIMENSION - 20, 0.8, noise(12, 12))
    return changed, between(own, rows[100:700], 0.3, 0.6)


def questions_out_of_distribution(rows: Vectors) -> tuple[Vectors, Vectors]:
    """Single rows are coded as well as others, but not as to what is asked for."""
    changed, own = singles(rows, 0, DIMENSION, 0.5, rows[np.arange(12) * 400])
    return changed, between(own, rows[100:700], 0.1, 0.6)


def many_equal(rows: Vectors) -> tuple[Vectors, Vectors]:
    """What is near to many questions is coded without an error, and says nothing about the other rows' errors."""
    changed = rows.copy()
    changed[: ROWS // 3] = rows[0]
    return changed, between(rows[:1], rows[3_000:3_600], 0.3, 0.6)


def small_topics(rows: Vectors) -> tuple[Vectors, Vectors]:
    own = noise(13, 30)
    changed = rows.copy()
    changed[np.arange(150) * 40] = unit(0.75 * np.repeat(own, 5, axis=0) + 0.66 * noise(14, 150))
    return changed, between(own, rows[100:700], 0.1, 0.6)


def without_structure(rows: Vectors) -> tuple[Vectors, Vectors]:
    return noise(15, ROWS), noise(16, 60)


def sparse(rows: Vectors) -> tuple[Vectors, Vectors]:
    rng = np.random.default_rng(17)
    changed = np.zeros((ROWS, DIMENSION))
    for weight in (1.0, 0.5):
        changed[np.arange(ROWS), rng.integers(0, DIMENSION, ROWS)] += weight
    return unit(changed), unit(changed[:60] + changed[60:120])


@pytest.mark.parametrize(
    "world", [single_lessons, small_topics, many_equal, questions_out_of_distribution, without_structure, sparse]
)
def test_codes_do_not_mislead(rows: Vectors, world: Callable[[Vectors], tuple[Vectors, Vectors]]) -> None:
    given, queries = world(rows)
    given = stored(given)
    index, _ = an_index(given)
    assert misses(index, given, queries, 5, EVERY) == 0


@pytest.mark.parametrize("equal", [3, 90, 200, 3_000])
def test_all_that_tie_with_the_last_are_found(rows: Vectors, equal: int) -> None:
    rows = rows.copy()
    same = np.sort(np.random.default_rng(equal).permutation(ROWS)[:equal])
    rows[same] = rows[same[0]]
    index, _ = an_index(rows)
    newest = (same[::-1] + 1).tolist()
    before = int((rows @ rows[same[0]] > 1 + TIE).sum())
    assert [hit.seq for hit in search(index.view, rows[same[0]], before + 3)][before:] == newest[:3]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("others", [0, 1, 3])
def test_codes_that_make_no_difference(others: int) -> None:
    """FAISS gives nothing then, nor for a query that is zero."""
    rows = np.repeat(stored(cloud(3, 1)), ROWS, axis=0)
    rows[7 : 7 + others] = stored(noise(20, 3))[:others]
    index, _ = an_index(rows)
    queries = np.concatenate([noise(21, 12), rows[7:8], np.zeros((1, DIMENSION), np.float32)])
    assert misses(index, rows, queries, 5, EVERY) == 0


@pytest.mark.filterwarnings("error")
class RoughCodes:
    """Says nothing of its errors: each row's product is off by so much, whatever is asked."""

    def __init__(self, rows: Vectors, rough: float) -> None:
        self._rows = rows
        self._off = rough * np.random.default_rng(5).standard_normal(len(rows)).astype(np.float32)

    def left_out(self, row: Vectors) -> float:
        return 0.0

    def nearest(self, query: Vectors, fetch: int, lists: np.ndarray, centres: Vectors) -> tuple[np.ndarray, np.ndarray]:
        estimates = self._rows @ query + self._off
        places = np.argsort(-estimates, kind="stable")[:fetch]
        return estimates[places], places


@pytest.mark.parametrize(("rough", "least", "most"), [(0.001, 1.0, 1.0), (0.02, 0.0, 0.3), (0.05, 0.0, 0.0)])
def test_rows_that_were_read_show_how_far_estimates_are_off(rough: float, least: float, most: float) -> None:
    """Also where the errors that are kept show nothing of it."""
    rows = stored(noise(3, ROWS))
    queries = unit(rows[:60] + 0.5 * noise(8, 60))
    nothing = np.zeros((10, DIMENSION), np.float32)
    codes: Any = RoughCodes(rows, rough)
    screen = PqScreen(rows.astype(np.float16), codes, nothing[0], np.ones(len(rows), np.float32), nothing)
    answers = [screen.nearest(query, 5, None) for query in queries]
    for query, answer in zip(queries, answers, strict=True):
        if answer is not None:
            products = rows @ query
            assert (-np.sort(-products[answer[1]])[:5] > -np.sort(-products)[:5] - 5 * TIE).all()
    assert least <= np.mean([answer is not None for answer in answers]) <= most


def test_a_query_without_a_direction(made: tuple[VectorIndex, Fp16Rows]) -> None:
    assert [hit.seq for hit in search(made[0].view, np.zeros(DIMENSION, np.float32), 2)] == [ROWS, ROWS - 1]


def test_rows_that_are_all_equal() -> None:
    index, _ = an_index(np.repeat(stored(cloud(3, 1)), ROWS, axis=0))
    assert [hit.seq for hit in search(index.view, cloud(3, 1)[0], 3)] == [ROWS, ROWS - 1, ROWS - 2]


@pytest.mark.parametrize("dimension", [1, 3, 15, 16, 40])
def test_any_dimension(dimension: int) -> None:
    rows = stored(unit(cloud(4)[:, :dimension]))
    index, part = an_index(rows)
    assert (part.screen is not None) == (dimension >= 16)
    for query in rows[:20]:
        assert search(index.view, query, 3)[0].score >= (rows @ query).max() - 2 * TIE


def test_building_is_repeatable(made: tuple[VectorIndex, Fp16Rows], rows: Vectors) -> None:
    again, part = an_index(rows)
    queries = cloud(5, 20)
    assert [search(again.view, query, 5) for query in queries] == [search(made[0].view, query, 5) for query in queries]
    assert share_told(part, queries) == share_told(made[1], queries)


def test_a_part_grows_out_of_others(rows: Vectors) -> None:
    index = VectorIndex(DIMENSION)
    sizes = []
    for start in range(0, ROWS, 1_000):
        seqs = np.arange(start, start + 1_000) + 1
        batch = VectorBatch(seqs, seqs // 10, seqs % 10 > 0, rows[start : start + 1_000])
        index.apply(Changes(int(seqs[-1]), batch, np.empty((0, 2), np.int64)))
        if index.wants_base:
            assert index.install(index.prepare())
        sizes.append([part.stop - part.start for part in index.view.parts])
    assert sizes[-2:] == [[5_000], [5_000]]
    assert HALF_FROM < 5_000
    assert misses(index, rows, cloud(6, 30), 5, EVERY) == 0


def test_building_stops_when_it_is_told_to(rows: Vectors) -> None:
    index = VectorIndex(DIMENSION)
    seqs = np.arange(1, ROWS + 1)
    index.apply(Changes(ROWS, VectorBatch(seqs, seqs, seqs > 0, rows), np.empty((0, 2), np.int64)))
    assert index.prepare(lambda: True) is None
