"""From ``MemoryBank.open`` to the answer of the first query, with the index that lies beside the bank and without."""

from __future__ import annotations

import shutil
import statistics
import time
from pathlib import Path

from made import query_text
from ours import SCOPE, Bound, Lookup, alone, filled, memory, spread, table

from rb_dspy.bank import MemoryBank

_ASKED = 200
"""Queries before memory is read: what a mapped file takes grows with what is looked at."""


def measure(folder: Path, items: int, rounds: int) -> list[Bound]:
    """Each round is a fresh process; the disk's pages are in memory already."""
    place = folder / f"bank-{items}"
    path = place / "bank.sqlite"
    filled(path, items, items_each=3)
    floats = items * Lookup.dimension * 4
    rows: list[list[str]] = []
    bounds: list[Bound] = []
    alone(_indexed, path)  # whatever earlier measurements left
    for with_index in (True, False):
        found = []
        for _ in range(rounds):
            if not with_index:
                _forget_index(path)
            found.append(alone(_opened, path))
        if with_index and items == 1_000_000:
            bounds = [
                Bound("open 1M: s to the first answer", statistics.median(one["seconds"] for one in found), 3),
                Bound("open 1M: peak memory, x float32", statistics.median(one["peak"] / floats for one in found), 1.5),
            ]
        rows.append(
            [
                "index file" if with_index else "no index file",
                spread([one["seconds"] for one in found], 3),
                spread([one["second_ms"] for one in found], 2),
                *(spread([one[what] / floats for one in found]) for what in ("resident", "anonymous", "peak")),
            ]
        )
    head = ["", "s to the first answer", "ms the second", "resident", "of it anonymous", "peak"]
    table(f"open, {items:,} items; memory after {_ASKED} queries in multiples of {items:,} x 384 x 4 bytes", head, rows)
    return bounds


def _indexed(path: Path) -> None:
    with MemoryBank.open(path, scope=SCOPE, embedder=Lookup(1)) as bank:
        bank.reindex()


def _opened(path: Path) -> dict[str, float]:
    """Runs in a fresh process; its imports are not counted, what the bank imports itself is."""
    lookup = Lookup(1)
    lookup.table("q")
    before = memory()
    started = time.perf_counter()
    with MemoryBank.open(path, scope=SCOPE, embedder=lookup) as bank:
        found = bank.retrieve(query_text(0), 5, unit="item")
        seconds = time.perf_counter() - started
        started = time.perf_counter()
        bank.retrieve(query_text(1), 5, unit="item")
        second = (time.perf_counter() - started) * 1000
        for number in range(2, _ASKED):
            bank.retrieve(query_text(number), 5, unit="item")
        after = memory()
    if len(found) != 5:
        raise RuntimeError(f"{len(found)} results, expected 5")
    grown = {what: float(after[what] - before["resident"]) for what in ("resident", "peak")}
    grown["anonymous"] = float(after["anonymous"] - before["anonymous"])
    return {"seconds": seconds, "second_ms": second, **grown}


def _forget_index(path: Path) -> None:
    """Remove what lies beside the database and its journal."""
    own = {path.name, f"{path.name}-wal", f"{path.name}-shm", f"{path.name}.lock"}
    for other in path.parent.iterdir():
        if other.name not in own:
            if other.is_dir():
                shutil.rmtree(other)
            else:
                other.unlink()
