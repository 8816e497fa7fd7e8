"""A report as one HTML page: inline CSS and SVG, light and dark, no script, no other file."""

from __future__ import annotations

from string import Template
from typing import TYPE_CHECKING

from rb_dspy.evaluation.chart import SOLVED, Line, asset, chart, keys, known, positions, safe, style
from rb_dspy.evaluation.intervals import SMALLEST, Interval
from rb_dspy.evaluation.markdown import Section, sections, sentences, title, verdict_sentence

if TYPE_CHECKING:
    from rb_dspy.evaluation.report import Report


def page(report: Report) -> str:
    """The whole page. Everything from tasks, arms and lessons is escaped."""
    return Template(asset("page.html")).substitute(title=safe(title(report)), report=fragment(report))


def fragment(report: Report) -> str:
    """The page without its frame, as a notebook shows it."""
    verdict, _, meaning = verdict_sentence(report).partition(": ")
    design, origin, *headroom = (safe(sentence) for sentence in sentences(report))
    parts = [
        f"<style>{style()}{asset('page.css')}</style>",
        f"<h1>{safe(title(report))}</h1>",
        f'<div class="verdict {verdict}"><p><b>{verdict}</b>: {safe(meaning)}</p><p class="dim">{design}</p>'
        f'<p class="dim">{origin}</p></div>',
        *(f"<p>{each}</p>" for each in headroom),
        f"<h2>Solved along the stream</h2>{_curves(report)}",
        *map(_section, sections(report)),
    ]
    return f'<div class="rb">{"".join(parts)}</div>'


def _section(section: Section) -> str:
    differences = [cell for row in section.rows for cell in row.values() if isinstance(cell, Interval)]
    reach = max([0.1, *(abs(end) for each in differences for end in (each.low, each.high))])
    head = "".join(f"<th>{safe(each)}</th>" for each in section.rows[0])
    rows = [
        "".join(f"<td>{_bar(each, reach) if isinstance(each, Interval) else safe(each)}</td>" for each in row.values())
        for row in section.rows
    ]
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    band = " Gray band: within 5 points." if differences else ""
    return (
        f'<h2>{safe(section.title)}</h2><div class="wide"><table><thead><tr>{head}</tr></thead>'
        f'<tbody>{body}</tbody></table></div><p class="dim">{safe(section.note)}{band}</p>'
    )


def _bar(interval: Interval, reach: float) -> str:
    """An interval in points, drawn and in digits."""

    def x(value: float) -> str:
        return f"{120 + 114 * max(-1.0, min(1.0, value / reach)):.1f}"

    low, mean, high = (x(getattr(interval, name)) for name in ("low", "mean", "high"))
    left, right = x(-SMALLEST), x(SMALLEST)
    return (
        f'<svg viewBox="0 0 240 22" role="img" aria-label="{interval:+}">'
        f'<rect class="band" x="{left}" y="1" width="{float(right) - float(left):.1f}" height="20"/>'
        f'<line class="zero" x1="120" y1="0" x2="120" y2="22"/>'
        f'<line class="bar" x1="{low}" y1="11" x2="{high}" y2="11"/>'
        f'<line class="bar" x1="{low}" y1="6" x2="{low}" y2="16"/>'
        f'<line class="bar" x1="{high}" y1="6" x2="{high}" y2="16"/>'
        f'<circle class="dot" cx="{mean}" cy="11" r="4"/></svg>{interval:+}'
    )


def _curves(report: Report) -> str:
    """The share of solved tasks by position: a line for each arm."""
    length = max((len(arm.curve) for arm in report.arms.values()), default=0)
    if length < 2:
        return '<p class="dim">A stream of one task has no curve.</p>'
    lines = [Line(name, known(arm.curve)) for name, arm in report.arms.items()]
    shown = chart(lines, positions(length, "position in the stream"), SOLVED, main=report.primary)
    return (
        f'<div class="keys">{keys(lines, report.primary)}</div>{shown}'
        '<p class="dim">Mean over all orders and a fifth of the stream.</p>'
    )
