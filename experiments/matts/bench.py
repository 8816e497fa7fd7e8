"""How long one call of MaTTS takes, beside reasoning-bank's ``matts_run``, with a language model that takes 50 ms.

    python experiments/matts/bench.py [--quick] [--no-peers] [--items 0 1000] [--rounds 15]

Parallel mode with the paper's settings: the contraster sees no labels. k = 1, 2, 4, 8, 16; rollouts of one step and of
ten; the bank in memory and on disk, with ``--items`` items in it. Medians with quartiles over rounds in which the
sides take turns. Ours retrieves, judges every rollout, contrasts and selects: 2k + 2 calls of the model for one-step
rollouts. ``matts_run`` rolls out and contrasts: k + 1; rollouts, and what they retrieve, it leaves to its caller. So
there are two of it: one whose rollouts are our agent's calls with retrieved lessons (the same work on both sides but
for our judge and selector), and one whose rollouts are bare waits for the model, which is its machinery alone.
The peer is installed into ``build/peers`` on the first run.
"""

from __future__ import annotations

import argparse
import gc
import os
import shutil
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

# One thread everywhere, as for the peer; before numpy is loaded.
os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "bank"))

from contestants import Ours, Peer, Took
from given import LATENCY
from ours import Bound, held, spread, table

KS = (1, 2, 4, 8, 16)
GROWTH = {1: 1.15, 10: 1.2}
"""Steps of a rollout -> what k = 16 may take, in times of k = 2."""
BUILD = Path(__file__).resolve().parents[2] / "build"

Side = Ours | Peer
Times = dict[tuple[str, int], list[Took]]
"""Side's name and k -> one entry a round."""


def main() -> None:
    """Measure, print the tables, then what was promised."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--quick", action="store_true", help="two rounds, empty banks: does it run at all?")
    options.add_argument("--no-peers", action="store_true", help="leave the peer out")
    options.add_argument("--rounds", type=int, help="rounds (15; quick 2)")
    options.add_argument("--items", type=int, nargs="+", help="items in the bank before (0 and 1000; quick 0)")
    options.add_argument("--steps", type=int, nargs="+", default=[1, 10], choices=[1, 10], help="steps of a rollout")
    options.add_argument("--store", nargs="+", default=["memory", "disk"], choices=["memory", "disk"])
    chosen = options.parse_args()
    rounds = chosen.rounds or (2 if chosen.quick else 15)
    sides: list[Side] = [Ours(), Ours(threads=False)]
    BUILD.mkdir(exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="matts-", dir=BUILD))  # on a disk: /tmp may be memory
    bounds: list[Bound] = []
    try:
        if not chosen.no_peers:
            sides += [Peer(agent=True), Peer(agent=False)]
        gc.collect()
        gc.freeze()  # in the peer's processes, too: a collection of all that dspy loads takes 0.1 s, two calls' time
        for items in chosen.items or ([0] if chosen.quick else [0, 1_000]):
            for store in chosen.store:
                where = folder / f"{items}" if store == "disk" else None
                for steps in chosen.steps:
                    times = measure(sides, where, items, steps, rounds)
                    bounds += report(sides, times, f"bank of {items:,} items {_IN[store]}", steps, rounds)
    finally:
        for side in sides:
            side.close()
        shutil.rmtree(folder, ignore_errors=True)
    held(bounds)


_IN = {"memory": "in memory", "disk": "on disk"}


def measure(sides: Sequence[Side], where: Path | None, items: int, steps: int, rounds: int) -> Times:
    """Every side at every k, in turns. An empty bank is made anew for each round, a full one grows by some items."""
    times: Times = {(side.name, k): [] for side in sides for k in KS}
    number = 0
    for turn in range(rounds + 1):
        if turn == 0 or not items:
            for place, side in enumerate(sides):
                path = where / f"{steps}-{turn}-{place}" / "bank.sqlite" if where else None
                if path:
                    path.parent.mkdir(parents=True)
                side.open(path, items)
                side.call(number, 2, steps, 0.0)  # what is done once a bank, such as preparing its statements
            number += 1
        for k in KS:
            first = turn % len(sides)
            for side in [*sides[first:], *sides[:first]]:
                took = side.call(number, k, steps)
                if turn:  # the first round fills caches
                    times[side.name, k].append(took)
            number += 1
    return times


def report(sides: Sequence[Side], times: Times, what: str, steps: int, rounds: int) -> list[Bound]:
    """Print a table; give the bounds."""
    ideal = (steps + 1) * LATENCY * 1000
    rows, bounds = [], []
    for side in sides:
        row = [[took.wall for took in times[side.name, k]] for k in KS]
        rows.append([f"{side.name}: wall ms", *map(_short, row)])
    for side in sides:
        row = [[took.cpu for took in times[side.name, k]] for k in KS]
        rows.append([f"{side.name}: CPU ms", *map(_short, row)])
    for side in sides:
        rows.append([f"{side.name}: LM calls", *(str(times[side.name, k][0].calls) for k in KS)])
        if not isinstance(side, Peer) or side.agent:
            rows.append([f"{side.name}: retrieve, ms", *(_short([t.before for t in times[side.name, k]]) for k in KS)])
    title = f"{what}, rollouts of {steps} step(s), {rounds} rounds; the language model alone takes {ideal:.0f} ms"
    table(title, ["", *(f"k = {k}" for k in KS)], rows)
    for side in sides:
        if isinstance(side, Ours):
            name = f"{side.name}, {what}, {steps} step(s)"
            grown = _ratio(times[side.name, 16], times[side.name, 2])
            bounds.append(Bound(f"{name}: k = 16, x k = 2", grown, GROWTH[steps]))
            for peer in sides:
                if isinstance(peer, Peer):
                    for k in KS[1:]:
                        bounds += _beside(peer, f"{name}, k = {k}", times[side.name, k], times[peer.name, k])
    return bounds


def _beside(peer: Peer, name: str, mine: Sequence[Took], theirs: Sequence[Took]) -> list[Bound]:
    """Ours in times of the peer."""
    bounds = [Bound(f"{name}: x {peer.name}", _ratio(mine, theirs), 1.0)]
    if peer.agent:
        bare = [_without(took) for took in theirs]
        both = _ratio([_without(took) for took in mine], bare)
        bounds.append(Bound(f"{name}: x that, both without retrieving", both, 1.0))
        bounds.append(Bound(f"{name}: x that without its retrieve", _ratio(mine, bare), 1.0))
    return bounds


def _without(took: Took) -> Took:
    """As if retrieving took no time."""
    return took._replace(wall=took.wall - took.before)


def _ratio(mine: Sequence[Took], other: Sequence[Took]) -> float:
    return statistics.median(a.wall for a in mine) / statistics.median(b.wall for b in other)


def _short(values: Sequence[float]) -> str:
    return spread(values, 1)


if __name__ == "__main__":
    main()
