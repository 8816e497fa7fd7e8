"""Durable appends as in ``bench.py append``, on disks that take longer to sync.

    python experiments/bank/disks.py [--rounds 3] [--sync 0 200 500 1000]

What bare SQLite does in a second is what the disk syncs in a second, so ratios to it say as much of the disk as of us.
Here every ``fsync`` and ``fdatasync``, bare SQLite's as well as ours, takes so many microseconds more than this
machine's disk does: a library that waits before the real call is preloaded into each process (Linux, a C compiler).
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
BUILD = HERE.parents[1] / "build"


def main() -> None:
    """One run of the benchmark for each time."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rounds", type=int, default=3, help="rounds of each comparison (3)")
    options.add_argument("--sync", type=int, nargs="+", default=[0, 200, 500, 1_000], help="microseconds")
    chosen = options.parse_args()
    BUILD.mkdir(exist_ok=True)
    library = BUILD / "slow_sync.so"
    source = HERE / "slow_sync.c"
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    for microseconds in chosen.sync:
        print(f"\nevery sync takes {microseconds:,} microseconds longer", flush=True)
        subprocess.run(
            [sys.executable, HERE / "bench.py", "append", "--no-peers", "--rounds", str(chosen.rounds)],
            env={**os.environ, "LD_PRELOAD": str(library), "SLOW_SYNC_US": str(microseconds)},
            check=True,
        )


if __name__ == "__main__":
    main()
