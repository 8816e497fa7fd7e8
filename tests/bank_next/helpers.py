"""Short ways to make tasks, rollouts and banks."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from rb_dspy.bank_next import MemoryBank
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
