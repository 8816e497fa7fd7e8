"""Pictures of a run: how success grew, whom the judge misjudged, which lessons were used.

Drawn without a background and in middling colours, so that they are read on a light page and on a dark one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, get_args

from rb_dspy.schema import Label
from rb_dspy.stream import TaskResult

_TEXT = "#707880"
_BLUE, _GREEN, _RED = "#3b82e0", "#2f9e63", "#d65a4a"
_MOST_ITEMS = 15
_TITLE_LENGTH = 42


def learning_curve(results: Sequence[TaskResult]) -> Any:
    """Share of solved tasks among those so far, and each task as a mark."""
    figure, axes = _figure(7, 3.6, "Learning curve")
    scored = [(n, result.outcome.success) for n, result in enumerate(results, 1) if result.outcome is not None]
    rates = [sum(solved for _, solved in scored[: n + 1]) / (n + 1) for n in range(len(scored))]
    positions = [n for n, _ in scored]
    axes.plot(positions, rates, color=_BLUE, linewidth=2, marker="" if len(scored) > 1 else "o")
    for wanted, colour, mark in ((True, _GREEN, "|"), (False, _RED, "x")):
        at = [n for n, solved in scored if solved is wanted]
        axes.plot(at, [1.06 if wanted else -0.06] * len(at), mark, color=colour, markersize=6, clip_on=False)
    axes.set(xlabel="task (green: solved, red: not)", ylabel="solved so far", ylim=(-0.1, 1.1))
    axes.set_yticks([0, 0.25, 0.5, 0.75, 1], ["0 %", "25 %", "50 %", "75 %", "100 %"])
    axes.set_xlim(0.5, max(len(results), 1) + 0.5)
    axes.xaxis.get_major_locator().set_params(integer=True)
    return figure


def judge_confusion(results: Sequence[TaskResult]) -> Any:
    """Counts of tasks by what the environment says and what the judge said."""
    figure, axes = _figure(5, 3, "Judge")
    said = Counter(
        (result.outcome.success, result.label)
        for result in results
        if result.outcome is not None and result.label is not None
    )
    labels: tuple[Label, ...] = get_args(Label)
    most = max(said.values(), default=0)
    for row, truth in enumerate((True, False)):
        for column, label in enumerate(labels):
            count = said[truth, label]
            right = label == ("success" if truth else "failure")
            colour = _TEXT if label == "unknown" else _GREEN if right else _RED
            shade = 0.08 + 0.5 * count / most if most else 0.08
            axes.add_patch(_rectangle((column, row), colour, shade))
            axes.text(column + 0.5, row + 0.5, str(count), ha="center", va="center", color=_TEXT, fontsize=15)
    axes.set(xlim=(0, 3), ylim=(2, 0), xlabel="the judge said", ylabel="it was")
    axes.set_xticks([0.5, 1.5, 2.5], labels)
    axes.set_yticks([0.5, 1.5], ["solved", "not solved"])
    axes.tick_params(length=0)
    return figure


def item_use(results: Sequence[TaskResult]) -> Any:
    """How often each lesson was shown, for tasks that were then solved and for others; the most used first."""
    solved: Counter[str] = Counter()
    others: Counter[str] = Counter()
    titles: dict[str, str] = {}
    for result in results:
        if result.prediction is None:
            continue
        into = solved if result.outcome is not None and result.outcome.success else others
        for item in result.prediction.memory.items:
            titles[item.id] = item.title
            into[item.id] += 1
    shown = [id for id, _ in (solved + others).most_common(_MOST_ITEMS)]
    figure, axes = _figure(7, 1.6 + 0.35 * max(len(shown), 1), "Lessons by use")
    names = [_short(titles[id]) for id in shown]
    rows = range(len(shown))
    good, bad = ([counted[id] for id in shown] for counted in (solved, others))
    axes.barh(rows, good, color=_GREEN, label="task solved")
    axes.barh(rows, bad, left=good, color=_RED, label="not solved, or not known")
    axes.set_yticks(rows, names)
    axes.invert_yaxis()
    axes.set_xlabel("times shown")
    axes.xaxis.get_major_locator().set_params(integer=True)
    if shown:
        figure.legend(loc="outside lower center", ncols=2, frameon=False, labelcolor=_TEXT, fontsize=8)
    else:
        axes.text(0.5, 0.5, "no lesson was shown", transform=axes.transAxes, ha="center", va="center", color=_TEXT)
    return figure


def _figure(width: float, height: float, title: str) -> tuple[Any, Any]:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.set_title(title, color=_TEXT, fontsize=11)
    axes.tick_params(colors=_TEXT, labelsize=8)
    axes.xaxis.label.set(color=_TEXT, fontsize=9)
    axes.yaxis.label.set(color=_TEXT, fontsize=9)
    axes.spines[["top", "right"]].set_visible(False)
    for spine in axes.spines.values():
        spine.set_color(_TEXT)
    return figure, axes


def _rectangle(corner: tuple[float, float], colour: str, shade: float) -> Any:
    from matplotlib.patches import Rectangle

    return Rectangle(corner, 1, 1, facecolor=colour, alpha=shade, edgecolor=_TEXT, linewidth=0.5)


def _short(title: str) -> str:
    """On one line, and no formula: matplotlib would read text between dollar signs as one."""
    title = " ".join(title.split())
    title = title if len(title) <= _TITLE_LENGTH else f"{title[: _TITLE_LENGTH - 1]}…"
    return title.replace("$", r"\$")
