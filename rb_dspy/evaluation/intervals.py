"""Paired differences between two programs or arms: intervals, p values, verdicts.

The unit is a pair: one task in one order of the stream, done by both sides. Neither the tasks nor the orders are
independent: a task that is hard is hard in all orders, and a lesson that is learned early helps in the rest of its
order. So errors are clustered by task and by order (two-way, Cameron, Gelbach and Miller 2011), with t quantiles of the
smaller number of clusters less one. A negative variance component never narrows the interval: it is at least that of
one-way clusters. One win and one loss are added to the variance, because a small table of equal pairs would have no
width otherwise. With one order, whose tasks stand alone, it is a paired t interval with one win and one loss added to
the tasks (Bonett and Price 2012).

Simulated with tasks of varying difficulty (``tests/evaluation/test_intervals.py``): without an effect, 2 to 4 % of
tables of 12 tasks x 8 orders lead to a verdict LEARNING or HARM; a gain of 20 points is shown in 95 % of evaluations of
30 x 8, one of 10 points in 89 % of 100 x 8.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from math import sqrt
from typing import Literal

import numpy as np
import pydantic
from numpy.typing import NDArray
from scipy.special import stdtr, stdtrit  # type: ignore[import-untyped]

from rb_dspy.errors import InputError

Conclusion = Literal["LEARNING", "NULL", "HARM", "UNRESOLVED"]
Scores = Mapping[str, Sequence[float | None]]
"""Task id -> its score in each order, from 0 to 1; None if it is unknown, which leaves the pair out."""
Pair = tuple[str, int]
"""A task's id and the number of an order, from 0."""

SMALLEST = 0.05
"""The smallest difference of interest: NULL means that the interval lies within it on both sides."""
ENOUGH_TASKS, ENOUGH_ORDERS = 100, 8
"""Fewer tasks or orders are exploratory."""
MIN_TASKS, MIN_ORDERS = 5, 3
"""Required for a verdict: fewer say nothing about other tasks or orders."""
FEWEST = f"at least {MIN_TASKS} tasks and {MIN_ORDERS} orders"
NULL_TASKS = 60
"""Required for NULL: with fewer, even without any difference, 5 % of all tasks may still differ (rule of three)."""

_DIFFERENCE_PSEUDO, _MEAN_PSEUDO = (-1.0, 1.0), (0.0, 0.0, 1.0, 1.0)
_CELL_VARIANCE, _TASK_VARIANCE, _ORDER_VARIANCE = 0.42, 0.01, 0.001
"""Variances of a pair, a task's effect and an order's effect in the simulation behind ``detectable``."""


class Interval(pydantic.BaseModel, frozen=True):
    """A mean and its 95 % interval, from -1 to 1. As text it is in points (percent); with the format ``+`` signed."""

    mean: float
    low: float
    high: float

    def __format__(self, spec: str) -> str:
        mean, low, high = (f"{100 * value:{spec}.1f}" for value in (self.mean, self.low, self.high))
        return f"{mean} [{low}, {high}]"

    def __str__(self) -> str:
        return format(self)


class Comparison(pydantic.BaseModel, frozen=True):
    """Two sides on the same tasks in the same orders. Differences are after less before, paired by task and order."""

    before: float
    after: float
    difference: Interval
    p: float
    p_holm: float | None = None
    """Adjusted for the number of comparisons; None for the primary one."""
    tasks: int
    orders: int
    errors_before: int = 0
    """Pairs that count as failures because something broke."""
    errors_after: int = 0
    clean: Interval | None = None
    """If something broke: the difference over the pairs without an error; None if none is left."""
    verdict: Conclusion
    refused: str = ""
    """Why there is no verdict, whatever the interval; empty if there is one."""
    exploratory: bool
    """Fewer than 100 tasks or 8 orders."""

    @property
    def better(self) -> bool:
        """Whether after is better: the interval lies above 0, also over the clean pairs if something broke.

        At least 5 tasks and 3 orders are required, or one order of tasks that stand alone.
        """
        return self.verdict == "LEARNING"

    def __str__(self) -> str:
        return f"{100 * self.before:.0f} % -> {100 * self.after:.0f} %, difference {self.difference:+} points"


def compare(
    before: Scores,
    after: Scores,
    *,
    errors_before: Collection[Pair] = (),
    errors_after: Collection[Pair] = (),
    streams: bool = False,
) -> Comparison:
    """Compare two sides that did the same tasks in the same orders.

    Args:
        before: The scores of one side.
        after: The scores of the other side.
        errors_before: Pairs of ``before`` in which something broke. Their scores should be 0.
        errors_after: The same for ``after``.
        streams: Whether lessons passed from task to task, so that one order is one draw; a single order then gets no
            verdict. False: the tasks of a single order stand alone.

    Returns:
        The comparison, not adjusted for others (see ``adjust``). The same arguments give the same result.

    Raises:
        InputError: The sides differ in tasks or number of orders, or no pair has two scores.
    """
    difference = _matrix(after, before) - _matrix(before, after)
    names = list(before)
    every = ~np.isnan(difference)
    if not every.any():
        raise InputError("nothing to compare: no task has a score on both sides; expected ground truth for some tasks")
    tasks, orders = int(every.any(axis=1).sum()), int(every.any(axis=0).sum())
    interval, p = _interval(difference, _DIFFERENCE_PSEUDO, -1.0)
    touched = {*errors_before, *errors_after}
    clean = None
    if touched:
        broken = np.array([[(name, order) in touched for order in range(every.shape[1])] for name in names])
        without = np.where(broken, np.nan, difference)
        clean = None if np.isnan(without).all() else _interval(without, _DIFFERENCE_PSEUDO, -1.0)[0]
    enough = tasks >= MIN_TASKS and (orders >= MIN_ORDERS or (orders == 1 and not streams))
    return Comparison(
        before=float(_matrix(before, after)[every].mean()),
        after=float(_matrix(after, before)[every].mean()),
        difference=interval,
        p=p,
        tasks=tasks,
        orders=orders,
        errors_before=len(set(errors_before)),
        errors_after=len(set(errors_after)),
        clean=clean,
        verdict=_verdict(interval, clean, bool(touched), tasks) if enough else "UNRESOLVED",
        exploratory=tasks < ENOUGH_TASKS or orders < ENOUGH_ORDERS,
    )


def adjust(comparisons: Mapping[str, Comparison], primary: str | None) -> dict[str, Comparison]:
    """Adjust all comparisons but the primary one for their number (Holm 1979).

    A comparison with an adjusted p value of 0.05 or more is neither LEARNING nor HARM.
    """
    others = [name for name in comparisons if name != primary]
    adjusted = dict(comparisons)
    highest = 0.0
    for rank, name in enumerate(sorted(others, key=lambda name: comparisons[name].p)):
        each = comparisons[name]
        highest = max(highest, min(1.0, each.p * (len(others) - rank)))
        shown = each.verdict not in ("LEARNING", "HARM") or highest < 0.05
        adjusted[name] = each.model_copy(update={"p_holm": highest, "verdict": each.verdict if shown else "UNRESOLVED"})
    return adjusted


def mean_interval(scores: Scores) -> Interval | None:
    """The mean score over tasks and orders; None if no score is known."""
    values = _matrix(scores, scores)
    return None if np.isnan(values).all() else _interval(values, _MEAN_PSEUDO, 0.0)[0]


def detectable(tasks: int, orders: int) -> float | None:
    """The gain that 80 % of evaluations show; None if it is not below 1.

    An estimate, for scores of 0 and 1, base rates between 0.1 and 0.9, and effects that vary by task and order.
    """
    if tasks < MIN_TASKS or (orders != 1 and orders < MIN_ORDERS):
        return None
    pairs = tasks * orders
    variance = _CELL_VARIANCE / pairs + _TASK_VARIANCE / tasks + len(_DIFFERENCE_PSEUDO) / pairs**2
    variance += _ORDER_VARIANCE / orders if orders > 1 else 0.0
    degrees = min(tasks, orders) - 1 if orders > 1 else tasks + 1
    gain = float(stdtrit(degrees, 0.975) + stdtrit(degrees, 0.8)) * sqrt(variance)
    return gain if gain < 1 else None


def _matrix(scores: Scores, other: Scores) -> NDArray[np.float64]:
    """Tasks x orders; NaN if a score of either side is unknown."""
    if {task: len(row) for task, row in scores.items()} != {task: len(row) for task, row in other.items()}:
        raise InputError(
            "the two sides differ in tasks or orders; expected scores of the same tasks in the same orders"
        )
    if len({len(row) for row in scores.values()}) > 1:
        raise InputError("the tasks have different numbers of scores; expected one for each order")
    rows = [
        [np.nan if None in pair else pair[0] for pair in zip(row, other[task], strict=True)]
        for task, row in scores.items()
    ]
    return np.array(rows, dtype=np.float64).reshape(len(rows), -1)


def _interval(values: NDArray[np.float64], pseudo: Sequence[float], least: float) -> tuple[Interval, float]:
    """The mean of tasks x orders with its interval within [``least``, 1], and the p value of a mean of 0."""
    values = values[~np.isnan(values).all(axis=1)][:, ~np.isnan(values).all(axis=0)]
    tasks, orders = values.shape
    mean = float(np.nanmean(values))
    if orders == 1:
        rows = np.concatenate([values[:, 0], pseudo])
        center, degrees = float(rows.mean()), float(len(rows) - 1)
        variance = float(((rows - center) ** 2).sum()) / len(rows) ** 2
    else:
        pairs = int((~np.isnan(values)).sum())
        residuals = np.nan_to_num(values - mean)
        by_task = float((residuals.sum(axis=1) ** 2).sum()) * tasks / max(1, tasks - 1)
        by_order = float((residuals.sum(axis=0) ** 2).sum()) * orders / max(1, orders - 1)
        single = float((residuals**2).sum()) * pairs / max(1, pairs - 1)
        spread = float(np.var(pseudo)) * len(pseudo)
        center, degrees = mean, float(max(1, min(tasks, orders) - 1))
        variance = (max(by_task + by_order - single, by_task, by_order) + spread) / pairs**2
        if least == 0 and tasks > 1:  # a mean varies by task above all: degrees of freedom as by Satterthwaite
            parts = (tasks, by_task), (orders, max(0.0, by_order - single))
            squares = sum(part**2 / (clusters - 1) for clusters, part in parts)
            degrees = max(degrees, sum(part for _, part in parts) ** 2 / squares) if squares else float(tasks - 1)
    error = sqrt(variance)
    reach = float(stdtrit(degrees, 0.975)) * error
    p = 2 * float(stdtr(degrees, -abs(center) / error))
    low, high = max(least, min(mean, center - reach)), min(1.0, max(mean, center + reach))
    return Interval(mean=mean, low=low, high=high), p


def _verdict(interval: Interval, clean: Interval | None, broken: bool, tasks: int) -> Conclusion:
    both = [interval] if not broken else [interval, clean] if clean else []
    if not both:
        return "UNRESOLVED"
    if all(each.low > 0 for each in both):
        return "LEARNING"
    if all(each.high < 0 for each in both):
        return "HARM"
    if tasks >= NULL_TASKS and all(each.low > -SMALLEST and each.high < SMALLEST for each in both):
        return "NULL"
    return "UNRESOLVED"
