"""How long the event loop stands still while 16 lessons are being stored at once, with the real embedder.

    python experiments/bank/stall.py [--ingests 16] [--rounds 20]

A task on the loop sleeps for a millisecond again and again; what it sleeps longer than that, the loop was held up.
Bound: 50 ms. The embedder is loaded before.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from pathlib import Path

import numpy as np

from rb_dspy.bank import MemoryBank
from rb_dspy.schema import MemoryDraft, Step, Task, Trajectory, Verdict

NAP = 0.001


async def held_up(stop: asyncio.Event) -> list[float]:
    """Milliseconds that each nap took too long."""
    late = []
    while not stop.is_set():
        begun = time.perf_counter()
        await asyncio.sleep(NAP)
        late.append((time.perf_counter() - begun - NAP) * 1000)
    return late


async def stored(bank: MemoryBank, number: int) -> None:
    """One rollout: kept, judged, distilled, admitted, and found again."""
    task = Task(id=f"t{number}", instruction=f"Put shirt {number} into the wardrobe of room {number % 7}.")
    rollout = Trajectory(
        task_id=task.id, steps=tuple(Step(action=f"look {n}", observation="Nothing.") for n in range(20))
    )
    drafts = [
        MemoryDraft(title=f"Look {n} first", description=f"When room {number} is new.", content="Look around. " * 20)
        for n in range(3)
    ]
    await bank.aappend(task, rollout, Verdict(label="success"), drafts, run_id="stall")
    await bank.aretrieve(task.instruction, k=3)


async def measure(bank: MemoryBank, ingests: int, rounds: int) -> list[float]:
    """The naps of all rounds."""
    stop = asyncio.Event()
    watch = asyncio.create_task(held_up(stop))
    for turn in range(rounds):
        await asyncio.gather(*(stored(bank, turn * ingests + number) for number in range(ingests)))
    stop.set()
    return await watch


def main() -> None:
    """Print the table."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--ingests", type=int, default=16)
    options.add_argument("--rounds", type=int, default=20)
    given = options.parse_args()
    with tempfile.TemporaryDirectory() as folder, MemoryBank.open(Path(folder) / "b.sqlite", scope="stall") as bank:
        asyncio.run(stored(bank, -1))
        late = np.array(asyncio.run(measure(bank, given.ingests, given.rounds)))
    print(f"{given.ingests} ingests at once, {given.rounds} rounds, {len(late)} naps of 1 ms; held up by, in ms:")
    print("| p50 | p99 | longest | bound |\n|---|---|---|---|")
    print(f"| {np.median(late):.2f} | {np.quantile(late, 0.99):.1f} | {late.max():.1f} | 50 |")


if __name__ == "__main__":
    main()
