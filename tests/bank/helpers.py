"""Short ways to make tasks, rollouts and banks."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rb_dspy.bank import MemoryBank
from rb_dspy.schema import Experience, MemoryDraft, Step, Task, Trajectory, Verdict
from rb_dspy.testing.embedder import HashEmbedder


def open_bank(url: str | Path | None = None, scope: str = "s", **kwargs: Any) -> MemoryBank:
    return MemoryBank.open(url, scope=scope, **{"embedder": HashEmbedder()} | kwargs)


def a_task(id: str = "t1", instruction: str = "sort the numbers", **kwargs: Any) -> Task:
    return Task(id=id, instruction=instruction, **kwargs)


def a_rollout(task_id: str = "t1", rollout_id: str = "0", action: str = "look", observation: str = "ok") -> Trajectory:
    return Trajectory(
        task_id=task_id, rollout_id=rollout_id, steps=(Step(thought="hm", action=action, observation=observation),)
    )


def a_draft(title: str = "Read first", content: str = "Read the whole page before acting.") -> MemoryDraft:
    return MemoryDraft(title=title, description="when a page is long", content=content)


def add(
    bank: MemoryBank, id: str = "t1", instruction: str = "sort the numbers", lessons: int = 1, **kwargs: Any
) -> Experience:
    """Append a made-up success of a task, with ``lessons`` items."""
    label = kwargs.pop("label", "success")
    drafts = [a_draft(f"Lesson {number} of {id}") for number in range(lessons)]
    task = a_task(id, instruction, template=kwargs.pop("template", None))
    return bank.append(task, a_rollout(id), Verdict(label=label, reasons="seen"), drafts, **{"run_id": "r"} | kwargs)


def start(code: str, *args: str, stdin: int | None = None) -> subprocess.Popen[str]:
    """A Python process that can import these helpers; its warnings are errors too."""
    path = os.pathsep.join([str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, "-W", "error", "-c", code, *args]
    env = {**os.environ, "PYTHONPATH": path}
    return subprocess.Popen(command, stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)


def finish(process: subprocess.Popen[str]) -> str:
    """What the process printed, once it has ended well."""
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    return out


WRITER = """
import itertools, sys, time
import tests.bank.helpers as h
from rb_dspy.errors import StorageError
url, name, file = sys.argv[1:]
bank = h.open_bank(url)
with open(file, "w") as stored:
    for number in itertools.count():
        task = f"{name}/{number}"
        while True:
            try:
                bank.record(h.a_task(task), h.a_rollout(task), run_id="r")
                h.add(bank, task, lessons=2)
                break
            except StorageError as exc:  # of a server that was killed
                assert "try again" in str(exc), exc
                time.sleep(0.05)
        print(task, file=stored, flush=True)
"""
"""A process that records and appends until it is killed, and writes down what was stored."""


def check_writers(url: str | Path, files: Sequence[Path]) -> set[str]:
    """What the writers of these files stored is there, once, whole, and numbered without gaps. Returns it."""
    stored = {line for file in files for line in file.read_text().split("\n")[:-1]}
    with open_bank(url) as bank:
        tasks = [experience.task.id for experience in bank.experiences()]
        assert len(tasks) == len(set(tasks)) == len(bank) // 2
        assert stored <= set(tasks)
        assert not {pending.task.id for pending in bank.pending()} & set(tasks)
        assert all(len(experience.items) == 2 for experience in bank.experiences())
        seqs = sorted([each.seq for each in bank.experiences()] + [each.seq for each in bank.items()])
        assert seqs == list(range(1, len(seqs) + 1))
        assert bank.doctor() == []
        assert len(bank.retrieve("sort the numbers", k=10**6)) == len(tasks)
    return stored
