"""Reciprocal rank fusion: ranks alone decide."""

import pytest
from hypothesis import given, strategies as st

from rb_dspy.bank.index.fusion import fused
from rb_dspy.bank.index.view import Hit


def ranking(*seqs: int) -> list[Hit]:
    return [Hit(seq, 100.0 - place) for place, seq in enumerate(seqs)]


def test_scores_are_those_of_the_paper() -> None:
    hits = fused([ranking(1, 2, 3), ranking(3, 1)], 10)
    assert hits == [
        Hit(1, pytest.approx(1 / 61 + 1 / 62)),
        Hit(3, pytest.approx(1 / 63 + 1 / 61)),
        Hit(2, pytest.approx(1 / 62)),
    ]


def test_two_good_places_beat_one_first() -> None:
    assert [hit.seq for hit in fused([ranking(1, 2), ranking(3, 2)], 3)] == [2, 3, 1]


def test_equals_newest_first_and_empty() -> None:
    assert [hit.seq for hit in fused([ranking(4, 9), ranking(9, 4)], 2)] == [9, 4]
    assert fused([], 3) == fused([[], []], 3) == []
    assert fused([ranking(1)], 0) == []


RANKINGS = st.lists(st.lists(st.integers(1, 30), unique=True, max_size=20).map(lambda seqs: ranking(*seqs)), max_size=4)


@given(RANKINGS, st.randoms(use_true_random=False), st.integers(0, 40))
def test_order_of_rankings_and_their_scores_do_not_matter(rankings: list[list[Hit]], rng: object, k: int) -> None:
    hits = fused(rankings, k)
    shuffled = [[Hit(hit.seq, -hit.score) for hit in one] for one in rankings]
    rng.shuffle(shuffled)  # type: ignore[attr-defined]
    assert fused(shuffled, k) == hits
    assert len(hits) == min(k, len({hit.seq for one in rankings for hit in one}))
    assert hits == sorted(hits, key=lambda hit: (-hit.score, -hit.seq))
