"""``kill`` ends a command as Ctrl-C does: what was done is kept, and the next run goes on from there."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from dspy import lm15

from rb_dspy import Backbones, MemoryBank
from rb_dspy.cli.main import main
from rb_dspy.plugins import embedder
from rb_dspy.testing import Prompt, Reply
from tests.worlds import backbones, item

pytestmark = pytest.mark.skipif(os.name == "nt", reason="Windows ends processes without a signal that can be heard")


@pytest.fixture(autouse=True)
def _in_a_folder_with_tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    tasks = [{"id": f"sum/{n}", "instruction": f"What is {n} and four?", "env_args": {"answer": "7"}} for n in (1, 2)]
    Path("sums.jsonl").write_text("\n".join(map(json.dumps, tasks)))


def played_by(monkeypatch: pytest.MonkeyPatch, ends_at: str) -> None:
    """The models of the command; at the first answer that holds this field the process is told to end."""

    def reply(prompt: Prompt) -> Reply:
        if ends_at in prompt.wants:
            os.kill(os.getpid(), signal.SIGTERM)
        if "action" in prompt.wants:
            return {"thought": "I count.", "action": "7"}
        if "label" in prompt.wants:
            return {"reasons": "Counted again.", "label": "success"}
        return {"analysis": "Hm.", "memory_items": [item("Count twice", "Count, and count again.")]}

    def from_settings(configs: object) -> Backbones:
        return backbones(reply)

    monkeypatch.setattr(Backbones, "from_settings", from_settings)


def run(*more: str) -> int:
    return main(["run", "--stream", "sums.jsonl", "--bank", "kept.sqlite", *more])


def test_a_run_that_is_told_to_end(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    before = signal.getsignal(signal.SIGTERM)
    played_by(monkeypatch, ends_at="label")
    assert run("--no-track") == 143
    assert "interrupted: what was learned is in the bank" in capsys.readouterr().err
    assert signal.getsignal(signal.SIGTERM) == before
    with MemoryBank.open("kept.sqlite", scope="default", embedder=embedder("minilm")) as bank:
        (waiting,) = bank.pending()
        assert waiting.task.id == "sum/1"
    played_by(monkeypatch, ends_at="nothing")
    assert run("--no-track") == 0
    with MemoryBank.open("kept.sqlite", scope="default", embedder=embedder("minilm")) as bank:
        assert bank.seen_tasks() == {"sum/1", "sum/2"}
        assert bank.pending() == []


def test_nothing_is_handed_in_once_a_run_was_interrupted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The selector breaks off in a thread of its own, when the run is being summed up already."""
    ended, gone = threading.Event(), threading.Event()

    def reply(prompt: Prompt) -> Reply:
        if "action" in prompt.wants:
            return {"thought": "I count.", "action": f"{7 + (prompt.seed or 0)}"}
        if "choice" in prompt.wants and "1 and four" in prompt["task"]:
            return {"analysis": "One counted right.", "choice": 1}
        if "choice" in prompt.wants:
            os.kill(os.getpid(), signal.SIGTERM)
            ended.wait(20)
            threading.Timer(0.5, gone.set).start()
            raise lm15.ServerError("stopped: the work that this belonged to was given up")
        if "label" in prompt.wants:
            return {"reasons": "Counted again.", "label": "success"}
        return {"analysis": "Hm.", "memory_items": [item("Count twice", "Count, and count again.")]}

    monkeypatch.setattr(Backbones, "from_settings", lambda configs: backbones(reply))
    assert run("--no-track", "--matts", "parallel", "--k", "2") == 143
    ended.set()
    assert gone.wait(20)
    shown = [line.split() for line in capsys.readouterr().out.splitlines()]
    selected = [line[1:] for line in shown if line[:1] == ["selected"]]
    assert selected[0] == ["One", "counted", "right."]
    assert [line[1:3] for line in selected[1:]] == [["of", "1"]], "in the summary, which counts the first task only"


def test_what_was_tracked_is_written(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Traces and metrics wait for others to be written with; told to end, they are written first."""
    asked: list[Any] = []

    def counting(prompt: Prompt) -> Reply:
        if "action" in prompt.wants:
            asked.append(prompt.text)
            if len(asked) == 2:
                os.kill(os.getpid(), signal.SIGTERM)
            return {"thought": "I count.", "action": "7"}
        if "label" in prompt.wants:
            return {"reasons": "Counted again.", "label": "success"}
        return {"analysis": "Hm.", "memory_items": [item("Count twice", "Count, and count again.")]}

    monkeypatch.setattr(Backbones, "from_settings", lambda configs: backbones(counting))
    assert run("--set", "tracking.uri=sqlite:///tracked.db") == 143
    from mlflow import MlflowClient

    client = MlflowClient("sqlite:///tracked.db")
    (experiment,) = [found for found in client.search_experiments() if found.name != "Default"]
    (found,) = client.search_runs([experiment.experiment_id])
    assert found.info.status == "KILLED"
    assert len(client.search_traces(locations=[experiment.experiment_id])) >= 1


def test_who_hears_the_signal_already_goes_on_hearing_it(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: heard.append(number))
    try:
        played_by(monkeypatch, ends_at="label")
        assert run("--no-track") == 0
        assert heard == [signal.SIGTERM] * 2
    finally:
        signal.signal(signal.SIGTERM, before)


_SLOW = """
import sys, time
from rb_dspy import Backbones
from rb_dspy.cli.main import main
from rb_dspy.embedder import SentenceTransformerEmbedder
from rb_dspy.testing import HashEmbedder
from tests.worlds import backbones, item

SentenceTransformerEmbedder.embed = HashEmbedder(384).embed  # loading the model takes seconds

def reply(prompt):
    if "label" in prompt.wants:
        print("judging", flush=True)
        time.sleep(2)
    return {"thought": "I count.", "action": "7"}

Backbones.from_settings = lambda configs: backbones(reply)
sys.exit(main())
"""


@pytest.mark.parametrize(
    ("number", "gap", "code"),
    [
        (signal.SIGINT, 0.005, 130),
        (signal.SIGINT, 0.03, 130),
        (signal.SIGINT, 0.08, 130),
        (signal.SIGTERM, 0.03, 143),
    ],
)
def test_who_presses_ctrl_c_again_and_again_interrupts_once(number: signal.Signals, gap: float, code: int) -> None:
    command = [sys.executable, "-c", _SLOW, "run", "--stream", "sums.jsonl", "--bank", "kept.sqlite"]
    there = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    with subprocess.Popen(command, env=there, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        while process.stdout.readline() != "judging\n":
            assert process.poll() is None
        for _ in range(5):
            process.send_signal(number)
            time.sleep(gap)
        _, told = process.communicate(timeout=60)
    assert process.returncode == code, told
    assert told.count("\n") == 1
    assert told.startswith("interrupted: what was learned is in the bank")


class _Deaf:
    def __del__(self) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.01)


def test_an_interrupt_that_python_loses_is_raised_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def reply(prompt: Prompt) -> Reply:
        _Deaf()
        time.sleep(0.2)
        return {"thought": "I count.", "action": "7"}

    monkeypatch.setattr(Backbones, "from_settings", lambda configs: backbones(reply))
    assert run("--no-track") == 130
    assert "ignored" not in capsys.readouterr().err
