"""A report as one HTML page: inline CSS and SVG, light and dark, no script, no other file."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING

from rb_dspy.evaluation.intervals import SMALLEST, Comparison
from rb_dspy.evaluation.markdown import (
    arm_cells,
    clean,
    design_sentence,
    extremes,
    headroom_sentence,
    note_sentence,
    number,
    p_value,
    points,
    share,
    verdict_sentence,
)
from rb_dspy.text import printable

if TYPE_CHECKING:
    from rb_dspy.evaluation.report import LessonEffect, Report

_COLORS = (
    ("#6b7280", "#9aa4b2"),
    ("#2563eb", "#6ea8fe"),
    ("#d97706", "#f4b04f"),
    ("#059669", "#4ecb9a"),
    ("#9333ea", "#c79bf5"),
    ("#dc2626", "#fb8a8a"),
    ("#0891b2", "#5ed0e6"),
    ("#be185d", "#f58bbd"),
)
"""Of the arms, in order, for light and for dark pages."""

_DASHES = ("", "7 4", "2 3", "9 3 2 3")
"""Of the arms beyond so many colors, and to tell arms apart without color."""

_STYLE = """
.rb { --ink: #1c2330; --dim: #5b6472; --line: #d9dee6; --soft: #f3f5f8; --page: #ffffff;
 --good: #047857; --bad: #b91c1c; --open: #92600a; color: var(--ink); background: var(--page);
 font: 15px/1.5 system-ui, -apple-system, "Segoe UI", sans-serif; max-width: 66rem; padding: 0 1.25rem 2rem }
.rb h1 { font-size: 1.35rem; margin: 1.5rem 0 .75rem } .rb h2 { font-size: 1.05rem; margin: 2rem 0 .5rem }
.rb p { margin: .4rem 0 } .rb .dim { color: var(--dim) }
.rb .verdict { border-left: 5px solid var(--open); background: var(--soft); padding: .8rem 1rem; border-radius: 4px }
.rb .verdict b { color: var(--open) } .rb .verdict.LEARNING { border-color: var(--good) }
.rb .verdict.LEARNING b { color: var(--good) } .rb .verdict.HARM { border-color: var(--bad) }
.rb .verdict.HARM b { color: var(--bad) } .rb .verdict.NULL { border-color: var(--dim) }
.rb .verdict.NULL b { color: var(--dim) }
.rb .wide { overflow-x: auto }
.rb table { border-collapse: collapse; width: 100%; font-size: .92rem; font-variant-numeric: tabular-nums }
.rb th, .rb td { padding: .35rem .5rem; border-bottom: 1px solid var(--line); text-align: right; white-space: nowrap;
 background: none; color: inherit }
.rb th { color: var(--dim); font-weight: 600; white-space: normal;
 vertical-align: bottom } .rb th:first-child, .rb td:first-child { text-align: left }
.rb td.text { white-space: normal; text-align: left; overflow-wrap: anywhere; min-width: 12rem }
.rb svg { display: block; width: 100%; height: auto } .rb td svg { width: 10rem }
.rb svg text { fill: var(--dim); font-size: 12px } .rb .grid { stroke: var(--line) } .rb .zero { stroke: var(--dim) }
.rb .band { fill: var(--line); opacity: .55 } .rb .bar { stroke: var(--ink); stroke-width: 2 }
.rb .dot { fill: var(--ink) } .rb .curve { fill: none; stroke-width: 2.2; stroke-linejoin: round }
.rb .keys { display: flex; flex-wrap: wrap; gap: .2rem 1.2rem; margin: .3rem 0; font-size: .92rem }
.rb .keys svg { display: inline-block; width: 1.9rem; vertical-align: middle; margin-right: .4rem }
"""
_DARK = """ .rb { --ink: #e6e9ef; --dim: #9aa4b2; --line: #343b47; --soft: #1f242d; --page: #15181e; --good: #4ecb9a;
 --bad: #fb8a8a; --open: #f4b04f }"""


def page(report: Report) -> str:
    """The whole page. Everything from tasks, arms and lessons is escaped."""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>Evaluation of {_text(report.stream)}</title>\n"
        "<style>body { margin: 0; background: #ffffff } .rb { margin: 0 auto }\n"
        "@media (prefers-color-scheme: dark) { body { background: #15181e } }</style>\n"
        f"</head>\n<body>\n{fragment(report)}\n</body>\n</html>"
    )


def fragment(report: Report) -> str:
    """What a notebook shows: the page without its frame."""
    verdict, _, meaning = verdict_sentence(report).partition(": ")
    comparisons = report.comparisons
    parts = [
        f"<style>{_STYLE}{_color_style()}</style>",
        f"<h1>Evaluation of {_text(report.stream)}</h1>",
        f'<div class="verdict {verdict}"><p><b>{verdict}</b>: {_text(meaning)}</p>'
        f'<p class="dim">{_text(note_sentence(report))}</p></div>',
        f'<p class="dim">{_text(design_sentence(report))}</p>',
        f"<p>{_text(headroom_sentence(report))}</p>" if report.headroom else "",
        f"<h2>Solved along the stream</h2>{_curves(report)}",
        f"<h2>Arms</h2>{_arms(report)}",
        f"<h2>Differences to {_text(report.baseline)}, in points, with 95 % intervals</h2>",
        _comparisons(comparisons, report.primary),
    ]
    helped, misled = extremes(report, 10)
    if helped or misled:
        parts.append(
            f'<h2>Lessons shown by {_text(report.primary)}</h2><p class="dim">Tasks that were shown a lesson, against'
            f" {_text(report.baseline)} on the same tasks. An association: lessons are shown to tasks that resemble"
            " where they come from, and together with others.</p>"
        )
        parts += [_lessons(title, each) for title, each in (("Helped", helped), ("Misled", misled)) if each]
    return f'<div class="rb">{"".join(filter(None, parts))}</div>'


def _arms(report: Report) -> str:
    heads = ("arm", "solved", "steps", "tokens", "tokens/success", "cost", "shown", "judge right", "errors", "learned")
    rows = []
    for name, arm in report.arms.items():
        notes = " (baseline)" * (name == report.baseline) + " (one order counts for all)" * arm.repeated
        rows.append([f'{_text(name)}<span class="dim">{notes}</span>', *arm_cells(arm), number(arm.learned)])
    return (
        f'{_table(heads, rows)}<p class="dim">shown: tasks with a lesson; judge right: by ground truth, in brackets if'
        " it always said the same; errors: twice, count as failures; learned: lessons, over all orders.</p>"
    )


def _comparisons(comparisons: dict[str, Comparison], primary: str) -> str:
    reach = max(0.1, *(max(abs(each.difference.low), abs(each.difference.high)) for each in comparisons.values()))
    broke = any(each.errors_before or each.errors_after for each in comparisons.values())
    heads = ["arm", "verdict", "", "difference", "p", "bootstrap", *["without errors"] * broke]
    rows = [
        [
            f'{_text(name)}<span class="dim">{" (primary)" * (name == primary)}</span>',
            each.verdict,
            _interval_bar(each, reach),
            points(each.difference),
            escape(p_value(each)),
            "-" if each.bootstrap is None else points(each.bootstrap).partition(" ")[2],
            *[clean(each)] * broke,
        ]
        for name, each in comparisons.items()
    ]
    note = "p: adjusted for the number of comparisons (Holm), except the primary one; gray band: within 5 points."
    return f'{_table(heads, rows)}<p class="dim">{note}</p>'


def _interval_bar(comparison: Comparison, reach: float) -> str:
    def x(value: float) -> str:
        return f"{120 + 114 * max(-1.0, min(1.0, value / reach)):.1f}"

    low, mean, high = (x(getattr(comparison.difference, name)) for name in ("low", "mean", "high"))
    left, right = x(-SMALLEST), x(SMALLEST)
    return (
        f'<svg viewBox="0 0 240 22" role="img" aria-label="{points(comparison.difference)}">'
        f'<rect class="band" x="{left}" y="1" width="{float(right) - float(left):.1f}" height="20"/>'
        f'<line class="zero" x1="120" y1="0" x2="120" y2="22"/>'
        f'<line class="bar" x1="{low}" y1="11" x2="{high}" y2="11"/>'
        f'<line class="bar" x1="{low}" y1="6" x2="{low}" y2="16"/>'
        f'<line class="bar" x1="{high}" y1="6" x2="{high}" y2="16"/>'
        f'<circle class="dot" cx="{mean}" cy="11" r="4"/></svg>'
    )


def _curves(report: Report) -> str:
    """The share of solved tasks by position: a line for each arm."""
    width, height, left, top, bottom = 720, 270, 46, 10, 30
    length = max((len(arm.curve) for arm in report.arms.values()), default=0)
    if length < 2:
        return '<p class="dim">A stream of one task has no curve.</p>'

    def x(position: int) -> float:
        return left + (width - left - 16) * position / (length - 1)

    def y(part: float) -> float:
        return top + (height - top - bottom) * (1 - part)

    parts = []
    for part in (0.0, 0.25, 0.5, 0.75, 1.0):
        parts.append(f'<line class="grid" x1="{left}" y1="{y(part):.1f}" x2="{width - 16}" y2="{y(part):.1f}"/>')
        parts.append(f'<text x="{left - 8}" y="{y(part) + 4:.1f}" text-anchor="end">{100 * part:.0f} %</text>')
    ticks = sorted({0, *(round((length - 1) * quarter / 4) for quarter in (1, 2, 3)), length - 1})
    parts += [f'<text x="{x(each):.1f}" y="{height - 8}" text-anchor="middle">{each + 1}</text>' for each in ticks]
    keys = []
    for number_, (name, arm) in enumerate(report.arms.items()):
        style = f'class="curve a{number_ % len(_COLORS)}" stroke-dasharray="{_DASHES[number_ % len(_DASHES)]}"'
        line = [f"{x(at):.1f},{y(part):.1f}" for at, part in enumerate(arm.curve) if part is not None]
        parts.append(f'<polyline {style} points="{" ".join(line)}"><title>{_text(name)}</title></polyline>')
        key = f'<svg viewBox="0 0 30 10"><line {style} x1="0" y1="5" x2="30" y2="5"/></svg>'
        keys.append(f"<span>{key}{_text(name)}</span>")
    return (
        f'<div class="keys">{"".join(keys)}</div><svg viewBox="0 0 {width} {height}" role="img"'
        f' aria-label="share of solved tasks by position in the stream">{"".join(parts)}</svg>'
        '<p class="dim">Position in the stream; mean over all orders and a fifth of the stream.</p>'
    )


def _lessons(title: str, effects: Sequence[LessonEffect]) -> str:
    rows = [
        [
            f'<td class="text">{_text(each.title)}</td>',
            str(each.times),
            share(each.success),
            share(each.baseline),
            f"{100 * each.difference:+.0f}",
        ]
        for each in effects
    ]
    return _table((title, "shown", "solved", "baseline", "points"), rows)


def _table(heads: Iterable[str], rows: Iterable[Sequence[str]]) -> str:
    def cell(content: str) -> str:
        return content if content.startswith("<td") else f"<td>{content}</td>"

    head = "".join(f"<th>{each}</th>" for each in heads)
    body = "".join(f"<tr>{''.join(map(cell, row))}</tr>" for row in rows)
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _color_style() -> str:
    light, dark = (
        "".join(f" .rb .a{number_} {{ stroke: {pair[place]} }}" for number_, pair in enumerate(_COLORS))
        for place in (0, 1)
    )
    return f"{light}\n@media (prefers-color-scheme: dark) {{{_DARK}{dark} }}"


def _text(text: str) -> str:
    """``text`` as content of the page, with nothing that a browser acts on."""
    return escape(" ".join(printable(text).split()))
