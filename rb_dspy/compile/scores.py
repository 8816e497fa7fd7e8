"""How good a program is, and how sure that is: means over tasks with 95 % intervals, and paired differences.

The unit is the task: tasks are taken to be drawn independently, and what several orders or examples give for one task
is its mean. Where the tasks of a template share what they are rated by, the template is the unit. Where scores have
weights, a unit counts with those of its own.

Tasks of a stream are not independent: a lesson that came early helps all that follow, so that a run is one draw of
whether it came, however many tasks it has. Two runs of the same program would be told apart in a quarter of cases by
their tasks alone. So a stream is run in several orders, each from the same bank, and an interval has to hold for two
reasons: over the tasks, with the variation between orders in it (two-way clusters, with Satterthwaite's degrees of
freedom), and over the runs, by a t interval of their means. What is given is what covers both. With fewer than
``MIN_ORDERS`` nothing is known of other runs: the interval is that over the tasks, and nothing is called better or
worse. In both, held-out tasks of few templates speak of these templates only.

Success is 0 or 1 and tasks are few, so a plain t interval, and a bootstrap too, would have no width where all tasks
agree. Pseudo-tasks keep it honest: two successes and two failures in a mean (Agresti and Coull 1998), one won and one
lost in a paired difference (Bonett and Price 2012), with t quantiles. They pull the interval towards the middle, by
less the more tasks there are. Computed exactly for 4 to 40 independent tasks, the interval of a mean holds the truth in
94.4 % of cases or more, that of a difference in 95.1 % or more, and at most 2.2 % of pairs that are equal in truth are
called better; five wins without a loss are the fewest that are. Of pairs of streams in which one lesson decides, at
most 2.5 % are in 1,500 simulated ones of 6 to 30 tasks in 3 to 5 orders (``test_scores.py``). Nothing here is drawn at
random.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from math import sqrt
from statistics import fmean, stdev
from typing import Literal

import pydantic
from scipy.special import stdtrit  # type: ignore[import-untyped]

from rb_dspy.compile.ratings import Ratings, SamplingUnit, left_out
from rb_dspy.errors import InputError

LEVEL = 0.95
MIN_ORDERS = 3
"""Fewer say nothing of how much the order, and luck with the first lessons, matter."""

Says = Literal[
    "better",
    "worse",
    "no better than before",
    "not shown to be better",
    "too few to tell",
    "too few orders to tell",
    "too much broke to tell",
]

_FEWEST = 5
"""Tasks below which no difference can be told."""

SMALLEST = 0.05
"""The smallest difference that anybody would care for: one that is surely below is none."""

_VARIANCE = 0.5
"""Of the difference of two scores that are 0 or 1 with equal chances."""
_POWER = 1.4
"""A gain of so many half-widths of its interval is shown in about 80 % of simulated compiles."""

_MEAN_PSEUDO = (0.0, 0.0, 1.0, 1.0)
_DIFFERENCE_PSEUDO = (-1.0, 1.0)


class Estimate(pydantic.BaseModel):
    """A mean over tasks and its 95 % interval. ``mean`` is the plain one."""

    model_config = pydantic.ConfigDict(frozen=True)

    mean: float
    low: float
    high: float
    tasks: int
    """How many units: tasks, or templates where that is what was rated."""
    orders: int = 1
    unit: SamplingUnit = "task"
    of_runs: bool = False
    """Whether these are runs of a stream, in which lessons pass from one task to the next."""

    def __str__(self) -> str:
        return f"{self.mean:.3f} [{self.low:.3f}, {self.high:.3f}]"

    @property
    def says(self) -> Says:
        """What it says as that of a difference."""
        if self.tasks < _FEWEST:
            return "too few to tell"
        if self.of_runs and self.orders < MIN_ORDERS:
            return "too few orders to tell"
        if self.low > 0:
            return "better"
        if self.high < 0:
            return "worse"
        if self.high < SMALLEST:
            return "no better than before"
        return "too few to tell" if self.mean > 0 else "not shown to be better"


class Comparison(pydantic.BaseModel):
    """Before and after on the same tasks in the same orders, and what changed, task by task."""

    model_config = pydantic.ConfigDict(frozen=True)

    before: Estimate
    after: Estimate
    difference: Estimate
    broken_before: int = 0
    """Scores that are 0 since something broke, and not since the program did badly."""
    broken_after: int = 0
    clean: Estimate | None = None
    """Where something broke: the difference over the tasks where nothing did; None where no such task is left."""

    @property
    def broken(self) -> int:
        """Of both sides."""
        return self.broken_before + self.broken_after

    @property
    def better(self) -> bool:
        """Whether the difference says so, and where something broke, that over the ``clean`` tasks as well."""
        clean = self.difference if not self.broken else self.clean
        return self.difference.says == "better" and clean is not None and clean.says == "better"

    @property
    def says(self) -> Says:
        """What the difference says; what it owes to something that broke is neither a gain nor a loss."""
        said = self.difference.says
        if not self.broken or said not in ("better", "worse"):
            return said
        return said if self.clean is not None and self.clean.says == said else "too much broke to tell"

    def __str__(self) -> str:
        return f"{self.before} -> {self.after}, difference {self.difference}"


def estimate(ratings: Ratings, *others: Ratings) -> Estimate:
    """The mean score over the tasks that count, in ``ratings`` or in ``others`` of the same tasks (``left_out``).

    Raises ``InputError`` for no tasks.
    """
    return _mean(ratings, left_out(ratings, *others))


def compare(before: Ratings, after: Ratings, *others: Ratings) -> Comparison:
    """What changed from ``before`` to ``after``; ``others`` as in ``estimate``.

    Raises ``InputError`` for other tasks, or other orders of them.
    """
    if {task: len(each) for task, each in before.scores.items()} != {
        task: len(each) for task, each in after.scores.items()
    }:
        raise InputError("the two were rated on other tasks, or in another number of orders; rate both on the same")
    gone = left_out(before, after, *others)
    paired = {
        task: [new - old for old, new in zip(scores, after.scores[task], strict=True)]
        for task, scores in before.scores.items()
        if task not in gone
    }
    touched = before.touched | after.touched
    clean = {task: scores for task, scores in paired.items() if task not in touched} if touched else {}
    return Comparison(
        before=_mean(before, gone),
        after=_mean(after, gone),
        difference=_estimate(before, paired, _DIFFERENCE_PSEUDO, -1.0, 1.0),
        broken_before=before.broken,
        broken_after=after.broken,
        clean=_estimate(before, clean, _DIFFERENCE_PSEUDO, -1.0, 1.0) if clean else None,
    )


def likely_shown(units: int, orders: int | None = None) -> float | None:
    """The smallest gain that so many tasks are likely (80 %) to show; None if there is none below 1.

    ``orders``: of runs of a stream; None: of examples that stand alone. An estimate, for scores of 0 and 1 that vary as
    much as they can.
    """
    if units < _FEWEST or (orders is not None and orders < MIN_ORDERS):
        return None
    several = orders or 1
    tasks_reach = _quantile(units + 1) * sqrt(units * _VARIANCE / several + len(_DIFFERENCE_PSEUDO)) / (units + 2)
    runs_reach = _quantile(orders - 1) * sqrt(_VARIANCE / (units * orders)) if orders else 0.0
    gain = _POWER * max(tasks_reach, runs_reach)
    return gain if gain < 1 else None


def _mean(ratings: Ratings, gone: Collection[str]) -> Estimate:
    scores = {task: each for task, each in ratings.scores.items() if task not in gone}
    return _estimate(ratings, scores, _MEAN_PSEUDO, 0.0, 1.0)


def _estimate(
    of: Ratings, scores: Mapping[str, Sequence[float]], pseudo: Sequence[float], least: float, most: float
) -> Estimate:
    if not scores:
        raise InputError("nothing was rated; a mean needs at least one task")
    rows = list(scores.values())
    means = [fmean(row, of.weights.get(task)) for task, row in scores.items()]
    shares = _shares([sum(of.weights[task]) for task in scores] if of.weights else [1.0] * len(rows))
    held, counts = [*means, *pseudo], [*shares, *[1.0] * len(pseudo)]
    middle = fmean(held, counts)
    total = sum(counts)
    variance = sum((count * (each - middle)) ** 2 for count, each in zip(counts, held, strict=True)) / total**2
    degrees = total**2 / sum(count**2 for count in counts) - 1  # fewer where few units hold most of the weight
    orders = len(rows[0]) if of.crossed else 1
    if orders >= MIN_ORDERS:
        extra = _between_orders(rows)
        if extra > 0:  # Satterthwaite: each part counts with the degrees of freedom that it has
            degrees = (variance + extra) ** 2 / (variance**2 / degrees + extra**2 / (orders - 1))
            variance += extra
    reach = _quantile(degrees) * sqrt(variance)
    mean = fmean(means, shares)
    apart = _over_runs(rows) if orders >= MIN_ORDERS else 0.0
    low = max(least, min(mean - apart, middle - reach))
    high = min(most, max(mean + apart, middle + reach))
    return Estimate(mean=mean, low=low, high=high, tasks=len(rows), orders=orders, unit=of.unit, of_runs=of.crossed)


def _shares(weights: Sequence[float]) -> list[float]:
    """Their mean is 1, as every pseudo-task counts 1."""
    mean = fmean(weights)
    return [weight / mean for weight in weights]


def _between_orders(rows: Sequence[Sequence[float]]) -> float:
    """What orders add to the variance of the mean, beyond what tasks and chance put into it; 0 or more."""
    tasks, orders = len(rows), len(rows[0])
    mean = fmean(fmean(row) for row in rows)
    by_order = sum(sum(row[order] - mean for row in rows) ** 2 for order in range(orders))
    both = sum((score - mean) ** 2 for row in rows for score in row)
    return max(0.0, (by_order - both) / (tasks * orders) ** 2)


def _over_runs(rows: Sequence[Sequence[float]]) -> float:
    """How far the t interval of the runs' means reaches."""
    orders = len(rows[0])
    runs = [fmean(row[order] for row in rows) for order in range(orders)]
    return _quantile(orders - 1) * stdev(runs) / sqrt(orders)


def _quantile(degrees: float) -> float:
    """Of t, for an interval of ``LEVEL``; ``scipy.stats`` loads slowly."""
    return float(stdtrit(degrees, (1 + LEVEL) / 2))
