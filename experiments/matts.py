"""The overhead of MaTTS and the loop with a language model that takes 50 ms per call.

Run: ``python experiments/matts.py``. Prints the wall time of a task with k rollouts, as a ratio to k = 2, and the
CPU of a 10-step episode beside that of its bare dspy calls with the same prompts.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")

import dspy

from rb_dspy import MaTTS, MemoryBank, signatures
from rb_dspy.testing import HashEmbedder, corridor, locksmith, scripted_lm, scripted_program

LATENCY = 0.05
STEPS = 10
ROUNDS = 7


def median(run: Callable[[int], object], clock: Callable[[], float]) -> float:
    """Seconds of ``run`` by ``clock``, the median of ``ROUNDS`` after one to warm up."""
    seconds = []
    for number in range(ROUNDS + 1):
        started = clock()
        run(number)
        seconds.append(clock() - started)
    return statistics.median(seconds[1:])


def scaled(k: int) -> float:
    """Wall seconds of one task with ``k`` rollouts."""
    program = scripted_program(latency=LATENCY)
    bank = MemoryBank.open(None, scope="bench", embedder=HashEmbedder())
    matts = MaTTS(program, k=k)
    return median(lambda number: matts(task=corridor(number, 2), bank=bank.fork()), time.perf_counter)


def episode() -> tuple[float, float]:
    """CPU seconds of an episode, and of its bare dspy calls."""
    program = scripted_program()
    bank = MemoryBank.open(None, scope="bench", embedder=HashEmbedder())
    with dspy.context(disable_history=True):
        ours = median(lambda number: program(task=corridor(number, STEPS), bank=bank, learn=False), time.process_time)
    predict = dspy.Predict(signatures.Act)
    lm = scripted_lm(locksmith)

    def bare(_: int) -> None:
        turns: list[dict[str, Any]] = []
        turn: dict[str, Any] = {
            "task": "Walk.",
            "memory": "(no lessons yet)",
            "action_rules": "one of the listed actions",
        }
        for _ in range(STEPS):
            turn |= {"observation": "You are in a room.", "valid_actions": ["forward", "back", "wait"]}
            said = predict(**turn, history=dspy.History(messages=list(turns)))
            turns.append({**turn, "thought": said.thought, "action": said.action})
            turn = {}

    with dspy.context(lm=lm, disable_history=True):
        return ours, median(bare, time.process_time)


def main() -> None:
    """Measure and print."""
    seconds = {k: scaled(k) for k in (1, 2, 4, 8, 16)}
    for k, each in seconds.items():
        print(f"k = {k:2}: {1000 * each:5.0f} ms, {each / seconds[2]:.2f} x k = 2")
    ours, bare = episode()
    ratio = f"{ours / bare:.2f} x its bare dspy calls ({1000 * bare:.1f} ms)"
    print(f"episode of {STEPS} steps: {1000 * ours:.1f} ms CPU, {ratio}")


if __name__ == "__main__":
    main()
