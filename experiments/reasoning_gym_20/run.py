"""Twenty reasoning-gym tasks with the embedded 1.5b model: does everything parse, and how right is the judge?

    python experiments/reasoning_gym_20/run.py [--tasks 20] [--model local/qwen2.5-coder-1.5b] [--seed 1]

A fresh bank in memory. Prints one line a task and the counts; nothing here claims that memory helps.
"""

from __future__ import annotations

import argparse
import os
import time
from collections import Counter

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

from rb_dspy import Backbones, MemoryBank, ReasoningBank, TaskResult, TaskStream, run_stream


def main() -> None:
    """Run and print."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--tasks", type=int, default=20)
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--model", default="local/qwen2.5-coder-1.5b")
    options.add_argument("--stream", default="reasoning-gym-small")
    chosen = options.parse_args()
    program = ReasoningBank(backbones=Backbones(agent=chosen.model))
    stream = TaskStream.named(chosen.stream, n=chosen.tasks, seed=chosen.seed)
    started = time.perf_counter()
    with MemoryBank.open(None, scope="experiment") as bank:
        report = run_stream(program, stream, bank, run_id="reasoning-gym-20", on_result=show)
    done = [result for result in report.results if result.prediction is not None]
    table = Counter(
        (result.prediction.verdict.label, result.outcome.success) for result in done if result.outcome is not None
    )
    summary = report.summary()
    print(f"\n{chosen.model}, {len(stream)} tasks, {time.perf_counter() - started:.0f} s")
    print(f"infrastructure errors            {summary.infrastructure_errors}")
    print(
        f"verdicts that parsed             {sum(r.prediction.verdict.label != 'unknown' for r in done)} of {len(done)}"
    )
    parsed = sum("could not be read" not in result.prediction.experience.note for result in done)
    print(f"distillations that parsed        {parsed} of {len(done)}")
    print(f"lessons admitted                 {summary.items}")
    print(f"solved (ground truth)            {summary.solved} of {summary.scored}")
    print(f"judge agrees with ground truth   {summary.agreements} of {summary.judged}")
    print("judge \\ truth      solved  not solved")
    for label in ("success", "failure", "unknown"):
        print(f"{label:15}    {table[label, True]:6}  {table[label, False]:10}")
    for role, used in summary.usage.items():
        print(
            f"{role:10} {used.calls:4} calls  {used.prompt_tokens:7,} prompt tokens  {used.completion_tokens:6,} output"
            f" tokens  {used.seconds:6.1f} s"
        )


def show(result: TaskResult) -> None:
    """One line a task."""
    if result.prediction is None:
        print(f"{result.task.id:45} broke: {result.error}", flush=True)
        return
    truth = "?" if result.outcome is None else "solved" if result.outcome.success else "not solved"
    verdict, seconds = result.prediction.verdict.label, sum(u.seconds for u in result.prediction.usage.values())
    lessons = len(result.prediction.memory_items)
    print(f"{result.task.id:45} {verdict:8} {truth:10} {lessons} lessons {seconds:6.1f} s", flush=True)


if __name__ == "__main__":
    main()
