"""Which of the prompts that were tried are the best."""

from __future__ import annotations

from typing import Any

from rb_dspy.compile.candidates import Candidates
from rb_dspy.compile.ratings import Ratings
from rb_dspy.compile.state import Prompts

DEV = [{"n": 0}, {"n": 0}]  # equal ones, too, are two


def prompts(text: str) -> Prompts:
    return {"judge": {"instructions": text, "demos": []}}


def tried(*names: str) -> Candidates:
    made = Candidates(DEV)
    for name in names:
        made.add(name, prompts(name))
    return made


def rated(candidates: Candidates, name: str, *scores: float) -> list[Any]:
    return [candidates.rate(name, example, score) for example, score in zip(DEV, scores, strict=False)]


def test_none_is_the_best_before_it_is_rated_on_all_of_dev() -> None:
    candidates = tried("a")
    assert rated(candidates, "a", 1.0) == [None]
    assert (candidates.best(), candidates.rated()) == (None, [])
    assert candidates.rate("a", DEV[1], 0.0) == prompts("a")
    assert candidates.best() == (0.5, prompts("a"))


def test_of_equal_ones_the_earliest_is_the_best() -> None:
    candidates = tried("a", "b", "c")
    assert rated(candidates, "b", 1.0, 0.0)[-1] == prompts("b")
    assert rated(candidates, "a", 0.0, 1.0)[-1] == prompts("a")
    assert rated(candidates, "c", 0.5, 0.5) == [None, None]
    assert candidates.best() == (0.5, prompts("a"))
    assert [each["judge"]["instructions"] for _, each in candidates.rated()] == ["a", "b", "c"]


def test_an_example_that_is_rated_again_counts_by_its_mean() -> None:
    candidates = tried("a", "b")
    rated(candidates, "a", 1.0, 1.0)
    rated(candidates, "b", 0.75, 0.75)
    assert candidates.rate("a", DEV[0], 0.0) is None  # 0.75, and earlier
    assert candidates.rate("a", DEV[0], 0.0) == prompts("b")
    assert candidates.best() == (0.75, prompts("b"))


def window(**solved: bool | None) -> Ratings:
    """Task -> whether it was solved; None where nobody knows."""
    made = Ratings()
    for task, right in solved.items():
        made.add(task, float(right or False), unknown=right is None)
    return made


def test_a_task_counts_for_all_once_it_is_known_for_one() -> None:
    """Else prompts would gain by what an environment cannot tell of them."""
    candidates = tried("a", "b")
    candidates.rate("a", DEV[0], window(one=True, two=None, never=None))
    candidates.rate("a", DEV[1], window(three=None, four=None))
    assert candidates.best() == (1.0, prompts("a"))  # the second window does not count
    candidates.rate("b", DEV[0], window(one=True, two=True, never=None))
    assert [score for score, _ in candidates.rated()] == [0.5]
    assert candidates.rate("b", DEV[1], window(three=None, four=True)) == prompts("b")
    assert [score for score, _ in candidates.rated()] == [0.25, 1.0]


def test_while_nobody_knows_any_outcome_none_is_the_best() -> None:
    candidates = tried("a")
    assert [candidates.rate("a", example, window(one=None)) for example in DEV] == [None, None]
    assert (candidates.best(), candidates.rated()) == (None, [])


def test_a_task_that_broke_counts_as_not_solved() -> None:
    candidates = tried("a")
    broke = window(one=True)
    broke.add("two", 0.0, broken=True)
    candidates.rate("a", DEV[0], broke)
    candidates.rate("a", DEV[1], 1.0)
    assert candidates.best() == (0.75, prompts("a"))


def test_only_examples_of_dev_count() -> None:
    assert tried().counts(DEV[0])
    assert not tried().counts({"n": 0})


def test_who_is_tried_again_keeps_its_ratings() -> None:
    candidates = tried("a")
    rated(candidates, "a", 1.0, 0.0)
    candidates.add("a", prompts("a"))
    assert candidates.best() == (0.5, candidates.prompts("a"))
