"""A report as sentences and as Markdown."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rb_dspy.evaluation.intervals import MIN_ORDERS, MIN_TASKS, Comparison, Interval, detectable
from rb_dspy.text import printable

if TYPE_CHECKING:
    from rb_dspy.evaluation.report import ArmReport, LessonEffect, Report

MOST_LESSONS = 5
"""Of those that helped, and of those that misled."""


def markdown(report: Report) -> str:
    """A report for a terminal or a pull request. Names and titles are escaped."""
    lines = [
        f"# Evaluation of {_escape(report.stream)}",
        "",
        f"**{_escape(verdict_sentence(report))}**",
        "",
        f"{design_sentence(report)} {note_sentence(report)}".strip(),
        *([_escape(headroom_sentence(report))] if report.headroom else []),
        "",
        *_table(
            ("arm", "solved", "steps", "tokens", "tokens/success", "cost", "shown", "judge right", "errors"),
            [
                [f"{_escape(name)}{' (baseline)' * (name == report.baseline)}", *arm_cells(arm)]
                for name, arm in report.arms.items()
            ],
        ),
        "",
        "shown: tasks with a lesson; judge: in brackets if it always said the same; errors: twice, count as failures",
        "",
        f"Differences to {_escape(report.baseline)}, in points, with 95 % intervals (p adjusted by Holm except for"
        f" {_escape(report.primary)}):",
        "",
        *_table(
            ("arm", "verdict", "difference", "p", "without errors"),
            [
                [_escape(name), each.verdict, points(each.difference), _escape(p_value(each)), clean(each)]
                for name, each in report.comparisons.items()
            ],
        ),
    ]
    if report.lessons:
        best, worst = extremes(report)
        lines += ["", "Lessons that were shown, against the baseline on the same tasks (an association):", ""]
        rows = [
            [_escape(each.title), str(each.times), share(each.success), share(each.baseline)]
            for each in [*best, *worst]
        ]
        lines += _table(("lesson", "shown", "solved", "baseline"), rows)
    return "\n".join(lines)


def verdict_sentence(report: Report) -> str:
    """The verdict of the primary comparison, and what it means."""
    comparison = report.comparisons[report.primary]
    arm, baseline, difference = report.primary, report.baseline, points(comparison.difference)
    meaning = {
        "LEARNING": f"{arm} solves more than {baseline}: {difference} points.",
        "HARM": f"{arm} solves less than {baseline}: {difference} points.",
        "NULL": f"{arm} differs from {baseline} by less than 5 points: {difference}.",
        "UNRESOLVED": f"whether {arm} solves more than {baseline} is not known: {difference} points.",
    }
    return f"{comparison.verdict}: {meaning[comparison.verdict]}"


def design_sentence(report: Report) -> str:
    """What was compared."""
    return (
        f"{report.tasks} tasks x {report.orders} order{'s' * (report.orders != 1)}, {len(report.arms)} arms, seed"
        f" {report.seed}, tasks {report.digest}."
    )


def note_sentence(report: Report) -> str:
    """What the reader must know about the verdict: how much such an evaluation can show."""
    comparison = report.comparisons[report.primary]
    notes = ["Exploratory: fewer than 100 tasks or 8 orders."] if report.exploratory else []
    alone = all(report.arms[name].memory in ("none", "oracle") for name in (report.baseline, report.primary))
    if comparison.tasks < MIN_TASKS or (comparison.orders < MIN_ORDERS and not (alone and comparison.orders == 1)):
        notes.append(f"A verdict needs at least {MIN_TASKS} tasks and {MIN_ORDERS} orders.")
    elif gain := detectable(comparison.tasks, comparison.orders):
        notes.append(f"An evaluation of this size shows a gain of {100 * gain:.0f} points in about 80 % of cases.")
    return " ".join(notes)


def headroom_sentence(report: Report) -> str:
    """What right lessons gain, and what follows from it; empty if that was not asked."""
    gain = "" if report.gain_of_oracle is None else f"{points(report.gain_of_oracle)} points over no memory"
    return {
        None: "",
        "yes": f"Headroom: right lessons gain {gain}, so memory can help here.",
        "no": f"No headroom: right lessons gain {gain}, fewer than 15; without headroom no memory can help: choose"
        " another model or stream.",
        "unclear": f"Headroom unclear: right lessons gain {gain}, and 15 are needed: screen more tasks.",
    }[report.headroom]


def arm_cells(arm: ArmReport) -> list[str]:
    """Solved, steps, tokens, tokens a success, cost, tasks shown a lesson, the judge, and what broke."""
    judge = "-" if arm.judge_agreement is None else f"{share(arm.judge_agreement)} ({share(arm.judge_base_rate)})"
    return [
        "-" if arm.success is None else percent(arm.success),
        number(arm.steps, 1),
        number(arm.tokens),
        number(arm.tokens_per_success),
        "-" if arm.cost is None else f"${arm.cost:,.2f}",
        share(arm.shown),
        judge,
        number(arm.errors),
    ]


def clean(comparison: Comparison) -> str:
    """The difference over the pairs in which nothing broke; ``-`` if nothing broke."""
    broke = comparison.errors_before or comparison.errors_after
    return "-" if not broke else "no pair" if comparison.clean is None else points(comparison.clean)


def extremes(report: Report, most: int = MOST_LESSONS) -> tuple[list[LessonEffect], list[LessonEffect]]:
    """The lessons that went best and those that went worst, without overlap."""
    helped = [effect for effect in report.lessons if effect.difference > 0][:most]
    misled = [effect for effect in report.lessons if effect.difference < 0][-most:]
    return helped, misled


def points(interval: Interval) -> str:
    """A difference in points: ``+13.0 [+2.1, +24.3]``."""
    return f"{100 * interval.mean:+.1f} [{100 * interval.low:+.1f}, {100 * interval.high:+.1f}]"


def percent(interval: Interval) -> str:
    """A share: ``42 % [35, 49]``."""
    return f"{100 * interval.mean:.0f} % [{100 * interval.low:.0f}, {100 * interval.high:.0f}]"


def number(value: float | None, digits: int = 0) -> str:
    """A number with thousands separated; ``-`` for None."""
    return "-" if value is None else f"{value:,.{digits}f}"


def share(value: float | None) -> str:
    """A share in per cent; ``-`` for None."""
    return "-" if value is None else f"{100 * value:.0f} %"


def p_value(comparison: Comparison) -> str:
    """The p value; adjusted if the comparison is not the primary one."""
    value = comparison.p if comparison.p_holm is None else comparison.p_holm
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(row)} |" for row in (heads, ["---"] * len(heads), *rows)]


def _escape(text: str) -> str:
    """``text`` on one line, with nothing that Markdown or a terminal acts on."""
    return re.sub(r"([\\`*_\[\]<>|#~])", r"\\\1", " ".join(printable(text).split()))
