"""How long many streams in parallel take, beside one stream alone: ``python experiments/machines.py [--postgres URL]``.

48 streams of ten tasks; every call of the scripted language model takes 50 ms (plumbing: no model is measured). The
bank of each stream is an SQLite file; with ``--postgres`` also a scope of that database.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from typing import Any

from rb_dspy import Backbones, ReasoningBank, Task, evaluate
from rb_dspy.testing import HashEmbedder, Prompt, Reply, scripted_lm

TASKS = [Task(id=f"t{n}", instruction=f"What is {n} + {n}?", env_args={"answer": str(2 * n)}) for n in range(10)]


def script(prompt: Prompt) -> Reply:
    if "action" in prompt.wants:
        return {"thought": "Easy.", "action": str(2 * int(prompt["task"].split()[2]))}
    if "label" in prompt.wants:
        return {"reasons": "Right.", "label": "success"}
    return {
        "analysis": "So.",
        "memory_items": [{"title": f"Sum {len(prompt.text)}", "description": "", "content": "x"}],
    }


def seconds(place: str | None, orders: int, jobs: int) -> float:
    """Of an evaluation of two arms that learn."""
    program: Any = ReasoningBank(backbones=Backbones(agent=scripted_lm(script, latency=0.05)))
    arms: Any = ["bank", "success_only"]
    with tempfile.TemporaryDirectory() as folder:
        started = time.monotonic()
        evaluate(
            arms, TASKS, program=program, orders=orders, jobs=jobs, embedder=HashEmbedder(), folder=place or folder
        )
        return time.monotonic() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--postgres", metavar="URL", help="an empty database")
    given = parser.parse_args()
    seconds(None, 1, 1)  # imports
    for name, place in (("SQLite", None), ("PostgreSQL", given.postgres)):
        if name == "SQLite" or place:
            alone = seconds(None, 1, 1) / 2
            many = seconds(place, 24, 48)
            print(f"{name}: one stream {alone:.2f} s, 48 streams with --jobs 48 {many:.2f} s, {many / alone:.2f} x")


if __name__ == "__main__":
    main()
