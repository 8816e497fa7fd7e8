"""How an arm does a stream, and what is kept of it."""

from __future__ import annotations

import json
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from rb_dspy import (
    BackboneConfig,
    Backbones,
    MemoryBank,
    ProgramConfig,
    ReasoningBank,
    RetrieveConfig,
    Task,
    TaskResult,
    TaskStream,
    Trajectory,
    Verdict,
    make_environment,
    run_stream,
)
from rb_dspy.environments.reasoning_gym import ReasoningGym

ARMS = ("off", "bank", "truth", "again")
_writing = threading.Lock()


def screen(backbone: BackboneConfig, out: Path, *, of: Sequence[str], each: int, seed: int, at_once: int) -> None:
    """A stream of each family, of all where none is named, without memory; one that is there stays as it is."""
    streams = {
        name: TaskStream.named("reasoning-gym", n=each, seed=seed, templates=[name])
        for name in of or ReasoningGym().templates()
    }
    _all(backbone, out / "screen", [("off", name, stream) for name, stream in streams.items()], at_once)


def chosen_families(
    out: Path, most: int, edges: tuple[float, float], each: int
) -> tuple[list[str], dict[str, tuple[int, int]]]:
    """The families that the screen leaves, by name, and how many tasks of each family were solved there.

    One whose ``each`` tasks are not all done is left out: it takes too long.
    """
    rows = read(out / "screen")
    rates = {name: (sum(row["solved"] is True for row in found), len(found)) for (_, name), found in rows.items()}
    share = {name: solved / asked for name, (solved, asked) in rates.items() if asked >= each}
    middle = sorted(
        (name for name in share if edges[0] <= share[name] <= edges[1]), key=lambda name: (abs(share[name] - 0.5), name)
    )
    return sorted(middle[:most]), dict(sorted(rates.items(), key=lambda each: (-each[1][0], each[0])))


def run(
    backbone: BackboneConfig,
    out: Path,
    *,
    arms: Sequence[str],
    families: Sequence[str],
    tasks: int,
    orders: range,
    seed: int,
    at_once: int,
) -> None:
    """All streams of the arms, some at the same time."""
    stream = TaskStream.named("reasoning-gym", n=tasks, seed=seed, templates=families)
    first, *others = (stream.permuted(number) for number in range(max(1, orders.stop)))
    ordered = [first, first.reversed(), first.grouped(), *others]
    print(f"{len(stream)} tasks {stream.digest}, orders {orders}, arms {', '.join(arms)}", flush=True)
    jobs = [(arm, f"{number:02}", ordered[number]) for number in orders for arm in arms]
    _all(backbone, out / "run", jobs, at_once)


def read(folder: Path) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """Arm and order -> its rows, by position."""
    found = defaultdict(list)
    for path in sorted(folder.glob("*.jsonl")):
        arm, order = path.stem.split("-", 1)
        for line in path.read_text(encoding="utf-8").splitlines():
            found[arm, order].append(json.loads(line))
    return dict(found)


def _all(backbone: BackboneConfig, folder: Path, jobs: Sequence[tuple[str, str, TaskStream]], at_once: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as spare, MemoryBank.open(f"{spare}/bank.sqlite", scope="help") as bank:
        bank.retrieve("is everything installed that a bank needs?")  # before hours are spent on the arms without one
    backbones = Backbones(agent=backbone)
    with ThreadPoolExecutor(at_once) as pool:
        for done in [pool.submit(_stream, backbones, folder, *job) for job in jobs]:
            done.result()


def _stream(backbones: Backbones, folder: Path, arm: str, order: str, stream: TaskStream) -> None:
    """One arm over one order, from where it was."""
    path = folder / f"{arm}-{order}.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    done = {json.loads(line)["task"] for line in lines}
    place = {task.id: position for position, task in enumerate(stream)}
    if not done <= place.keys():
        raise SystemExit(f"{path} holds other tasks; give a folder of its own to each choice of tasks and seed")
    if len(done) == len(stream):
        return
    program, learn = _program(arm, backbones, stream), arm in ("bank", "truth")
    started = time.time()

    def note(result: TaskResult) -> None:
        row = {"position": place[result.task.id], "at": round(time.time() - started, 1), **_row(result)}
        with _writing, path.open("a", encoding="utf-8") as file:
            print(json.dumps(row), file=file)

    def known(task: Task) -> bool:
        return task.id in done

    with MemoryBank.open(folder / f"{arm}-{order}.sqlite" if learn else None, scope="help") as bank:
        run_stream(program, stream, bank, run_id=f"{arm}-{order}", learn=learn, on_result=note, skip=known)
    print(f"{arm} {order}: {time.time() - started:.0f} s", flush=True)


def _program(arm: str, backbones: Backbones, stream: TaskStream) -> ReasoningBank:
    if arm in ("off", "again"):
        return ReasoningBank(ProgramConfig(retrieve=RetrieveConfig(k=0)), backbones=backbones)
    return ReasoningBank(backbones=backbones, judge=truth_of(stream) if arm == "truth" else None)


def truth_of(stream: TaskStream) -> Callable[[Task, Trajectory], Verdict]:
    """A judge that knows. It is handed the task without what tells the answer, and looks that up by its id."""
    tasks = {task.id: task for task in stream}

    def judge(task: Task, trajectory: Trajectory) -> Verdict:
        if solved(tasks[task.id], trajectory):
            return Verdict(label="success", reasons="The answer was compared with the right one: it is right.")
        return Verdict(label="failure", reasons="The answer was compared with the right one: it is wrong.")

    return judge


def solved(task: Task, trajectory: Trajectory) -> bool:
    """Whether the answer is right: a single-turn environment says so of any answer, whenever it is given."""
    if trajectory.answer is None:
        return False
    environment = make_environment(task, trajectory.rollout_id)
    try:
        environment.reset(task)
        environment.step(trajectory.answer)
        outcome = environment.outcome()
        return outcome is not None and outcome.success
    finally:
        environment.close()


def _row(result: TaskResult) -> dict[str, Any]:
    """The result, and what a table of roles, lessons and parsing needs."""
    row = result.row()
    found = result.prediction
    if result.resumed and found is not None:  # it waited in the bank since the process before this one ended
        row["solved"] = solved(result.task, found.trajectory)
    shown = () if found is None else found.memory.items
    return row | {
        "usage": {role: used.model_dump() for role, used in result.usage.items()},
        "unreadable_by": dict(result.unreadable),
        "stop": None if found is None else found.trajectory.stop_reason,
        "thought": None if found is None or not found.trajectory.steps else found.trajectory.steps[0].thought,
        "proposed": result.proposed,
        "dropped": dict(result.dropped),
        "shown_from": [item.provenance.task_id for item in shown],
        "shown_of": [item.polarity for item in shown],
        "lessons": [] if found is None else [[item.title, item.content] for item in found.memory_items],
    }
