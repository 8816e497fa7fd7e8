"""What the bank costs, beside bare FAISS, bare SQLite, and the peers installed from the package index in the same run.

    python experiments/bank/bench.py [query] [append] [open] [fork] [--million] [--quick]

Tables of medians with quartiles over rounds in which the sides take turns. Absolute times mean little, ratios more. The
peers are installed into ``build/peers`` on the first run. Vectors: see ``vectors.py``; texts: 700 bytes a lesson.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

# One thread everywhere, as for the peers; before numpy and FAISS are loaded.
os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"
os.environ["PYTHONUNBUFFERED"] = "1"

import appends
import forks
import opens
import peers
import plot
import queries
from ours import Bound, held

PARTS = ("query", "append", "open", "fork")
BUILD = Path(__file__).resolve().parents[2] / "build"


@dataclass(frozen=True)
class Effort:
    """How much is measured. Items of ``disk`` are written twice; ``adds`` go to each peer."""

    rounds: int
    sizes: tuple[int, ...]
    queries: int
    seconds: float
    disk: int
    adds: int
    opened: int
    forked: int
    forks: int


FULL = Effort(15, (1_000, 10_000, 100_000), 20, 2.0, 10_000, 200, 300_000, 100_000, 1_000)
QUICK = Effort(3, (1_000, 2_000), 10, 0.3, 2_000, 20, 2_000, 2_000, 100)
WRITERS = 8


def main() -> None:
    """Measure what was named, print the tables, then what was promised."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("parts", nargs="*", metavar="query|append|open|fork", help="all of them when none is named")
    options.add_argument("--quick", action="store_true", help="small sizes and few rounds: does it run at all?")
    options.add_argument(
        "--million", action="store_true", help="query and open 1M items: minutes to fill, 4 GB on disk"
    )
    options.add_argument("--rounds", type=int, help=f"rounds of each comparison ({FULL.rounds}; quick {QUICK.rounds})")
    options.add_argument("--peer-cap", type=int, default=100_000, help="largest size for the slow peers")
    options.add_argument("--no-peers", action="store_true", help="leave the peers out")
    options.add_argument("--folder", type=Path, help="where banks are made and kept; else they are made in build/")
    options.add_argument("--plot", type=Path, help="draw the queries: an SVG for light pages, and one for dark ones")
    chosen = options.parse_args()
    unknown = set(chosen.parts) - set(PARTS)
    if unknown:
        options.error(f"no part {', '.join(sorted(unknown))}; expected {', '.join(PARTS)}")
    parts = chosen.parts or PARTS
    effort = QUICK if chosen.quick else FULL
    if chosen.rounds:
        effort = replace(effort, rounds=chosen.rounds)
    others = () if chosen.no_peers else peers.NAMES
    BUILD.mkdir(exist_ok=True)
    folder = chosen.folder or Path(tempfile.mkdtemp(prefix="bench-", dir=BUILD))  # on a disk: /tmp may be memory
    folder.mkdir(parents=True, exist_ok=True)
    bounds: list[Bound] = []
    try:
        if "fork" in parts:
            bounds += forks.measure(folder, effort.forked, effort.forks)
        if "append" in parts:
            bounds += appends.measure(folder, effort.rounds, effort.seconds, WRITERS)
            bounds += appends.disk(folder, effort.disk)
            appends.compare(folder, others, effort.adds)
        if "query" in parts:
            sizes = [*effort.sizes, *([1_000_000] if chosen.million else [])]
            held_here, points = queries.measure(folder, sizes, effort.rounds, effort.queries, others, chosen.peer_cap)
            bounds += held_here
            if chosen.plot:
                plot.draw(points, [queries.OURS], chosen.plot)
        if "open" in parts:
            bounds += opens.measure(folder, 1_000_000 if chosen.million else effort.opened, min(effort.rounds, 5))
    finally:
        if chosen.folder is None:
            shutil.rmtree(folder, ignore_errors=True)
    held(bounds)


if __name__ == "__main__":
    main()
