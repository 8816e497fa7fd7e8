"""What a query costs, embedding excluded: ours, bare FAISS in the same process and in turns, and the peers.

The bank's files are read before each turn, as they lie in the system's page cache while a bank is in use: bare FAISS
holds its vectors in memory, and there are machines that take back, within a minute, what was cached of a file. One more
row shows what a query takes whose lessons have to come from the disk.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import peers
from made import query_text
from ours import QUERIES, SCOPE, Bound, Lookup, alone, cpu_and_wall, filled, spread, table
from plot import Point

from rb_dspy.bank import MemoryBank

K = 5
MILLION = 1_000_000
FROM_DISK = "ours, items, lessons read from the disk"
OURS = "rb_dspy"
SHOWN = {
    "ours, items": OURS,
    "bare faiss.IndexFlatIP": "FAISS flat index",
    "reasoning-bank 0.1.1": "reasoning-bank",
    "mem0 2.2.1": "mem0 (FAISS)",
    "langmem 0.0.30": "langmem",
}
"""Who is in the plot, by which name."""


def measure(
    folder: Path, sizes: Sequence[int], rounds: int, each: int, others: Sequence[str], peer_cap: int
) -> tuple[list[Bound], list[Point]]:
    """One table for each size. ``peer_cap``: the largest size at which the slow ones of ``others`` are asked."""
    bounds: list[Bound] = []
    points: list[Point] = []
    for size in sizes:
        items_each = 3 if size >= MILLION else 1
        filled(folder / f"bank-{size}" / "bank.sqlite", size, items_each=items_each)
        rows = alone(_ours, folder, size, rounds, each, items_each)
        ours = [row for row in rows if row[0].startswith("ours")]
        bounds += [
            Bound(f"{row[0]} of {size:,}: CPU, x bare flat", _middle(row[2]), 1.3)
            for row in ours
            if size in (10_000, 100_000)
        ]
        if size == MILLION:
            for row in (ours[0], ours[-1]):
                bounds.append(Bound(f"{row[0]} of 1M: CPU ms", _middle(row[1]), 2))
                bounds.append(Bound(f"{row[0]} of 1M: wall ms p50", _middle(row[4]), 2))
            bounds.append(Bound(f"query of 1M: recall@{K}", _middle(ours[0][5]), 0.98, most=False))
        for peer in others if size < MILLION else ():
            if size > peer_cap and not peer.startswith("mem0"):
                rows.append([peer, "not measured: filling takes too long", "", "", "", ""])
                continue
            rows.append(_peer(peer, size, _middle(ours[0][1])))
            if size >= 10_000:
                times = 50.0 if peer.startswith("reasoning-bank") else 1.0
                bounds.append(Bound(f"{peer} of {size:,}: CPU, x ours", _middle(rows[-1][2]), times, most=False))
        head = ["", "CPU ms a query", "x bare flat", "x faiss.knn", "wall ms p50", f"recall@{K}"]
        table(f"query, {size:,} items, k = {K}: median [quartiles]; peers: x ours", head, rows)
        points += [
            Point(SHOWN[row[0]], size, _middle(row[1])) for row in rows if row[0] in SHOWN and row[1][:1].isdigit()
        ]
    return bounds, points


def _ours(folder: Path, size: int, rounds: int, each: int, items_each: int) -> list[list[str]]:
    import faiss

    faiss.omp_set_num_threads(1)
    lookup = Lookup(size)
    vectors, queries = lookup.table("i"), lookup.table("q")
    flat = faiss.IndexFlatIP(vectors.shape[1])
    flat.add(vectors)
    path = folder / f"bank-{size}" / "bank.sqlite"
    with MemoryBank.open(path, scope=SCOPE, embedder=lookup) as bank:

        def knn(number: int) -> None:
            faiss.knn(queries[number : number + 1], vectors, K, metric=faiss.METRIC_INNER_PRODUCT)

        engines: dict[str, Callable[[int], object]] = {
            "bare faiss.IndexFlatIP": lambda number: flat.search(queries[number : number + 1], K),
            "bare faiss.knn": knn,
            "ours, items": lambda number: bank.retrieve(query_text(number), K, unit="item"),
            f"ours, experiences of {items_each}": lambda number: bank.retrieve(query_text(number), K),
            # Others, whose lessons SQLite has not just read for one of ours.
            FROM_DISK: lambda number: bank.retrieve(query_text(number + QUERIES // 2), K, unit="item"),
        }
        cpu: dict[str, list[float]] = {name: [] for name in engines}
        wall: dict[str, list[float]] = {name: [] for name in engines}
        for turn in range(rounds + 1):
            first = turn % len(engines)  # each goes first in turn: the first finds the caches full of another's vectors
            for name, engine in [*engines.items()][first:] + [*engines.items()][:first]:
                if name == FROM_DISK:
                    _forgotten(path)
                elif name.startswith("ours"):
                    _cached(path)
                asked = [cpu_and_wall(partial(engine, number), lookup) for number in _some(turn, each)]
                if turn:  # the first one fills caches
                    cpu[name].append(statistics.fmean(one[0] for one in asked))
                    wall[name] += [one[1] for one in asked]
            _built()
        recall = _recall(bank, lookup, flat, min(QUERIES, 200))
    rows = []
    for name in engines:
        ratios = [
            spread([mine / other for mine, other in zip(cpu[name], cpu[bare], strict=True)])
            for bare in ("bare faiss.IndexFlatIP", "bare faiss.knn")
        ]
        found = f"{recall:.3f}" if name == "ours, items" else ""
        rows.append([name, spread(cpu[name], 3), *ratios, f"{statistics.median(wall[name]):.3f}", found])
    return rows


def _built() -> None:
    """Wait for indexes that are being built aside, since the first queries asked for them: that is no query's CPU."""
    for thread in threading.enumerate():
        if thread.name == "rb_dspy index":
            thread.join()


def _cached(path: Path) -> None:
    """Have the system cache a bank's files, the index among them."""
    files = [path, *path.with_name(f"{path.name}.index").glob("*")]
    # Not here: closing the database in this process would drop the locks that SQLite holds on it.
    subprocess.run(["cat", *files], stdout=subprocess.DEVNULL, check=True)


_FORGET = "import os, sys; os.posix_fadvise(os.open(sys.argv[1], os.O_RDONLY), 0, 0, os.POSIX_FADV_DONTNEED)"


def _forgotten(path: Path) -> None:
    """Have the system forget what it has cached of a bank's database (Linux). The index is mapped, and stays."""
    subprocess.run([sys.executable, "-c", _FORGET, path], check=True)


def _middle(cell: str) -> float:
    return float(cell.split()[0].replace(",", ""))


def _some(turn: int, each: int) -> list[int]:
    """Other queries in every round, the same for all engines."""
    return [(turn * each + number) % QUERIES for number in range(each)]


def _recall(bank: MemoryBank, lookup: Lookup, flat: object, queries: int) -> float:
    _, exact = flat.search(lookup.table("q")[:queries], K)  # type: ignore[attr-defined]
    shares = []
    for number in range(queries):
        found = {int(hit.items[0].title[1:9]) for hit in bank.retrieve(query_text(number), K, unit="item")}
        shares.append(len(found & set(exact[number].tolist())) / K)
    return float(np.mean(shares))


def _peer(peer: str, size: int, ours: float) -> list[str]:
    queries = 50 if size <= 1_000 or peer.startswith("mem0") else 5
    with tempfile.TemporaryDirectory() as folder:
        answer = peers.ask(peer, Path(folder), items=size, queries=queries)
    ratio = statistics.median(answer["cpu_ms"]) / ours
    wall = f"{statistics.median(answer['wall_ms']):.3f}"
    return [peer, spread(answer["cpu_ms"], 3), f"{ratio:,.2f} x ours", "", wall, ""]
