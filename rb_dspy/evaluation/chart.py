"""Lines as SVG: on the page of a report, and as a picture of its own for light or dark pages."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from importlib import resources
from typing import Literal

from rb_dspy.text import printable

Scheme = Literal["light", "dark", "both"]

_COLORS = 8
"""Number of colors of the lines, in order, in ``light.css`` and ``dark.css``."""
_DASHES = ("7 4", "2 3", "9 3 2 3", "4 2")
"""Dashes of the lines other than the main one, to tell them apart without color, or if there are more than colors."""
_DODGE = 5
"""Distance between the intervals of two lines at the same x, so that none hides another."""


@dataclass(frozen=True)
class Line:
    """A line and its name. ``intervals`` has low and high of each point, if they are to be drawn."""

    name: str
    points: Sequence[tuple[float, float]]
    intervals: Sequence[tuple[float, float]] = ()


@dataclass(frozen=True)
class Axis:
    """An axis from ``low`` to ``high``; ``ticks`` are values with their labels."""

    title: str
    low: float
    high: float
    ticks: Sequence[tuple[float, str]]
    log: bool = False

    def part(self, value: float) -> float:
        """Where ``value`` lies, from 0 to 1."""
        low, high, at = (math.log(each) if self.log else each for each in (self.low, self.high, value))
        return (at - low) / (high - low)


SOLVED = Axis("solved", 0, 1, [(quarter / 4, f"{25 * quarter} %") for quarter in range(5)])


def positions(length: int, title: str) -> Axis:
    """The positions in a stream of ``length`` tasks, from 1, with at most eight ticks at even distances."""
    steps = (step * 10**power for power in range(9) for step in (1, 2, 4, 5, 8))
    every = next(step for step in steps if length / step <= 8)
    return Axis(title, 1, length, [(tick, f"{tick:,}") for tick in range(every, length + 1, every)])


def known(curve: Sequence[float | None]) -> list[tuple[float, float]]:
    """The points of a curve by position, from 1; None leaves one out."""
    return [(position, part) for position, part in enumerate(curve, 1) if part is not None]


def chart(lines: Sequence[Line], x: Axis, y: Axis, *, main: str, names: int = 0) -> str:
    """The lines with their axes. The line ``main`` is solid, strong and in front.

    Args:
        lines: A line without points is skipped.
        x: The horizontal axis.
        y: The vertical axis.
        main: Name of the main line.
        names: Room for names at the ends of the lines, in pixels; 0: none.
    """
    width, height, left, top, bottom = 720, 300, 64, 28, 48
    right = width - (names or 16)

    def at(point: tuple[float, float]) -> tuple[float, float]:
        return left + (right - left) * x.part(point[0]), top + (height - top - bottom) * (1 - y.part(point[1]))

    parts = [_text(y.title, 8, 12), _text(x.title, (left + right) / 2, height - 6, "middle")]
    for value, label in y.ticks:
        _, level = at((x.low, value))
        parts.append(f'<line class="grid" x1="{left}" y1="{level:.1f}" x2="{right}" y2="{level:.1f}"/>')
        parts.append(_text(label, left - 8, level + 4, "end"))
    parts += [_text(label, at((value, y.low))[0], height - bottom + 18, "middle") for value, label in x.ticks]
    ends: list[tuple[float, float, int, Line]] = []
    for number, line in sorted(enumerate(lines), key=lambda each: each[1].name == main):
        if not line.points:
            continue
        shift = (number - (len(lines) - 1) / 2) * _DODGE * bool(line.intervals)
        drawn = [(across + shift, down) for across, down in map(at, line.points)]
        for (across, _), (low, high) in zip(drawn, line.intervals, strict=False):
            end, start = at((x.low, low))[1], at((x.low, high))[1]
            parts.append(
                f'<line class="reach a{number % _COLORS}" x1="{across:.1f}" y1="{start:.1f}" x2="{across:.1f}"'
                f' y2="{end:.1f}"/>'
            )
        path = " ".join(f"{across:.1f},{down:.1f}" for across, down in drawn)
        parts.append(
            f'<polyline {_look(number, line, main)} points="{path}"><title>{safe(line.name)}</title></polyline>'
        )
        radius = 4 if line.name == main else 2.6
        parts += [
            f'<circle class="fill a{number % _COLORS}" cx="{across:.1f}" cy="{down:.1f}" r="{radius}"/>'
            for across, down in (drawn if line.intervals or len(drawn) == 1 else ())
        ]
        ends.append((drawn[-1][1], drawn[-1][0], number, line))
    if names:
        parts += _end_names(ends, main)
    about = f"{y.title} by {x.title}: {', '.join(line.name for line in lines)}"
    return f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{safe(about)}">{"".join(parts)}</svg>'


def picture(lines: Sequence[Line], x: Axis, y: Axis, *, main: str, names: int = 0, scheme: Scheme = "both") -> str:
    """``chart`` as an SVG file for light pages, dark pages, or both, by the reader's setting."""
    svg = chart(lines, x, y, main=main, names=names)
    head = '<svg xmlns="http://www.w3.org/2000/svg" class="rb"'
    return (
        f"{head}{svg.removeprefix('<svg').replace('>', f'><style>{style(scheme)}</style>', 1)}".replace("><", ">\n<")
        + "\n"
    )


def keys(lines: Sequence[Line], main: str) -> str:
    """The names of the lines, each with a piece of its line, as HTML."""
    return "".join(
        f'<span><svg viewBox="0 0 30 10"><line {_look(number, line, main)} x1="0" y1="5" x2="30" y2="5"/></svg>'
        f"{safe(line.name)}</span>"
        for number, line in enumerate(lines)
    )


def style(scheme: Scheme = "both") -> str:
    """The CSS of charts inside an element, or an SVG, of the class ``rb``."""
    chart, light, dark = (asset(f"{name}.css") for name in ("chart", "light", "dark"))
    both = f"{light}@media (prefers-color-scheme: dark) {{ {dark} }}"
    return chart + {"light": light, "dark": dark, "both": both}[scheme]


def asset(name: str) -> str:
    """The text of a file of this package."""
    return resources.files(__package__).joinpath(name).read_text("utf-8")


def _look(number: int, line: Line, main: str) -> str:
    color, dash = f"a{number % _COLORS}", _DASHES[number % len(_DASHES)]
    return f'class="curve main {color}"' if line.name == main else f'class="curve {color}" stroke-dasharray="{dash}"'


def _end_names(ends: Sequence[tuple[float, float, int, Line]], main: str) -> Iterator[str]:
    """Yield the names at the ends of the lines, moved apart where they would overlap."""
    level = -math.inf
    for down, _, number, line in sorted(ends, key=lambda each: each[:3]):
        level = max(down, level + 15)
        look = f'class="n{number % _COLORS}"' + ' style="font-weight: 700"' * (line.name == main)
        across = max(each[1] for each in ends) + 10
        yield f'<text {look} x="{across:.1f}" y="{level + 4:.1f}">{safe(line.name)}</text>'


def _text(text: str, x: float, y: float, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{safe(text)}</text>' if text else ""


def safe(text: str) -> str:
    """``text`` on one line, escaped for HTML and SVG."""
    return escape(" ".join(printable(text).split()))
