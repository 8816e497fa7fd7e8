"""What tracking costs: CPU time of a call of a language model, with a run and its traces, with a run only, and off.

The same tasks are done by the same program with the same instant language model, in one process, in turns of three.
The time is the whole process's, so the thread that writes traces is in it, to the last trace. Begin and end of a run
(parameters, pictures, files) are not: they do not grow with the calls.
With ``--apart`` tasks end so many seconds one after the other, as with a language model that takes its time; then fewer
traces are written together, and all code is colder.
With ``--autolog`` MLflow's own tracing of dspy is measured in the same way, for comparison.

    python experiments/tracking/overhead.py [--tasks 12] [--steps 8] [--rounds 7] [--apart 0] [--autolog]
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

from rb_dspy import Backbones, MemoryBank, ReasoningBank, Task, TaskResult, TaskStream, run_stream
from rb_dspy.config import TrackingConfig
from rb_dspy.testing import Corridor, HashEmbedder, Prompt, Reply, scripted_lm
from rb_dspy.tracking import Tracker


def answers(prompt: Prompt) -> Reply:
    """An instant model."""
    if "action" in prompt.wants:
        return {"thought": "The end is ahead, so the next step is forward.", "action": "forward"}
    if "label" in prompt.wants:
        return {"reasons": "The last observation says so.", "label": "success"}
    lesson = {"title": "Keep going", "description": "In corridors.", "content": "Go forward until you are through."}
    return {"analysis": "It kept going.", "memory_items": [lesson]}


def main() -> None:
    """Measure and print."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--tasks", type=int, default=12)
    options.add_argument("--steps", type=int, default=8)
    options.add_argument("--rounds", type=int, default=7)
    options.add_argument("--apart", type=float, default=0.0)
    options.add_argument("--autolog", action="store_true")
    chosen = options.parse_args()
    lm = scripted_lm(answers)
    program = ReasoningBank(backbones=Backbones(agent=lm), environments=Corridor.make)
    args = {"length": chosen.steps}
    tasks = tuple(
        Task(id=f"corridor/{n}", instruction=f"Walk through corridor {n}.", env_args=args) for n in range(chosen.tasks)
    )
    stream = TaskStream("corridors", tasks)
    calls = chosen.tasks * (chosen.steps + 2)

    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        uri = f"sqlite:///{Path(folder) / 'tracking.db'}"
        trackers = {
            "none": None,
            "off": Tracker(TrackingConfig(enabled=False)),
            "run": Tracker(TrackingConfig(uri=uri, traces=False)),
            "run and traces": Tracker(TrackingConfig(uri=uri)),
        }
        spent: dict[str, list[float]] = {name: [] for name in trackers}
        for number in range(chosen.rounds + 1):
            for name, tracker in trackers.items():
                lm.engine.prompts.clear()
                used = one(program, stream, tracker, f"{name}-{number}", chosen.apart)
                if number:  # the first round fills caches of all
                    spent[name].append(used / calls)
        if chosen.autolog:
            spent["mlflow autolog"] = [used / calls for used in autolog(program, stream, uri, chosen.rounds)]
    bare = spent["none"]
    print(f"{calls} calls a run, {chosen.rounds} rounds; CPU ms a call: median [quartiles], and above no tracking")
    for name, times in spent.items():
        more = [time - base for time, base in zip(times, bare, strict=True)]
        share = statistics.median(more) / statistics.median(bare)
        print(f"{name:15} {spread(times)}   {statistics.median(more):+.3f} ms   {share:+.1%}")


def one(program: ReasoningBank, stream: TaskStream, tracker: Tracker | None, run_id: str, apart: float) -> float:
    """CPU milliseconds of a run, from its first task until its traces are written."""
    with MemoryBank.open(None, scope="bench", embedder=HashEmbedder()) as bank:
        if tracker is None:
            started = time.process_time()
            run_stream(program, stream, bank, run_id=run_id, on_result=lambda result: time.sleep(apart))
            return (time.process_time() - started) * 1000
        with tracker.stream_run(program, stream, bank, run_id=run_id) as run:

            def done(result: TaskResult) -> None:
                run.on_result(result)
                time.sleep(apart)

            started = time.process_time()
            run_stream(program, stream, bank, run_id=run_id, on_result=done)
            if tracker.config.enabled and run._traces:
                run._traces._writer.close()
            return (time.process_time() - started) * 1000


def autolog(program: ReasoningBank, stream: TaskStream, uri: str, rounds: int) -> list[float]:
    """CPU milliseconds of runs that MLflow's autologging traces."""
    import mlflow

    mlflow.set_tracking_uri(uri)
    folder = Path(uri.removeprefix("sqlite:///")).parent
    mlflow.set_experiment(experiment_id=mlflow.create_experiment("autolog", artifact_location=folder.as_uri()))
    mlflow.dspy.autolog(silent=True)
    found = []
    for number in range(rounds + 1):
        with MemoryBank.open(None, scope="bench", embedder=HashEmbedder()) as bank:
            started = time.process_time()
            run_stream(program, stream, bank, run_id=f"autolog-{number}")
            mlflow.flush_trace_async_logging()
            found.append((time.process_time() - started) * 1000)
    mlflow.dspy.autolog(disable=True)
    return found[1:]


def spread(values: list[float]) -> str:
    """Median and quartiles."""
    low, middle, high = statistics.quantiles(values, n=4)
    return f"{middle:.2f} [{low:.2f}, {high:.2f}]"


if __name__ == "__main__":
    main()
