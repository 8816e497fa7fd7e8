"""What a fork costs: time to make, memory while many live, the first query and append on one."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path

from made import query_text
from ours import SCOPE, Bound, Lookup, alone, append, drafts, filled, memory, spread, table

from rb_dspy.bank import MemoryBank

WORDS = 20
"""Forks that are asked for words too."""


def measure(folder: Path, items: int, forks: int) -> list[Bound]:
    """All in one fresh process."""
    path = folder / f"bank-{items}" / "bank.sqlite"
    filled(path, items)
    rows, bounds = alone(_forked, path, items, forks)
    table(f"{forks:,} forks of {items:,} items, alive at once", ["", "ms each", "slowest ms", "KB each"], rows)
    return bounds


def _forked(path: Path, items: int, forks: int) -> tuple[list[list[str]], list[Bound]]:
    lookup = Lookup(items)
    for kind in ("i", "q", "t"):
        lookup.table(kind)
    rows, bounds = [], []
    with MemoryBank.open(path, scope=SCOPE, embedder=lookup) as bank:
        bank.retrieve(query_text(0), 5, unit="item")
        bank.retrieve(query_text(0), 5)
        bank.retrieve(query_text(0), 5, unit="item", mode="lexical")
        bank.retrieve(query_text(0), 5, mode="hybrid")
        bank.fork().close()
        alive: list[MemoryBank] = []
        fresh = list(drafts(range(10 * items, 10 * items + forks), 1))
        steps: dict[str, Callable[[int], object]] = {
            "fork()": lambda _: alive.append(bank.fork()),
            "first retrieve of items": lambda n: alive[n].retrieve(query_text(n), 5, unit="item"),
            "second": lambda n: alive[n].retrieve(query_text(n + 1), 5, unit="item"),
            "first lexical retrieve of items": lambda n: alive[n].retrieve(
                query_text(n), 5, unit="item", mode="lexical"
            ),
            "second lexical": lambda n: alive[n].retrieve(query_text(n + 1), 5, unit="item", mode="lexical"),
            "first hybrid retrieve of experiences": lambda n: alive[n].retrieve(query_text(n), 5, mode="hybrid"),
            "append of one item": lambda n: append(alive[n], fresh[n]),
            "retrieve after it": lambda n: alive[n].retrieve(query_text(n), 5, unit="item"),
            "lexical retrieve after it": lambda n: alive[n].retrieve(query_text(n), 5, unit="item", mode="lexical"),
        }
        for name, step in steps.items():
            before, times = memory()["resident"], []
            asked = min(forks, WORDS) if "lexical" in name or "hybrid" in name else forks
            for number in range(asked):
                started = time.perf_counter()
                step(number)
                times.append((time.perf_counter() - started) * 1000)
            grown = (memory()["resident"] - before) / asked / 1024
            if name == "fork()":
                bounds = [
                    Bound(f"fork of {items:,}: ms", statistics.median(times), 1),
                    Bound(f"fork of {items:,}: KB", grown, 1_000),
                ]
            rows.append([name, spread(times, 3), f"{max(times):.2f}", f"{grown:,.1f}"])
        for mode in ("dense", "lexical"):
            started = time.perf_counter()
            bank.retrieve(query_text(0), 5, unit="item", mode=mode)
            took = (time.perf_counter() - started) * 1000
            rows.append([f"a query of the bank itself, {mode}", f"{took:.3f}", "", ""])
        for fork in alive:
            if len(fork) != items + 1:
                raise RuntimeError(f"{fork}: {len(fork)} items, expected {items + 1}")
            fork.close()
    return rows, bounds
