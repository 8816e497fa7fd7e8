"""A report as sentences and tables, which the HTML page shares, and as Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rb_dspy.evaluation.intervals import FEWEST, MIN_ORDERS, MIN_TASKS, Comparison, Interval, detectable
from rb_dspy.text import counted, middle_cut, printable

if TYPE_CHECKING:
    from rb_dspy.evaluation.report import Report

MOST_LESSONS = 5
"""Maximum number of lessons that helped, and of lessons that misled."""

CONTENT = 120
"""Maximum number of characters that are shown of a lesson's content."""

Row = Mapping[str, str | Interval]
"""Column -> cell. An ``Interval`` is a difference; the page draws it as a bar."""


@dataclass(frozen=True)
class Section:
    """A table with its title and a note."""

    title: str
    rows: Sequence[Row]
    note: str


def markdown(report: Report) -> str:
    """A report for a terminal or a pull request. Names and titles are escaped."""
    lines = [f"# {_escape(title(report))}", "", f"**{_escape(verdict_sentence(report))}**", ""]
    lines += [_escape(sentence) for sentence in sentences(report)]
    for section in sections(report):
        heads = list(section.rows[0])
        cells = [[_cell(row[head]) for head in heads] for row in section.rows]
        table = [f"| {' | '.join(row)} |" for row in (heads, ["---"] * len(heads), *cells)]
        lines += ["", f"## {_escape(section.title)}", "", *table, "", _escape(section.note)]
    return "\n".join(lines)


def title(report: Report) -> str:
    """The title of a report."""
    return f"Evaluation of {report.stream}"


def origin(report: Report) -> str:
    """Which models, versions and command the report is from, and when."""
    models: dict[str, list[str]] = {}
    for name, arm in report.arms.items():
        each = sorted(set(arm.models.values()))
        roles = ", ".join(f"{role} {model}" for role, model in arm.models.items())
        models.setdefault(each[0] if len(each) == 1 else roles or "unknown", []).append(name)
    used = "; ".join(model if len(models) == 1 else f"{', '.join(arms)}: {model}" for model, arms in models.items())
    made = [f"Model {used}", ", ".join(f"{name} {version}" for name, version in report.versions.items()), report.date]
    return "; ".join(filter(None, [*made, report.command])) + "."


def verdict_sentence(report: Report) -> str:
    """The verdict of the primary comparison, and what it means."""
    comparison = report.comparisons[report.primary]
    arm, baseline, difference = report.primary, report.baseline, f"{comparison.difference:+}"
    meaning = {
        "LEARNING": f"{arm} solves more than {baseline}: {difference} points.",
        "HARM": f"{arm} solves less than {baseline}: {difference} points.",
        "NULL": f"{arm} differs from {baseline} by less than 5 points: {difference}.",
        "UNRESOLVED": f"whether {arm} solves more than {baseline} is not known: {difference} points.",
    }
    if comparison.refused:
        return f"{comparison.verdict}: {comparison.refused}. The difference is {difference} points."
    return f"{comparison.verdict}: {meaning[comparison.verdict]}"


def sentences(report: Report) -> list[str]:
    """What was compared and which gain this can show; where it is from; the gain of oracle lessons; warnings."""
    comparison = report.comparisons[report.primary]
    design = (
        f"{counted(report.tasks, 'task')} x {counted(report.orders, 'order')}, {counted(len(report.arms), 'arm')},"
        f" seed {report.seed}, tasks {report.digest}."
    )
    design += " Exploratory: fewer than 100 tasks or 8 orders." if report.exploratory else ""
    own = [f"{name} is the program's own memory, {arm.own}" for name, arm in report.arms.items() if arm.own]
    design += f" {'; '.join(own)}." if own else ""
    if report.taught_nothing:
        design += f" {report.primary} learned no lesson, so this says nothing about memory."
    if report.too_small:
        design += f" A verdict needs {FEWEST}."
    elif gain := detectable(comparison.tasks, comparison.orders):
        design += f" An evaluation of this size shows a gain of {100 * gain:.0f} points in about 80 % of cases."
    broke = {name: arm.errors for name, arm in report.arms.items() if arm.errors}
    if broke:
        counts = ", ".join(f"{counted(count, 'task')} of {name}" for name, count in broke.items())
        design = f"Broke and count as not solved: {counts}. {design}"
    unknown = sum(arm.unknown for arm in report.arms.values())
    if unknown:
        design += f" {counted(unknown, 'run')} had an unknown outcome; their pairs are left out."
    if report.headroom is None or report.gain_of_oracle is None:
        return [design, origin(report), *report.warnings]
    gained = f"right lessons gain {report.gain_of_oracle:+} points over no memory"
    headroom = {
        "yes": f"Headroom: {gained}, so memory can help here.",
        "no": f"No headroom: {gained}, fewer than 15; without headroom no memory can help: choose another model or"
        " stream.",
        "unclear": f"Headroom unclear: {gained}, and 15 are needed: screen more tasks.",
    }
    return [design, origin(report), headroom[report.headroom], *report.warnings]


def sections(report: Report) -> Iterator[Section]:
    """The tables, each for 80 columns: arms, cost, differences to the baseline, lessons that were often shown."""
    arms, memories, costs = list[Row](), list[Row](), list[Row]()
    for name, arm in report.arms.items():
        base = "" if arm.judge_base_rate is None else f" ({_share(arm.judge_base_rate)})"
        arms.append(
            {
                "arm": name,
                "solved": "-" if arm.success is None else _percent(arm.success),
                "steps": _number(arm.steps, 1),
                "shown": _share(arm.shown),
                "judge right": f"{_share(arm.judge_agreement)}{base}",
                "errors": _number(arm.errors),
                "learned": _number(arm.learned),
            }
        )
        memories.append(
            {
                "arm": name,
                "signal": arm.signal or "-",
                "own task": ("shown" if arm.repeats_tasks else "left out") if arm.learns else "-",
                "tokens shown": _number(arm.tokens_shown),
                "beyond": _number(arm.tokens_beyond),
                "calls": _number(arm.calls, 1),
            }
        )
        costs.append(
            {
                "arm": name,
                "tokens/task": _number(arm.tokens / arm.runs if arm.runs else None),
                "tokens/success": _number(arm.tokens_per_success),
                "cost/task": "-" if arm.cost is None or not arm.runs else f"${arm.cost / arm.runs:.4f}",
            }
        )
    repeated = ", ".join(name for name, arm in report.arms.items() if arm.repeated)
    yield Section(
        "Arms",
        arms,
        f"Baseline: {report.baseline}; {f'one order of {repeated} counts for all; ' if repeated else ''}"
        "shown: tasks with a lesson; judge right: by ground truth; in brackets: a judge that always says the same;"
        " errors: tasks that broke twice, which count as failures; learned: lessons, over all orders.",
    )
    yield Section(
        "Memory",
        memories,
        "Signal: what an arm learns from; own task: what was learned from the same task. The rest is a task's: tokens"
        " (estimated) that memory puts into the agent's prompt, those beyond the cap, which is equal for all arms, and"
        " language model calls of all roles.",
    )
    yield Section("Cost", costs, "Of all roles; prompt tokens from a provider's cache count in full.")
    differences: list[Row] = [
        {
            "arm": name + " (primary)" * (name == report.primary),
            "verdict": _verdict(each),
            "difference": each.difference,
            "p": _p_value(each),
            "without errors": _clean(each),
        }
        for name, each in report.comparisons.items()
    ]
    yield Section(
        f"Differences to {report.baseline}, in points, with 95 % intervals",
        differences,
        "p: adjusted for the number of comparisons (Holm), except the primary one. Intervals are not adjusted.",
    )
    helped = [effect for effect in report.lessons if effect.difference > 0][:MOST_LESSONS]
    misled = [effect for effect in report.lessons if effect.difference < 0][-MOST_LESSONS:]
    lessons: list[Row] = [
        {
            "lesson": each.title + (f": {middle_cut(' '.join(each.content.split()), CONTENT)}" if each.content else ""),
            "shown": str(each.times),
            "solved": _share(each.success),
            "baseline": _share(each.baseline),
            "points": f"{100 * each.difference:+.0f}",
        }
        for each in [*helped, *misled]
    ]
    if lessons:
        yield Section(
            f"Lessons shown by {report.primary}",
            lessons,
            f"Tasks that were shown a lesson, against {report.baseline} on the same tasks. An association: lessons are"
            " shown to tasks that resemble their source, and together with other lessons.",
        )


def _percent(interval: Interval) -> str:
    return f"{100 * interval.mean:.0f} % [{100 * interval.low:.0f}, {100 * interval.high:.0f}]"


def _number(value: float | None, digits: int = 0) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.0f} %"


def _verdict(comparison: Comparison) -> str:
    """The verdict; if it is UNRESOLVED although the interval excludes 0, with the reason."""
    if comparison.refused:
        return "UNRESOLVED: unequal signals"
    apart = comparison.difference.low > 0 or comparison.difference.high < 0
    if comparison.verdict != "UNRESOLVED" or not apart:
        return comparison.verdict
    if comparison.tasks < MIN_TASKS or comparison.orders < MIN_ORDERS:
        return "UNRESOLVED: too few tasks or orders"
    adjusted = comparison.p_holm is not None and comparison.p_holm >= 0.05
    return f"UNRESOLVED: {'adjusted p is 0.05 or more' if adjusted else 'not without the errors'}"


def _p_value(comparison: Comparison) -> str:
    value = comparison.p if comparison.p_holm is None else comparison.p_holm
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


def _clean(comparison: Comparison) -> str:
    """The difference over the pairs in which nothing broke; ``-`` if nothing broke."""
    broke = comparison.errors_before or comparison.errors_after
    return "-" if not broke else "no pair" if comparison.clean is None else f"{comparison.clean:+}"


def _cell(value: str | Interval) -> str:
    return f"{value:+}" if isinstance(value, Interval) else _escape(value)


def _escape(text: str) -> str:
    """``text`` on one line, escaped for Markdown and terminals; brackets alone make no link."""
    return re.sub(r"([\\`*_<>|#~]|\](?=\())", r"\\\1", " ".join(printable(text).split()))
