"""Learning curves, drawn without a background, so that they can be read on a light page and on a dark one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

_TEXT = "#707880"
_COLOURS = ("#3b82e0", "#2f9e63", "#d65a4a", "#b07cc6", "#d99a2b", "#4fb3bf", "#8a8f98", "#c2577f")


def learning_curve(curves: Mapping[str, Sequence[float | None]], label: str) -> Any:
    """Shares of solved tasks by position in the stream, for each name in ``curves``; None leaves a gap."""
    figure = Figure(figsize=(7, 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for number, (name, curve) in enumerate(curves.items()):
        rates = [float("nan") if rate is None else rate for rate in curve]
        marker = "o" if len(rates) == 1 else ""
        title = name.replace("$", r"\$")  # matplotlib reads text between dollar signs as a formula
        axes.plot(
            range(1, len(rates) + 1), rates, color=_COLOURS[number % len(_COLOURS)], linewidth=2, marker=marker,
            label=title,
        )  # fmt: skip
    axes.set(xlabel="tasks with a known outcome", ylabel=label, ylim=(-0.03, 1.03))
    axes.set_yticks([0, 0.25, 0.5, 0.75, 1], ["0 %", "25 %", "50 %", "75 %", "100 %"])
    axes.locator_params(axis="x", integer=True)
    axes.tick_params(colors=_TEXT, labelsize=8)
    axes.xaxis.label.set(color=_TEXT, fontsize=9)
    axes.yaxis.label.set(color=_TEXT, fontsize=9)
    axes.spines[["top", "right"]].set_visible(False)
    for spine in axes.spines.values():
        spine.set_color(_TEXT)
    if len(curves) > 1:
        axes.legend(frameon=False, labelcolor=_TEXT, fontsize=8)
    return figure
