"""Build a report from records: tables of tasks by orders, and the statistics on them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean

from rb_dspy.backbones.usage import price_of, total_usage
from rb_dspy.evaluation.fairness import refusal
from rb_dspy.evaluation.intervals import (
    ENOUGH_ORDERS,
    ENOUGH_TASKS,
    Comparison,
    Interval,
    Pair,
    adjust,
    compare,
    mean_interval,
)
from rb_dspy.evaluation.plan import ArmSettings, no_truth
from rb_dspy.evaluation.records import TaskRecord
from rb_dspy.evaluation.report import ArmReport, Headroom, LessonEffect, Report
from rb_dspy.stream import TaskStream
from rb_dspy.stream.score import numbers

HEADROOM = 0.15
"""Smallest gain of oracle lessons over no memory at which memory can help."""
MIN_SHOWN = 3
"""Minimum number of times that a listed lesson was shown."""


def build_report(
    orders: Sequence[TaskStream],
    arms: Mapping[str, ArmSettings],
    records: Sequence[TaskRecord],
    *,
    seed: int,
    baseline: str,
    versions: Mapping[str, str],
    date: str = "",
    unequal_signals: bool = False,
) -> Report:
    """The report of all records. The same records, in any order, give the same report.

    Without ``unequal_signals`` there is no verdict on arms that learn from different signals.

    Raises:
        InputError: No task has ground truth.
    """
    known = {record.task for record in records if record.arm in arms and record.score is not None}
    if not known:
        raise no_truth(orders[0])
    tasks = [task.id for task in orders[0] if task.id in known]
    by_arm = {name: [record for record in records if record.arm == name and record.task in known] for name in arms}
    tables = {name: _Table(settings, tasks, len(orders), by_arm[name]) for name, settings in arms.items()}
    others = [name for name in arms if name != baseline]
    primary = "bank" if "bank" in others else others[0]
    made = {name: _arm(table, orders) for name, table in tables.items()}
    comparisons = {name: _compare(tables[baseline], tables[name]) for name in others}
    if not unequal_signals:
        for name, each in comparisons.items():
            if why := refusal(made, baseline, name):
                comparisons[name] = each.model_copy(update={"verdict": "UNRESOLVED", "refused": why})
    gain = _gain_of_oracle(tables)
    return Report(
        stream=orders[0].name,
        digest=orders[0].digest,
        tasks=len(tasks),
        orders=len(orders),
        seed=seed,
        baseline=baseline,
        primary=primary,
        exploratory=len(tasks) < ENOUGH_TASKS or len(orders) < ENOUGH_ORDERS,
        arms=made,
        comparisons=adjust(comparisons, primary),
        headroom=None if gain is None else _headroom(gain),
        gain_of_oracle=gain,
        lessons=_lessons(tables[primary], tables[baseline]),
        versions=dict(versions),
        date=date,
    )


class _Table:
    """The records of one arm, as a table of tasks by orders."""

    def __init__(self, settings: ArmSettings, tasks: Sequence[str], orders: int, records: Iterable[TaskRecord]) -> None:
        self.settings = settings
        self.orders = 1 if settings.repeats else orders
        self.records = sorted(records, key=lambda record: (record.order, record.position))
        self._tasks = tasks
        self._cells = {(record.task, record.order): record for record in self.records}

    def at(self, task: str, order: int) -> TaskRecord | None:
        """The record of a task in an order; if one order counts for all, its record in that order."""
        return self._cells.get((task, 0 if self.settings.repeats else order))

    def score(self, task: str, order: int) -> float | None:
        """The score of a task in an order; None if it is unknown."""
        record = self.at(task, order)
        return None if record is None else record.score

    def scores(self, orders: int) -> dict[str, list[float | None]]:
        """Task -> score in each order."""
        return {task: [self.score(task, order) for order in range(orders)] for task in self._tasks}

    def errors(self, orders: int) -> list[Pair]:
        """The pairs in which something broke."""
        pairs = [(task, order) for task in self._tasks for order in range(orders)]
        return [pair for pair in pairs if (record := self.at(*pair)) is not None and record.broke]


def _compare(before: _Table, after: _Table) -> Comparison:
    orders = max(before.orders, after.orders)
    return compare(
        before.scores(orders),
        after.scores(orders),
        errors_before=before.errors(orders),
        errors_after=after.errors(orders),
        streams=before.settings.learns or after.settings.learns,
    )


def _arm(table: _Table, orders: Sequence[TaskStream]) -> ArmReport:
    records, settings = table.records, table.settings
    usage = total_usage([record.usage for record in records])
    found = numbers(record.model_dump() for record in records)
    return ArmReport(
        memory=settings.memory,
        own=settings.own,
        learns=settings.learns,
        needs_lessons=settings.needs_lessons,
        signal=settings.signal,
        repeats_tasks=settings.repeats_tasks,
        models=settings.models,
        runs=len(records),
        repeated=settings.repeats and len(orders) > 1,
        success=mean_interval(table.scores(table.orders)),
        steps=found["mean_steps"],
        tokens=found["tokens"],
        tokens_per_success=found["tokens"] / found["solved"] if found["solved"] else None,
        cost=price_of(usage, settings.models),
        seconds=round(sum(record.seconds for record in records), 3),
        errors=found["errors"],
        retried=sum(record.tries > 1 and not record.error for record in records),
        unknown=sum(record.score is None for record in records),
        curve=_curve(table, orders),
        judged=found["judged"],
        judge_agreement=found["judge_agreement"],
        judge_base_rate=found["judge_base_rate"],
        shown=found["shown"] / len(records) if records and (settings.learns or settings.needs_lessons) else None,
        memory_errors=found["memory_errors"],
        tokens_shown=found["tokens_shown"],
        tokens_beyond=found["tokens_beyond"],
        calls=sum(record.calls for record in records) / len(records) if records else None,
        learned=found["learned"],
    )


def _curve(table: _Table, orders: Sequence[TaskStream]) -> list[float | None]:
    """The share of solved tasks around each position."""
    length = len(orders[0])
    at: dict[int, list[float]] = defaultdict(list)
    for order, stream in enumerate(orders):
        for position, task in enumerate(stream):
            score = table.score(task.id, order)
            if score is not None:
                at[position].append(score)
    reach = length // 10
    curve = []
    for position in range(length):
        near = [score for each in range(position - reach, position + reach + 1) for score in at.get(each, ())]
        curve.append(fmean(near) if near else None)
    return curve


def _gain_of_oracle(tables: Mapping[str, _Table]) -> Interval | None:
    still = [table for table in tables.values() if not table.settings.learns]
    without = next((table for table in still if not table.settings.needs_lessons), None)
    given = next((table for table in still if table.settings.needs_lessons), None)
    return None if without is None or given is None else _compare(without, given).difference


def _headroom(gain: Interval) -> Headroom:
    if gain.mean >= HEADROOM and gain.low > 0:
        return "yes"
    return "no" if gain.high < HEADROOM else "unclear"


def _lessons(table: _Table, baseline: _Table) -> list[LessonEffect]:
    titles: dict[str, str] = {}
    contents: dict[str, str] = {}
    pairs: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for record in table.records:
        before = baseline.score(record.task, record.order)
        if record.score is None or before is None:
            continue
        contents |= zip(record.shown, record.recalled_content, strict=False)
        for id, title in zip(record.shown, record.recalled, strict=True):
            titles[id] = title
            pairs[id].append((record.score, before))
    effects = [
        LessonEffect(
            id=id,
            title=titles[id],
            content=contents.get(id, ""),
            times=len(each),
            success=fmean(success for success, _ in each),
            baseline=fmean(before for _, before in each),
        )
        for id, each in pairs.items()
        if len(each) >= MIN_SHOWN
    ]
    return sorted(effects, key=lambda effect: (-effect.difference, -effect.times, effect.title, effect.id))
