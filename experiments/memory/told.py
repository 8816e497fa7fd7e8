"""What came of the arms, in tables: paired differences with intervals, the judge, the lessons, tokens."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from scipy import stats
from streams import read

Row = dict[str, Any]
Stream = list[Row]

PRIMARY = ("bank", "off")
SECONDARY = (("truth", "off"), ("bank", "truth"), ("again", "off"))
SMALLEST = 0.05
ENOUGH = (100, 8)
"""Tasks and orders with which a verdict is more than exploratory."""


@dataclass(frozen=True)
class Difference:
    """A mean of paired differences: tasks by orders."""

    mean: float
    low: float
    high: float
    p: float
    boot_low: float
    boot_high: float
    gained: int
    lost: int

    def __str__(self) -> str:
        return (
            f"{100 * self.mean:+6.1f} [{100 * self.low:+.1f}, {100 * self.high:+.1f}]  p {self.p:.4f}"
            f"  bootstrap [{100 * self.boot_low:+.1f}, {100 * self.boot_high:+.1f}]"
            f"  gained {self.gained}, lost {self.lost}"
        )

    def verdict(self, smallest: float = SMALLEST) -> str:
        """As the plan has it."""
        if -smallest < self.low and self.high < smallest:
            return "NULL"
        return "LEARNING" if self.low > 0 else "HARM" if self.high < 0 else "UNRESOLVED"


def difference(first: np.ndarray, second: np.ndarray, draws: int = 10_000) -> Difference:
    """Of two arms' successes, tasks by orders: two-way clusters, t with orders - 1 degrees of freedom; bootstrap."""
    d = first.astype(float) - second.astype(float)
    tasks, orders = d.shape
    mean = d.mean()
    e = d - mean
    by_task = (e.sum(axis=1) ** 2).sum() * tasks / max(1, tasks - 1)
    by_order = (e.sum(axis=0) ** 2).sum() * orders / max(1, orders - 1)
    single = (e**2).sum() * d.size / max(1, d.size - 1)
    # The sum of the two less what both count can come out below either; an interval must not gain by that.
    error = np.sqrt(max(by_task + by_order - single, by_task, by_order)) / d.size
    half = stats.t.ppf(0.975, max(1, orders - 1)) * error
    p = 2 * stats.t.sf(abs(mean) / error, max(1, orders - 1)) if error else float(mean == 0)
    rng = np.random.default_rng(0)
    of_tasks = rng.multinomial(tasks, [1 / tasks] * tasks, draws)
    of_orders = rng.multinomial(orders, [1 / orders] * orders, draws)
    means = np.einsum("bt,tk,bk->b", of_tasks, d, of_orders, optimize=True) / d.size
    low, high = np.quantile(means, [0.025, 0.975])
    return Difference(
        mean, mean - half, mean + half, float(p), float(low), float(high), int((d > 0).sum()), int((d < 0).sum())
    )


def holm(ps: Sequence[float]) -> list[float]:
    """Adjusted p values, in the order given."""
    adjusted, highest = [0.0] * len(ps), 0.0
    for rank, place in enumerate(sorted(range(len(ps)), key=ps.__getitem__)):
        highest = max(highest, min(1.0, ps[place] * (len(ps) - rank)))
        adjusted[place] = highest
    return adjusted


def report(out: Path, *, orders: int) -> None:
    """Print everything of what is there; an arm that is not done counts as far as it came, and is said to."""
    found = read(out / "run")
    arms = {arm: [found.get((arm, f"{order:02}"), []) for order in range(orders)] for arm, _ in found}
    names = sorted({row["task"] for each in arms.values() for stream in each for row in stream})
    solved = {arm: _matrix(streams, names, lambda row: row["solved"] is True) for arm, streams in arms.items()}
    kept: dict[str, Any] = {"tasks": len(names), "orders": orders, "arms": {}, "differences": {}}
    for arm, streams in arms.items():
        kept["arms"][arm] = told = _arm(streams, solved[arm])
        print(f"\n{arm}")
        for name, value in told.items():
            print(f"  {name:44} {value}")
    pairs = [(PRIMARY, True)] + [(pair, False) for pair in SECONDARY]
    found_pairs = [(pair, primary) for pair, primary in pairs if set(pair) <= set(arms)]
    told_pairs = {pair: difference(solved[pair[0]], solved[pair[1]]) for pair, _ in found_pairs}
    adjusted = dict(
        zip(
            second := [p for p, primary in found_pairs if not primary],
            holm([told_pairs[p].p for p in second]),
            strict=True,
        )
    )
    print(f"\nDifferences in points, {len(names)} tasks x {orders} orders")
    for pair, primary in found_pairs:
        each = told_pairs[pair]
        said = f"primary: {each.verdict()}" if primary else f"Holm p {adjusted[pair]:.4f}"
        print(f"  {pair[0]:6} less {pair[1]:6} {each}  {said}")
        kept["differences"][" less ".join(pair)] = vars(each) | {"says": said}
    if len(names) < ENOUGH[0] or orders < ENOUGH[1]:
        print("  exploratory: fewer than 100 tasks or 8 orders")
    _halves(arms, names)
    _families(arms, solved, names)
    (out / "report.json").write_text(json.dumps(kept, indent=1), encoding="utf-8")


def _matrix(streams: Sequence[Stream], names: Sequence[str], of: Callable[[Row], bool]) -> np.ndarray:
    """Tasks by orders; False where there is no row."""
    place = {name: number for number, name in enumerate(names)}
    matrix = np.zeros((len(names), len(streams)), dtype=bool)
    for order, stream in enumerate(streams):
        for row in stream:
            matrix[place[row["task"]], order] = of(row)
    return matrix


def _arm(streams: Sequence[Stream], solved: np.ndarray) -> dict[str, str]:
    rows = [row for stream in streams for row in stream]
    wins = int(solved.sum())
    told = {"rows, of", f"{len(rows)}, {solved.size}"}
    told = {"rows, of": f"{len(rows)}, {solved.size}", "solved": f"{100 * solved.mean():.1f} %"}
    told["solved by order"] = " ".join(f"{100 * share:.0f}" for share in solved.mean(axis=0))
    told["infrastructure errors"] = str(sum(bool(row["error"]) for row in rows))
    asked: Counter[str] = Counter()
    read_in, written, unreadable = Counter[str](), Counter[str](), Counter[str]()
    for row in rows:
        unreadable.update(row["unreadable_by"])
        for role, used in row["usage"].items():
            asked[role] += used["calls"]
            read_in[role] += used["prompt_tokens"]
            written[role] += used["completion_tokens"]
    for role in asked:
        told[f"{role}: calls, tokens read, written"] = (
            f"{asked[role]:,}, {read_in[role]:,}, {written[role]:,} ({written[role] / max(1, len(rows)):.0f} a task)"
        )
        told[f"{role}: answers that could not be read"] = (
            f"{unreadable[role]} ({100 * unreadable[role] / max(1, len(rows)):.1f} %)"
        )
    told["tokens a solved task, all roles"] = f"{(read_in.total() + written.total()) / max(1, wins):,.0f}"
    said = Counter((row["verdict"], row["solved"]) for row in rows if row["verdict"])
    if said:
        right, wrong, missed = (
            said["success", True],
            said["success", False],
            said["failure", True] + said["unknown", True],
        )
        told["judge: success when solved, when not"] = f"{right}, {wrong}"
        told["judge: failure when solved, when not"] = f"{said['failure', True]}, {said['failure', False]}"
        told["judge: unknown when solved, when not"] = f"{said['unknown', True]}, {said['unknown', False]}"
        told["judge: precision, recall of success"] = (
            f"{right / max(1, right + wrong):.2f}, {right / max(1, right + missed):.2f}"
        )
        lost = Counter[str]()
        for row in rows:
            lost.update(row["dropped"])
        told["lessons: proposed, kept, a task"] = (
            f"{sum(row['proposed'] for row in rows):,}, {sum(len(row['lessons']) for row in rows):,},"
            f" {fmean(len(row['lessons']) for row in rows):.2f}"
        )
        told["lessons dropped, and why"] = ", ".join(f"{why} {many}" for why, many in lost.most_common())
        told["tasks shown a lesson"] = f"{100 * fmean(bool(row['shown_from']) for row in rows):.1f} %"
        shown = [name.split("/")[1] == row["template"] for row in rows for name in row["shown_from"]]
        told["lessons shown that are of the task's family"] = f"{100 * fmean(shown):.1f} %" if shown else "-"
        good = [of == "success" for row in rows for of in row["shown_of"]]
        told["lessons shown that say they come of success"] = f"{100 * fmean(good):.1f} %" if good else "-"
    return told


def _halves(arms: dict[str, list[Stream]], names: Sequence[str]) -> None:
    """Whether it gets better along the stream, more than the same tasks do without memory."""
    if "off" not in arms:
        return
    half = len(names) / 2
    print("\nDifference to off in points, tasks of the first half of each order and of the second")
    base = [{row["task"]: row["solved"] is True for row in stream} for stream in arms["off"]]
    for arm, streams in arms.items():
        parts: list[list[int]] = [[], []]
        for order, stream in enumerate(streams):
            for row in stream:
                parts[row["position"] >= half].append((row["solved"] is True) - base[order].get(row["task"], False))
        print(f"  {arm:6} " + "  ".join(f"{100 * fmean(part):+.1f}" if part else "-" for part in parts))


def _families(arms: dict[str, list[Stream]], solved: dict[str, np.ndarray], names: Sequence[str]) -> None:
    families = sorted({name.split("/")[1] for name in names})
    print(f"\nSolved by family, %\n  {'':24} " + " ".join(f"{arm:>6}" for arm in arms))
    for family in families:
        of = [number for number, name in enumerate(names) if name.split("/")[1] == family]
        print(f"  {family:24} " + " ".join(f"{100 * solved[arm][of].mean():6.0f}" for arm in arms))
