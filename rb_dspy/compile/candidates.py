"""Prompts that were tried, how they were rated, and which of them are the best.

The best are those with the highest mean on all dev examples, of equal ones the earliest, which may be the program's as
it was. Of an example that is a stream the tasks count which somebody knows the outcome of, with any of the prompts
(``rb_dspy.compile.ratings``); an example without such tasks does not count.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from rb_dspy.compile.ratings import Ratings, left_out
from rb_dspy.compile.state import Prompts


@dataclass
class Candidate:
    """Prompts that were tried, and how they were rated on each dev example."""

    prompts: Prompts
    ratings: dict[int, list[Ratings | float]] = field(default_factory=dict)

    def mean(self, examples: int, gone: Collection[str]) -> float | None:
        """Over all dev examples, without the tasks that are ``gone``; None while one is missing, or nothing counts."""
        if len(self.ratings) < examples:
            return None
        found = [[mean for each in given if (mean := _mean(each, gone)) is not None] for given in self.ratings.values()]
        counted = [fmean(means) for means in found if means]
        return fmean(counted) if counted else None


class Candidates:
    """Every one by its digest, in the order in which they came up. Not thread-safe: its owner has a lock."""

    def __init__(self, dev: Sequence[Any]) -> None:
        self._examples = list(dev)  # kept, since they are known by their ids
        self._dev = {id(example): number for number, example in enumerate(dev)}
        self._known: dict[str, Candidate] = {}
        self._seen = Ratings()
        """What was known, and what was not, whichever prompts it was tried with."""
        self._best: tuple[float, str] | None = None

    def add(self, key: str, prompts: Prompts) -> None:
        """Note that ``prompts``, of the digest ``key``, are tried."""
        self._known.setdefault(key, Candidate(prompts))

    def prompts(self, key: str) -> Prompts:
        """Those of this digest."""
        return self._known[key].prompts

    def counts(self, example: Any) -> bool:
        """Whether a rating on ``example`` counts: it is one of dev."""
        return id(example) in self._dev

    def rate(self, key: str, example: Any, rating: Ratings | float) -> Prompts | None:
        """Note a rating; the best prompts, where they are others now."""
        self._known[key].ratings.setdefault(self._dev[id(example)], []).append(rating)
        if isinstance(rating, Ratings):
            self._seen.known |= rating.known
            self._seen.unknown |= rating.unknown
        known = [(mean, key) for key, mean in self._means().items()]
        if not known:
            return None
        found = max(known, key=lambda each: each[0])  # of equal ones the first
        other = self._best is None or self._best[1] != found[1]
        self._best = found
        return self._known[found[1]].prompts if other else None

    def best(self) -> tuple[float, Prompts] | None:
        """The best so far, with their mean on dev; None while none is rated on all of dev."""
        return None if self._best is None else (self._best[0], self._known[self._best[1]].prompts)

    def rated(self) -> list[tuple[float, Prompts]]:
        """Those rated on all of dev, with their means."""
        return [(mean, self._known[key].prompts) for key, mean in self._means().items()]

    def _means(self) -> dict[str, float]:
        gone = left_out(self._seen)
        means = {key: each.mean(len(self._dev), gone) for key, each in self._known.items()}
        return {key: mean for key, mean in means.items() if mean is not None}


def _mean(rating: Ratings | float, gone: Collection[str]) -> float | None:
    """None where no task of it counts."""
    if not isinstance(rating, Ratings):
        return rating
    scores = [fmean(each) for task, each in rating.scores.items() if task not in gone]
    return fmean(scores) if scores else None
