"""Which of the prompts that were tried are the best."""

from __future__ import annotations

from typing import Any

from rb_dspy.compile.candidates import Candidates
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


def test_only_examples_of_dev_count() -> None:
    assert tried().counts(DEV[0])
    assert not tried().counts({"n": 0})


def test_who_is_tried_again_keeps_its_ratings() -> None:
    candidates = tried("a")
    rated(candidates, "a", 1.0, 0.0)
    candidates.add("a", prompts("a"))
    assert candidates.best() == (0.5, candidates.prompts("a"))
