"""Ten real tasks with the embedded 1.5b model, each scaled three times: pass@1, best-of-n, pass@3, in two modes.

    python experiments/matts/ten_tasks.py [--tasks 10] [--k 3] [--seed 1] [--modes parallel,sequential] [--out FILE]

Reasoning-gym questions of families of which the model was seen to solve some; the tasks are the same in every mode, and
each mode has a fresh bank in memory. Prints one line a task and a table a mode; ``--out`` keeps everything as JSON.
Ten tasks are far too few to tell modes apart: nothing here claims that scaling, or memory, helps.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections import Counter
from pathlib import Path
from typing import Any

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

from rb_dspy import BackboneConfig, Backbones, MemoryBank, ReasoningBank, TaskResult, TaskStream, run_stream
from rb_dspy.config import (
    ActConfig,
    ContrastConfig,
    DistillConfig,
    JudgeConfig,
    MattsConfig,
    MattsMode,
    ProgramConfig,
    RefineConfig,
    SelectConfig,
)
from rb_dspy.matts import MaTTS
from rb_dspy.schema import Outcome, Verdict
from rb_dspy.stream import RunReport, Scaling

TEMPLATES = (
    "needle_haystack",
    "number_format",
    "number_sequence",
    "chain_sum",
    "group_anagrams",
    "binary_alternation",
)
"""Families of which the model solved some (``experiments/LOG.md``, three wordings of the agent's instruction)."""


def main() -> None:
    """Run every mode, and print."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--tasks", type=int, default=10)
    options.add_argument("--k", type=int, default=3)
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--model", default="local/qwen2.5-coder-1.5b")
    options.add_argument("--modes", default="parallel,sequential", help="comma-separated")
    options.add_argument("--templates", default=",".join(TEMPLATES), help="families, comma-separated")
    options.add_argument("--tokens", type=int, default=400, help="cap of a turn of the agent; others in proportion")
    options.add_argument("--threads", type=int, help="CPU threads of the model; default: as many as there are cores")
    options.add_argument("--out", type=Path, help="write all results to this JSON file, after every task")
    chosen = options.parse_args()
    steps, scaling = capped(chosen.tokens)
    backbone = BackboneConfig(model=chosen.model, threads=chosen.threads)
    program = ReasoningBank(steps, backbones=Backbones(agent=backbone))
    stream = TaskStream.named("reasoning-gym", n=chosen.tasks, seed=chosen.seed, templates=chosen.templates.split(","))
    kept: dict[str, Any] = {"options": {**vars(chosen), "out": None}, "modes": {}}
    for mode in chosen.modes.split(","):
        scaled = MaTTS(program, k=chosen.k, mode=mode, config=scaling)
        rows: list[dict[str, Any]] = []
        kept["modes"][mode] = {"tasks": rows}
        print(f"\n{mode}, k = {chosen.k}, {chosen.model}", flush=True)
        started = time.perf_counter()

        def on_result(result: TaskResult, rows: list[dict[str, Any]] = rows, mode: MattsMode = mode) -> None:
            show(result, mode)
            rows.append(as_json(result))
            if chosen.out:
                chosen.out.write_text(json.dumps(kept, indent=1))

        with MemoryBank.open(None, scope="experiment") as bank:
            report = run_stream(scaled, stream, bank, run_id=f"ten-{mode}", on_result=on_result)
        minutes = (time.perf_counter() - started) / 60
        kept["modes"][mode] |= {"summary": report.summary().model_dump(mode="json"), "minutes": minutes}
        if chosen.out:
            chosen.out.write_text(json.dumps(kept, indent=1))
        table(report, minutes)


def capped(tokens: int) -> tuple[ProgramConfig, MattsConfig]:
    """What each step may write: the paper's settings but for the caps, which keep a small machine's hours down."""
    steps = ProgramConfig(
        act=ActConfig(max_tokens=tokens),
        judge=JudgeConfig(max_tokens=tokens * 2 // 3),
        distill=DistillConfig(max_tokens=tokens * 3 // 2),
    )
    scaling = MattsConfig(
        contrast=ContrastConfig(max_tokens=tokens * 2),
        select=SelectConfig(max_tokens=tokens * 2 // 3),
        refine=RefineConfig(max_tokens=tokens * 2 // 3),
    )
    return steps, scaling


def table(report: RunReport, minutes: float) -> None:
    """The run in numbers."""
    summary = report.summary()
    print(f"\ntasks, infrastructure errors       {summary.tasks}, {summary.infrastructure_errors}")
    if summary.scaling is not None:
        for name, value in _rows(summary.scaling):
            print(f"{name:34} {value}")
    said = [pair for result in report.results for pair in judged(result)]
    counts = Counter((verdict.label, outcome.success) for verdict, outcome in said)
    right = counts["success", True] + counts["failure", False]
    print(f"judge right, of all rollouts       {right} of {len(said)}")
    print("judge \\ truth      solved  not solved")
    for label in ("success", "failure", "unknown"):
        print(f"{label:15}    {counts[label, True]:6}  {counts[label, False]:10}")
    for role, used in summary.usage.items():
        print(
            f"{role:10} {used.calls:4} calls  {used.prompt_tokens:8,} prompt tokens  {used.completion_tokens:7,} output"
            f" tokens  {used.seconds / 60:6.1f} min"
        )
    print(f"lessons admitted                   {summary.items}")
    print(f"minutes                            {minutes:.1f}", flush=True)


def _rows(scaling: Scaling) -> list[tuple[str, str]]:
    rows = [(f"pass@{at.j}", f"{at.rate:.3f} of {at.tasks} tasks") for at in scaling.pass_at]
    if scaling.compared:
        rows += [
            ("best of n: handed in and solved", f"{scaling.handed_in} of {scaling.compared}"),
            ("oracle: some rollout solved", f"{scaling.solvable} of {scaling.compared}"),
            ("selector's gap to the oracle", f"{scaling.selector_gap:.3f}"),
        ]
    if scaling.passes is not None:
        passes = scaling.passes
        rows += [
            ("solved after the first pass", f"{passes.after_first} of {passes.tasks}"),
            ("solved after the last pass", f"{passes.after_last} of {passes.tasks}"),
            ("solved after any pass", f"{passes.after_any} of {passes.tasks}"),
        ]
    rows.append(("distinct trajectories, mean", f"{scaling.mean_distinct:.2f}"))
    rows.append(("launched, lost, saved", f"{scaling.launched}, {scaling.lost}, {scaling.saved}"))
    return rows


def judged(result: TaskResult) -> list[tuple[Verdict, Outcome]]:
    """Each rollout's verdict beside its ground truth, where there is one."""
    if result.prediction is None:
        return []
    pairs = zip(result.prediction.verdicts, result.outcomes, strict=True)
    return [(verdict, outcome) for verdict, outcome in pairs if outcome is not None]


def show(result: TaskResult, mode: MattsMode) -> None:
    """One line a task: a mark for each rollout, or pass, and which rollout was handed in."""
    if result.prediction is None:
        print(f"{result.task.id:38} broke: {result.error}", flush=True)
        return
    done, reached = result.prediction, result.passes if mode == "sequential" else result.outcomes
    marks = "".join("?" if outcome is None else "+" if outcome.success else "-" for outcome in reached)
    verdicts = "".join({"success": "+", "failure": "-"}.get(verdict.label, "?") for verdict in done.verdicts)
    final = "?" if result.outcome is None else "solved" if result.outcome.success else "not solved"
    seconds = sum(used.seconds for used in result.usage.values())
    print(
        f"{result.task.id:38} truth {marks:4} judge {verdicts:4} handed in {done.trajectory.rollout_id}: {final:10}"
        f" {len(done.lost)} lost, {len(done.memory_items)} lessons {seconds:6.0f} s",
        flush=True,
    )


def as_json(result: TaskResult) -> dict[str, Any]:
    """Everything that came of a task."""
    row: dict[str, Any] = {"task": result.task.model_dump(mode="json"), "error": result.error}
    row["usage"] = {role: used.model_dump() for role, used in result.usage.items()}
    if result.prediction is None:
        return row
    done = result.prediction

    def plain(outcomes: Any) -> list[Any]:
        return [outcome and outcome.model_dump(mode="json") for outcome in outcomes]

    return row | {
        "trajectories": [trajectory.model_dump(mode="json") for trajectory in done.trajectories],
        "verdicts": [verdict.model_dump(mode="json") for verdict in done.verdicts],
        "outcomes": plain(result.outcomes),
        "passes": plain(result.passes),
        "handed_in": done.trajectory.rollout_id,
        "selection": {"analysis": done.selection.analysis, "votes": done.selection.votes, "note": done.selection.note},
        "lost": [vars(lost) for lost in done.lost],
        "shown": done.memory.block,
        "lessons": [
            item.model_dump(mode="json", include={"title", "description", "content"}) for item in done.memory_items
        ],
        "note": done.experience.note,
    }


if __name__ == "__main__":
    main()
