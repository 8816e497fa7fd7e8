"""Every form of the vector index against a brute-force model: what is found, in which order, at which number."""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

import faiss
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from rb_dspy.bank.index.layered import LayeredIndex
from rb_dspy.bank.index.vector import VectorIndex
from rb_dspy.bank.index.view import TIE, Filter, Hit, View, search
from rb_dspy.bank.parts import Changes, VectorBatch
from rb_dspy.bank.vectors import packed, unpacked
from rb_dspy.errors import InvalidVector
from rb_dspy.protocols import Vectors

DIMENSION = 8


def rounded(rows: Vectors) -> Vectors:
    """Unit rows as a store gives them back."""
    rows = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return unpacked(b"".join(packed(row) for row in rows), rows.shape[1])[0]


def grid(rng: np.random.Generator, count: int, dimension: int = DIMENSION) -> Vectors:
    """Rows from a thousand possible ones, exact in half precision: scores are equal, or far from it."""
    rows = np.zeros((count, dimension), np.float32)
    for row in rows:
        places = rng.permutation(dimension)[: rng.choice([1, 4])]
        row[places] = rng.choice([-1, 1], len(places))
    return rounded(rows)


def cloud(rng: np.random.Generator, count: int, dimension: int = 32, centres: int = 12) -> Vectors:
    """Clustered rows without equal ones."""
    middle = rng.standard_normal((centres, dimension))
    rows = middle[rng.integers(0, centres, count)] + 0.5 * rng.standard_normal((count, dimension))
    return rounded(rows.astype(np.float32))


@dataclass
class Model:
    """What happened, as plain lists; answers by looking at everything."""

    mark: int = 0
    seqs: list[int] = field(default_factory=list)
    tasks: list[int] = field(default_factory=list)
    successes: list[bool] = field(default_factory=list)
    vectors: list[Vectors] = field(default_factory=list)
    ended: dict[int, int] = field(default_factory=dict)

    def grow(self, rng: np.random.Generator, rows: Vectors, ends: int = 0) -> Changes:
        """Append ``rows``, with gaps between their numbers, then end some; what the store would tell of it."""
        for row in rows:
            self.mark += int(rng.integers(1, 4))
            self.seqs.append(self.mark)
            self.tasks.append(int(rng.integers(-3, 4)) * 2**61)
            self.successes.append(bool(rng.integers(0, 2)))
            self.vectors.append(row)
        pairs = []
        for seq in rng.permutation([seq for seq in self.seqs if seq not in self.ended])[:ends].tolist():
            self.mark += 1
            self.ended[seq] = self.mark
            pairs.append((seq, self.mark))
        return self.changes(rows, pairs)

    def changes(self, rows: Vectors, pairs: Collection[tuple[int, int]]) -> Changes:
        first = len(self.seqs) - len(rows)
        batch = VectorBatch(
            np.array(self.seqs[first:], np.int64),
            np.array(self.tasks[first:], np.int64),
            np.array(self.successes[first:], np.bool_),
            rows,
        )
        return Changes(self.mark, batch, np.array(list(pairs), np.int64).reshape(-1, 2))

    def allowed(self, at: int, tasks: Collection[int], polarity: str | None, hidden: Collection[int]) -> list[int]:
        return [
            row
            for row, seq in enumerate(self.seqs)
            if seq <= at < self.ended.get(seq, 2**62)
            and self.tasks[row] not in tasks
            and (polarity is None or self.successes[row] == (polarity == "success"))
            and seq not in hidden
        ]

    def search(self, query: Vectors, k: int, at: int, min_score: float | None = None, **filters: Any) -> list[Hit]:
        rows = self.allowed(at, **filters)
        scored = sorted(
            ((round(float(np.dot(query, self.vectors[row])), 4), self.seqs[row]) for row in rows), reverse=True
        )
        return [Hit(seq, score) for score, seq in scored[:k] if min_score is None or score >= min_score]


def assert_equal(hits: list[Hit], expected: list[Hit]) -> None:
    assert [hit.seq for hit in hits] == [hit.seq for hit in expected]
    assert [hit.score for hit in hits] == pytest.approx([hit.score for hit in expected], abs=2e-4)


FILTERS = st.fixed_dictionaries(
    {
        "tasks": st.lists(st.integers(-3, 3).map(lambda n: n * 2**61), max_size=4),
        "polarity": st.sampled_from([None, "success", "failure"]),
        "hidden": st.lists(st.integers(1, 200), max_size=30),
    }
)
NO_FILTER: dict[str, Any] = {"tasks": [], "polarity": None, "hidden": []}
Form = Callable[[int], Any]


def exact(seed: int) -> VectorIndex:
    return VectorIndex(DIMENSION, block=16)


def approximate(seed: int) -> VectorIndex:
    """All lists are read at these sizes, so that what is approximate has to be exact."""
    return VectorIndex(DIMENSION, exact_up_to=20, tail=10, block=16)


def halved(seed: int) -> VectorIndex:
    return VectorIndex(DIMENSION, half_from=10, block=16)


@pytest.mark.parametrize("form", [exact, halved, approximate])
@settings(suppress_health_check=[HealthCheck.too_slow])
@given(
    seed=st.integers(0, 2**32),
    steps=st.lists(st.tuples(st.integers(0, 40), st.integers(0, 12)), min_size=1, max_size=6),
    k=st.integers(1, 60),
    filters=FILTERS,
    back=st.integers(0, 150),
    min_score=st.sampled_from([None, 0.0, 0.5]),
)
def test_search_equals_brute_force(
    form: Form, seed: int, steps: list[tuple[int, int]], k: int, filters: Any, back: int, min_score: float | None
) -> None:
    rng, model, index = np.random.default_rng(seed), Model(), form(seed)
    for rows, ends in steps:
        index.apply(model.grow(rng, grid(rng, rows), ends))
        if index.wants_base:
            assert index.install(index.prepare())
    check(model, index.view, grid(rng, 1)[0], k, filters, back, min_score)


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(
    seed=st.integers(0, 2**32),
    below=st.lists(st.tuples(st.integers(0, 40), st.integers(0, 12)), min_size=1, max_size=3),
    layers=st.lists(
        st.lists(st.tuples(st.integers(0, 20), st.integers(0, 12)), min_size=1, max_size=3), min_size=1, max_size=3
    ),
    k=st.integers(1, 60),
    filters=FILTERS,
    back=st.integers(0, 150),
)
def test_layers_equal_brute_force(
    seed: int, below: list[tuple[int, int]], layers: list[list[tuple[int, int]]], k: int, filters: Any, back: int
) -> None:
    rng, model = np.random.default_rng(seed), Model()
    index: Any = (exact, halved, approximate)[seed % 3](seed)
    for rows, ends in below:
        index.apply(model.grow(rng, grid(rng, rows), ends))
        if index.wants_base:
            index.install(index.prepare())
    for layer in layers:
        parent, before = index, index.view
        index = LayeredIndex(parent.view, DIMENSION)
        other = Model(model.mark, [*model.seqs], [*model.tasks], [*model.successes], [*model.vectors], {**model.ended})
        for rows, ends in layer:
            index.apply(model.grow(rng, grid(rng, rows), ends))
        # The parent goes on too, with numbers of its own, and its fork sees nothing of it.
        parent.apply(other.grow(rng, grid(rng, 10), 5))
        assert before.mark <= parent.view.mark
        check(other, parent.view, grid(rng, 1)[0], k, filters, 0, None)
    check(model, index.view, grid(rng, 1)[0], k, filters, back, None)


def check(model: Model, view: View, query: Vectors, k: int, filters: Any, back: int, min_score: float | None) -> None:
    """``view``, and it as it was ``back`` numbers ago, show what ``model`` shows."""
    chosen = Filter(**filters)
    assert view.mark == model.mark
    for at, past in ((model.mark, view), (max(0, model.mark - back), view.at(max(0, model.mark - back)))):
        assert len(past) == len(model.allowed(at, (), None, ()))
        assert_equal(search(past, query, k, chosen, min_score), model.search(query, k, at, min_score, **filters))
        every = list(range(model.mark + 3))
        shown = {model.seqs[row] for row in model.allowed(at, **filters)}
        assert {seq for seq, may in zip(every, past.allowed(every, chosen), strict=True) if may} == shown


@pytest.mark.parametrize("approximately", [False, True])
def test_a_filter_never_starves(approximately: bool) -> None:
    rng, model = np.random.default_rng(0), Model()
    index = VectorIndex(32, exact_up_to=1000 if approximately else 10**9)
    index.apply(model.grow(rng, cloud(rng, 6000), 500))
    index.install(index.prepare())
    assert index.view.exact != approximately
    query = model.vectors[7]
    live = [model.seqs[row] for row in model.allowed(model.mark, (), None, ())]
    left = set(rng.permutation(live)[:9].tolist())
    hidden = [seq for seq in model.seqs if seq not in left]
    assert {hit.seq for hit in search(index.view, query, 9, Filter(hidden=hidden))} == left
    assert len(search(index.view, query, 100, Filter(hidden=hidden))) == 9
    # The nearest are hidden: the next take their places.
    nearest = [hit.seq for hit in search(index.view, query, 2000)]
    assert len(nearest) == 2000
    expected = model.search(query, 5, model.mark, tasks=(), polarity=None, hidden=nearest)
    assert {hit.seq for hit in search(index.view, query, 5, Filter(hidden=nearest))} == {hit.seq for hit in expected}
    assert len(search(index.view, query, 10**6)) == len(index.view) == 5500


def test_lists_are_read_until_all_places_are_filled() -> None:
    """Most rows lie together, far from the query, and most lists hold next to nothing."""
    rng, model = np.random.default_rng(3), Model()
    rows = cloud(rng, 6000)
    far = rows[0]
    rows[np.argsort(rows @ -far)[-1500:]] = far
    rows = np.concatenate([np.repeat(far[None], 14_000, axis=0), rows])
    index = VectorIndex(32, exact_up_to=1000)
    index.apply(model.grow(rng, rows))
    index.install(index.prepare())
    for k in (500, 2000, 5000, 8000):
        assert len(search(index.view, -far, k)) == k


def test_approximate_recall_and_scores() -> None:
    rng, model = np.random.default_rng(1), Model()
    index = VectorIndex(32, exact_up_to=1000)
    index.apply(model.grow(rng, cloud(rng, 30_000)))
    index.install(index.prepare())
    matrix, found = np.array(model.vectors), 0
    for query in cloud(rng, 100):
        best = np.sort(matrix @ query)[::-1]
        hits = search(index.view, query, 5)
        found += sum(hit.score >= best[4] - TIE for hit in hits)
        scores = [float(matrix[model.seqs.index(hit.seq)] @ query) for hit in hits]
        assert [hit.score for hit in hits] == pytest.approx(scores, abs=1e-6)
    assert found >= 0.98 * 500


@pytest.mark.parametrize("approximately", [False, True])
def test_equal_scores_are_given_newest_first(approximately: bool) -> None:
    """Many more rows are equal than are fetched at first."""
    rng, model = np.random.default_rng(2), Model()
    rows = cloud(rng, 3000)
    rows[500:2500] = rows[500]
    index = VectorIndex(32, exact_up_to=100 if approximately else 10**9, block=256)
    index.apply(model.grow(rng, rows))
    if approximately:
        index.install(index.prepare())
    hits = search(index.view, rows[500], 4)
    assert [hit.seq for hit in hits] == model.seqs[2499:2495:-1]
    fresh = model.grow(rng, rows[500:501])
    index.apply(fresh)
    assert [hit.seq for hit in search(index.view, rows[500], 2)] == [model.mark, model.seqs[2499]]
    hidden = [model.mark, *model.seqs[1000:2500]]
    assert [hit.seq for hit in search(index.view, rows[500], 2, Filter(hidden=hidden))] == model.seqs[999:997:-1]


@pytest.mark.parametrize("exact_up_to", [10**9, 100])
def test_lengths_that_half_precision_changes_do_not_change_ranks(exact_up_to: int) -> None:
    """Rows of a few values are half a thousandth too long or too short in it, and as near to each other."""
    rng, model = np.random.default_rng(5), Model()
    rows = np.zeros((400, 32), np.float32)
    for row in rows:
        row[:3] = 1 + 0.003 * rng.standard_normal(3)
    index = VectorIndex(32, exact_up_to=exact_up_to, half_from=8, tail=8)
    index.apply(model.grow(rng, rounded(rows)))
    assert index.install(index.prepare())
    query = np.zeros(32, np.float32)
    query[:3] = np.array([0.8, 0.6, 0])
    cosines = sorted((float(query @ row) for row in model.vectors), reverse=True)
    for k in (1, 3, 10, 40):
        hits = search(index.view, query, k)
        assert sorted((hit.score for hit in hits), reverse=True) == pytest.approx(cosines[:k], abs=2 * TIE)
        hits = search(index.view, query, k, Filter(hidden=[model.seqs[0]]))
        left = sorted((float(query @ row) for row in model.vectors[1:]), reverse=True)
        assert sorted((hit.score for hit in hits), reverse=True) == pytest.approx(left[:k], abs=2 * TIE)


@pytest.mark.parametrize("exact_up_to", [10**9, 100])
def test_of_few_equal_rows_the_newest_have_the_last_places(exact_up_to: int) -> None:
    rng, model = np.random.default_rng(6), Model()
    rows = cloud(rng, 300)
    rows[40:280:20] = rows[40]  # fewer than are fetched
    index = VectorIndex(32, exact_up_to=exact_up_to, half_from=8, tail=8)
    index.apply(model.grow(rng, rows))
    assert index.install(index.prepare())
    for k in (1, 2, 5):
        hits = search(index.view, rows[40], k)
        assert [hit.seq for hit in hits] == [model.seqs[row] for row in range(260, 260 - 20 * k, -20)]


def test_a_search_leaves_the_threads_as_they_were() -> None:
    rng, model = np.random.default_rng(7), Model()
    index = VectorIndex(32)
    index.apply(model.grow(rng, cloud(rng, 20)))
    before = faiss.omp_get_max_threads()
    try:
        for threads in (1, 3):
            faiss.omp_set_num_threads(threads)
            search(index.view, model.vectors[0], 2)
            assert faiss.omp_get_max_threads() == threads
    finally:
        faiss.omp_set_num_threads(before)


@pytest.mark.parametrize("wrong", [np.nan, np.inf, 0.0, 2.0])
def test_wrong_rows_are_refused_whole(wrong: float) -> None:
    rng, model, index = np.random.default_rng(3), Model(), VectorIndex(DIMENSION)
    index.apply(model.grow(rng, grid(rng, 5)))
    before = index.view
    rows = grid(rng, 5)
    rows[3] = wrong
    changes = Model(model.mark).grow(rng, rows)
    with pytest.raises(InvalidVector, match="reindex"):
        index.apply(changes)
    assert index.view is before
    with pytest.raises(InvalidVector, match="reindex"):
        index.apply(Model(model.mark).grow(rng, cloud(rng, 3, DIMENSION + 1)))
    assert index.view is before


@pytest.mark.parametrize(
    "query", [np.full(DIMENSION, np.nan, np.float32), np.ones(3, np.float32), np.ones((1, DIMENSION), np.float32)]
)
def test_wrong_queries_are_refused(query: Vectors) -> None:
    index = VectorIndex(DIMENSION)
    for view in (index.view, LayeredIndex(index.view, DIMENSION).view):
        with pytest.raises(InvalidVector):
            search(view, query, 3)


def test_changes_that_come_again_change_nothing() -> None:
    rng, model, index = np.random.default_rng(4), Model(), VectorIndex(DIMENSION)
    first = model.grow(rng, grid(rng, 20), 3)
    index.apply(first)
    index.apply(first)
    assert (len(index.view), index.view.mark) == (17, model.mark)
    fork = LayeredIndex(index.view, DIMENSION)
    second = model.grow(rng, grid(rng, 20), 9)
    fork.apply(second)
    fork.apply(second)
    assert (len(fork.view), fork.view.mark) == (28, model.mark)
    assert len(index.view) == 17


def test_what_is_prepared_twice_is_installed_once() -> None:
    rng, model = np.random.default_rng(5), Model()
    index = VectorIndex(DIMENSION, exact_up_to=10, tail=10)
    index.apply(model.grow(rng, grid(rng, 30)))
    first, second = index.prepare(), index.prepare()
    index.apply(model.grow(rng, grid(rng, 5), 3))  # while they were being built
    assert index.install(first)
    assert not index.install(second)
    assert not index.wants_base
    check(model, index.view, grid(rng, 1)[0], 40, NO_FILTER, 4, None)


def test_what_overlaps_is_not_installed() -> None:
    rng, model = np.random.default_rng(5), Model()
    index = VectorIndex(DIMENSION, exact_up_to=10, tail=10)
    index.apply(model.grow(rng, grid(rng, 30)))
    first = index.prepare()
    index.apply(model.grow(rng, grid(rng, 30)))
    longer = index.prepare()
    assert index.install(first)
    assert not index.install(longer)
    assert index.install(index.prepare())
    check(model, index.view, grid(rng, 1)[0], 100, NO_FILTER, 10, None)


def test_building_can_be_stopped() -> None:
    rng, model = np.random.default_rng(8), Model()
    index = VectorIndex(DIMENSION, exact_up_to=10, tail=10)
    index.apply(model.grow(rng, grid(rng, 30)))
    for after in range(10):
        asked = iter([False] * after + [True] * 100)
        prepared = index.prepare(lambda asked=asked: next(asked))  # type: ignore[misc]
        assert (prepared is None) == (after < 9)
    assert not index.install(None)
    assert index.wants_base
    assert index.install(prepared)


@pytest.mark.parametrize("rows", [1, 2, 2000])
def test_equal_rows_can_be_consolidated(rows: int) -> None:
    rng, model = np.random.default_rng(7), Model()
    index = VectorIndex(DIMENSION, exact_up_to=0)
    index.apply(model.grow(rng, np.repeat(grid(rng, 1), rows, axis=0)))
    assert index.install(index.prepare())
    check(model, index.view, model.vectors[0], 3, NO_FILTER, 1, None)


def test_parts_stay_few() -> None:
    rng, model = np.random.default_rng(6), Model()
    index = VectorIndex(DIMENSION, exact_up_to=100, tail=20)
    for _ in range(100):
        index.apply(model.grow(rng, grid(rng, 25), 1))
        if index.wants_base:
            index.install(index.prepare())
    assert len(index.view.parts) <= 4
    assert index.view.parts[-1].stop == index.view.tail.start
    check(model, index.view, grid(rng, 1)[0], 50, NO_FILTER, 400, None)
