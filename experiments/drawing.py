"""Draw lines as two SVG files: one for light pages, one with ``-dark`` in its name for dark pages."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

COLORS = {"": ("#1f2328", "#d0d7de", "#0969da", "#6e7781"), "-dark": ("#e6edf3", "#30363d", "#4493f8", "#9198a1")}
"""Suffix of the file -> colors of text, grid, the first line, the others."""
STYLES = ("-", "--", "-.", ":")


@dataclass(frozen=True)
class Line:
    """A line, labeled with its name at the right end; lines that end on one point share a label."""

    name: str
    points: Sequence[tuple[float, float]]


def draw_lines(
    path: Path, lines: Sequence[Line], *, x: str, y: str, log: bool = False, limits: tuple[float, float] | None = None
) -> None:
    """Draw ``lines``, the first in color, to ``path`` and its dark twin.

    Args:
        path: An .svg file.
        lines: At most four; those without points are skipped.
        x: Label of the x axis.
        y: Label of the y axis.
        log: Whether both axes are logarithmic.
        limits: Limits of the y axis.
    """
    import matplotlib as mpl

    mpl.use("svg")
    import matplotlib.pyplot as plt

    lines = [line for line in lines if line.points]
    for suffix, (text, grid, first, other) in COLORS.items():
        look: dict[str, Any] = {"svg.fonttype": "path", "svg.hashsalt": "rb_dspy", "font.size": 11}
        look |= dict.fromkeys(("text.color", "axes.labelcolor", "xtick.color", "ytick.color"), text)
        with mpl.rc_context(look | dict.fromkeys(("axes.edgecolor", "grid.color"), grid)):
            figure, axes = plt.subplots(figsize=(7.2, 4))
            for number, (line, style) in enumerate(zip(lines, STYLES, strict=False)):
                main = number == 0
                color, width = (first, 2.4) if main else (other, 1.4)
                axes.plot(
                    *zip(*line.points, strict=True), style, color=color, linewidth=width, marker="o", markersize=3.5
                )
            for end, names in itertools.groupby(sorted(lines, key=_end), key=_end):
                label = ", ".join(line.name for line in names)
                main = label == lines[0].name
                axes.annotate(
                    label,
                    end,
                    color=first if main else text,
                    fontweight="bold" if main else "normal",
                    xytext=(8, 0),
                    textcoords="offset points",
                    va="center",
                    fontsize=9.5,
                )
            if log:
                axes.set(xscale="log", yscale="log")
            ticks = sorted({point[0] for line in lines for point in line.points})
            axes.set(xlabel=x, ylabel=y, **({"ylim": limits} if limits else {}))
            axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
            axes.minorticks_off()
            axes.grid(axis="y", linewidth=0.6)
            axes.spines[["top", "right"]].set_visible(False)
            figure.tight_layout()
            figure.subplots_adjust(right=0.76)
            figure.savefig(path.with_stem(path.stem + suffix), transparent=True, metadata={"Date": None})
            plt.close(figure)


def _end(line: Line) -> tuple[float, float]:
    return line.points[-1]
