"""CPU a query by size of the bank, ours, bare FAISS and the peers, as ``bench.py query --plot`` measured it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import matplotlib as mpl

mpl.use("svg")
import matplotlib.pyplot as plt

SCHEMES = {"light": ("#1f2328", "#d0d7de", "#0969da", "#6e7781"), "dark": ("#e6edf3", "#30363d", "#4493f8", "#9198a1")}
"""Colours of text, grid, ours, and others."""

_STYLES = ("--", "-.", ":", (0, (3, 1, 1, 1, 1, 1)), (0, (5, 1)))


class Point(NamedTuple):
    """CPU of a median query."""

    name: str
    items: int
    milliseconds: float


def draw(points: Sequence[Point], ours: Sequence[str], path: Path) -> None:
    """Write ``path``, an SVG for a light page, and one with ``-dark`` in its name."""
    for scheme, (text, grid, blue, grey) in SCHEMES.items():
        look = {
            "svg.fonttype": "path",
            "svg.hashsalt": "rb_dspy",
            "text.color": text,
            "axes.labelcolor": text,
            "xtick.color": text,
            "ytick.color": text,
            "axes.edgecolor": grid,
            "grid.color": grid,
            "font.size": 11,
        }
        with mpl.rc_context(look):
            figure, axes = plt.subplots(figsize=(7.2, 4))
            others = 0
            for name in dict.fromkeys(point.name for point in points):
                line = sorted((point.items, point.milliseconds) for point in points if point.name == name)
                mine = name in ours
                style = "-" if mine else _STYLES[others % len(_STYLES)]
                others += not mine
                sizes, values = zip(*line, strict=True)
                axes.plot(
                    sizes, values, linestyle=style, color=blue if mine else grey, linewidth=2.4 if mine else 1.4,
                    marker="o", markersize=3.5,
                )  # fmt: skip
                axes.annotate(
                    name, line[-1], xytext=(8, 0), textcoords="offset points", va="center",
                    color=blue if mine else text, fontsize=9.5, fontweight="bold" if mine else "normal",
                )  # fmt: skip
            axes.set(xscale="log", yscale="log", xlabel="lessons in the bank", ylabel="CPU ms a query")
            axes.set_xticks(sorted({point.items for point in points}))
            axes.set_xticklabels([f"{items:,}" for items in sorted({point.items for point in points})])
            axes.minorticks_off()
            axes.grid(axis="y", linewidth=0.6)
            axes.spines[["top", "right"]].set_visible(False)
            figure.tight_layout()
            figure.subplots_adjust(right=0.76)
            place = path if scheme == "light" else path.with_name(f"{path.stem}-dark{path.suffix}")
            figure.savefig(place, transparent=True, metadata={"Date": None})
            plt.close(figure)
