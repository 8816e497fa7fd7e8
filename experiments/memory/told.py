"""What came of the arms, in tables: paired differences with intervals, the judge, the lessons, tokens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
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
    pairs: int
    orders: int
    planned: int

    def __str__(self) -> str:
        return (
            f"{100 * self.mean:+6.1f} [{100 * self.low:+.1f}, {100 * self.high:+.1f}]  p {self.p:.4f}"
            f"  bootstrap [{100 * self.boot_low:+.1f}, {100 * self.boot_high:+.1f}]"
            f"  gained {self.gained}, lost {self.lost} of {self.pairs}"
        )

    def verdict(self, smallest: float = SMALLEST) -> str:
        """As the plan has it."""
        if -smallest < self.low and self.high < smallest:
            return "NULL"
        return "LEARNING" if self.low > 0 else "HARM" if self.high < 0 else "UNRESOLVED"


def difference(first: np.ndarray, second: np.ndarray, draws: int = 10_000) -> Difference:
    """Of two arms' successes, tasks by orders; NaN where one did not come so far, which leaves the pair out.

    Two-way clusters, t with orders - 1 degrees of freedom; and a bootstrap of tasks and orders.
    """
    d = first - second
    d = d[:, ~np.isnan(d).all(axis=0)]
    (tasks, orders), pairs = d.shape, int((~np.isnan(d)).sum())
    mean = float(np.nanmean(d))
    e = np.nan_to_num(d - mean)
    by_task = (e.sum(axis=1) ** 2).sum() * tasks / max(1, tasks - 1)
    by_order = (e.sum(axis=0) ** 2).sum() * orders / max(1, orders - 1)
    single = (e**2).sum() * pairs / max(1, pairs - 1)
    # The sum of the two less what both count can come out below either; an interval must not gain by that.
    error = np.sqrt(max(by_task + by_order - single, by_task, by_order)) / pairs
    half = stats.t.ppf(0.975, max(1, orders - 1)) * error
    p = 2 * stats.t.sf(abs(mean) / error, max(1, orders - 1)) if error else float(mean == 0)
    rng = np.random.default_rng(0)
    of_tasks = rng.multinomial(tasks, [1 / tasks] * tasks, draws)
    of_orders = rng.multinomial(orders, [1 / orders] * orders, draws)
    total, weight = (
        np.einsum("bt,tk,bk->b", of_tasks, each, of_orders, optimize=True)
        for each in (np.nan_to_num(d), (~np.isnan(d)).astype(float))
    )
    low, high = np.quantile(total / weight, [0.025, 0.975])
    gained, lost = int((d > 0).sum()), int((d < 0).sum())
    return Difference(
        mean, mean - half, mean + half, float(p), float(low), float(high), gained, lost, pairs, orders, tasks * orders
    )


def holm(ps: Sequence[float]) -> list[float]:
    """Adjusted p values, in the order given."""
    adjusted, highest = [0.0] * len(ps), 0.0
    for rank, place in enumerate(sorted(range(len(ps)), key=ps.__getitem__)):
        highest = max(highest, min(1.0, ps[place] * (len(ps) - rank)))
        adjusted[place] = highest
    return adjusted


def report(out: Path, *, orders: int) -> None:
    """Print everything of what is there."""
    found = read(out / "run")
    arms = {arm: [found.get((arm, f"{order:02}"), []) for order in range(orders)] for arm, _ in found}
    names = sorted({row["task"] for each in arms.values() for stream in each for row in stream})
    solved = {arm: _matrix(streams, names) for arm, streams in arms.items()}
    for arm, streams in arms.items():
        print(f"\n{arm}")
        for name, value in _arm(streams, solved[arm]).items():
            print(f"  {name:44} {value}")
    asked = [pair for pair in (PRIMARY, *SECONDARY) if set(pair) <= set(arms)]
    told = {pair: difference(solved[pair[0]], solved[pair[1]]) for pair in asked}
    second = [pair for pair in asked if pair != PRIMARY]
    adjusted = dict(zip(second, holm([told[pair].p for pair in second]), strict=True))
    print(f"\nDifferences in points, {len(names)} tasks x {orders} orders")
    for pair, each in told.items():
        said = f"Holm p {adjusted[pair]:.4f}" if pair in adjusted else f"primary: {each.verdict()}"
        cut = "" if each.pairs == each.planned else "; cut short"
        print(f"  {pair[0]:6} less {pair[1]:6} {each}  {said}{cut}")
    if len(names) < ENOUGH[0] or orders < ENOUGH[1] or any(each.pairs < each.planned for each in told.values()):
        print("  exploratory: fewer than 100 tasks or 8 orders, or cut short")
    _halves(arms, names)
    _families(solved, names)


def _matrix(streams: Sequence[Stream], names: Sequence[str]) -> np.ndarray:
    """Solved, tasks by orders; NaN where it did not come so far. What broke is not solved."""
    place = {name: number for number, name in enumerate(names)}
    matrix = np.full((len(names), len(streams)), np.nan)
    for order, stream in enumerate(streams):
        for row in stream:
            matrix[place[row["task"]], order] = row["solved"] is True
    return matrix


def _arm(streams: Sequence[Stream], solved: np.ndarray) -> dict[str, str]:
    rows = [row for stream in streams for row in stream]
    wins = int(np.nansum(solved))
    told = {"rows, of": f"{len(rows)}, {solved.size}", "solved": f"{100 * np.nanmean(solved):.1f} %"}
    told["solved by order"] = " ".join(
        f"{100 * np.nanmean(each):.0f}" if stream else "-" for each, stream in zip(solved.T, streams, strict=True)
    )
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
        right, wrong = said["success", True], said["success", False]
        missed = said["failure", True] + said["unknown", True]
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
                if row["task"] in base[order]:
                    parts[row["position"] >= half].append((row["solved"] is True) - base[order][row["task"]])
        print(f"  {arm:6} " + "  ".join(f"{100 * fmean(part):+.1f}" if part else "-" for part in parts))


def _families(solved: dict[str, np.ndarray], names: Sequence[str]) -> None:
    families = sorted({name.split("/")[1] for name in names})
    print(f"\nSolved by family, %\n  {'':24} " + " ".join(f"{arm:>6}" for arm in solved))
    for family in families:
        of = [number for number, name in enumerate(names) if name.split("/")[1] == family]
        print(f"  {family:24} " + " ".join(f"{100 * np.nanmean(each[of]):6.0f}" for each in solved.values()))
