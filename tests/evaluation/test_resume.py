"""An evaluation that is killed and started again gives the report of one that was not."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from rb_dspy import MemoryBank, evaluate
from rb_dspy.errors import InputError
from rb_dspy.evaluation import Progress, Report
from rb_dspy.evaluation.records import read_records
from rb_dspy.testing import HashEmbedder, Prompt, Reply, locks, locksmith, scripted_program as program
from tests.evaluation.test_evaluate import without_times

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")

TASKS, ORDERS = 6, 2
TOTAL = TASKS + TASKS * ORDERS

KILLED = """
import json, os, sys
from rb_dspy import MemoryBank, evaluate
from rb_dspy.testing import HashEmbedder, locks, locksmith, scripted_program as program

def dying(wants, number):
    asked = 0
    def script(prompt):
        nonlocal asked
        asked += wants in prompt.wants
        if asked == number:
            os._exit(9)
        return locksmith(prompt)
    return script

def end(number):
    return lambda progress: os._exit(9) if progress.done == number else print("done", flush=True)

for folder, kind, number in json.loads(sys.argv[1]):
    if os.fork() == 0:
        script = locksmith if kind == "done" else dying(kind, number)
        options = {"on_progress": end(number)} if kind == "done" else {}
        options = {"on_progress": lambda progress: print("done", flush=True), **options}
        evaluate(["none", "bank"], locks(%d), program=program(script), orders=%d, embedder=HashEmbedder(),
                 folder=folder, **options)
        os._exit(0)
    print(os.WEXITSTATUS(os.wait()[1]))
""" % (TASKS, ORDERS)  # noqa: UP031


def start(jobs: list[tuple[str, str, int]]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", KILLED, json.dumps(jobs)], stdout=subprocess.PIPE, text=True, start_new_session=True
    )


def resumed(folder: Path | None, **options: Any) -> dict[str, Any]:
    options = {"program": program(), "orders": ORDERS, "embedder": HashEmbedder(), "folder": folder, **options}
    return without_times(evaluate(["none", "bank"], locks(TASKS), **options))


def newest(folder: Path) -> Path:
    """The records that were written last."""
    return max((folder / "runs").glob("*.?-?.jsonl"), key=lambda path: path.stat().st_mtime_ns)


@pytest.fixture(scope="module")
def expected() -> dict[str, Any]:
    return resumed(None)


def test_killed_at_random_points(tmp_path: Path, expected: dict[str, Any]) -> None:
    """After a task, while the judge is asked, while the distiller is asked, and while a record is written."""
    rng = random.Random(27)
    points = [
        ("done", rng.randrange(1, TASKS)),
        ("label", rng.randrange(1, TASKS * ORDERS)),
        ("memory_items", rng.randrange(1, TASKS * ORDERS)),
        ("done", rng.randrange(TASKS + 2, TOTAL - 1)),
        ("done", rng.randrange(TASKS + 2, TOTAL - 1)),
    ]
    folders = [tmp_path / str(number) for number in range(len(points))]
    process = start([(str(folder), *point) for folder, point in zip(folders, points, strict=True)])
    output, _ = process.communicate(timeout=120)
    assert output.split().count("9") == len(points)
    records = newest(folders[-1])
    records.write_bytes(records.read_bytes()[:-20])  # killed while the record was written
    records = newest(folders[-2])
    whole = records.read_bytes()[:-1]
    records.write_bytes(whole[: whole.rfind(b"\n") + 1])  # killed before the record was written
    for folder in folders:
        assert resumed(folder) == expected
        assert without_times(Report.load(folder)) == expected
        assert len(read_records(folder)) == TOTAL


def test_a_task_that_is_done_again_is_learned_from_once(tmp_path: Path) -> None:
    def again(prompt: Prompt) -> Reply:
        return {"thought": "Again.", "action": "0000"} if "action" in prompt.wants else locksmith(prompt)

    resumed(tmp_path)
    (records,) = (tmp_path / "runs").glob("*.1-1.jsonl")
    *lines, last = records.read_text().splitlines(keepends=True)
    records.write_text("".join(lines))  # killed after the bank had learned, before the record was written
    resumed(tmp_path, program=program(again))
    with MemoryBank.open(tmp_path / "banks" / "1-1.sqlite", scope="evaluation", embedder=HashEmbedder()) as bank:
        (learned,) = (each for each in bank.experiences() if each.task.id == json.loads(last)["task"])
        assert learned.trajectories[0].steps[0].thought == "Again."


@pytest.mark.stress
def test_killed_from_outside_twice(tmp_path: Path, expected: dict[str, Any]) -> None:
    for number in (2, 5):
        process = start([(str(tmp_path), "done", 0)])
        assert process.stdout is not None
        for _ in range(number):
            assert process.stdout.readline() == "done\n"
        time.sleep(0.01 * number)
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    assert resumed(tmp_path) == expected


def test_a_bank_that_was_removed_is_noticed(tmp_path: Path) -> None:
    def stop(progress: Progress) -> None:
        if progress.done == TOTAL - 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        resumed(tmp_path, on_progress=stop)
    for file in (tmp_path / "banks").iterdir():
        file.unlink()
    with pytest.raises(InputError, match="pass another folder"):
        resumed(tmp_path)
