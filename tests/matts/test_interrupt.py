"""Ctrl-C, as a terminal sends it, ends a scaled run at once, whatever its language model is busy with."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from rb_dspy.backbones import models

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="no SIGINT to send")

ROOT = Path(__file__).parents[2]
HEAD = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # some runners ignore it
PROGRAM = """
import sys, time
from rb_dspy import Backbones, MemoryBank, ReasoningBank, Task
from rb_dspy.matts import MaTTS
from rb_dspy.testing import HashEmbedder, scripted_lm

def script(prompt):
    if "action" in prompt.wants and (prompt.seed or sys.argv[1] == "alone"):
        print("busy", flush=True)
        time.sleep(300)
    if "label" in prompt.wants:
        return {"reasons": "r", "label": "success"}
    return {"thought": "t", "action": "7"}

program = ReasoningBank(backbones=Backbones(agent=scripted_lm(script)))
run = program if sys.argv[1] == "alone" else MaTTS(program, 3, sys.argv[1])
with MemoryBank.open(None, scope="t", embedder=HashEmbedder()) as bank:
    try:
        run(task=Task(id="q", instruction="3+4?", env_args={"answer": "7"}), bank=bank)
    except KeyboardInterrupt:
        print(len(bank.pending()), "waiting", flush=True)
        if sys.argv[2] == "raised":
            raise
        sys.exit(int(sys.argv[2]))
"""
COMMAND = """
import sys
from rb_dspy.cli.main import main
from rb_dspy.embedder import SentenceTransformerEmbedder
from rb_dspy.testing import HashEmbedder
SentenceTransformerEmbedder.embed = HashEmbedder(384).embed  # what is interrupted is the language model
sys.exit(main(sys.argv[1:]))
"""


def interrupted(program: str, *args: str, at: str, after: float, folder: Path) -> tuple[int, str, float]:
    """Exit code, output and seconds that it took to end, of a program that is sent SIGINT once it has said ``at``."""
    environment = {**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True", "PYTHONPATH": str(ROOT), "COLUMNS": "160"}
    with subprocess.Popen(
        [sys.executable, "-c", HEAD + program, *args],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
        cwd=folder,
    ) as process:
        assert process.stdout is not None
        late = threading.Timer(200, process.kill)
        late.start()
        said = ""
        for line in process.stdout:
            said += line
            if at in line:
                break
        time.sleep(after)
        sent = time.monotonic()
        process.send_signal(signal.SIGINT)
        said += process.stdout.read()
        code, seconds = process.wait(), time.monotonic() - sent
        late.cancel()
        return code, said, seconds


@pytest.mark.parametrize("mode", ["parallel", "best_of_n", "alone"])
def test_an_answer_that_takes_long_is_not_waited_for(mode: str, tmp_path: Path) -> None:
    code, said, seconds = interrupted(PROGRAM, mode, "7", at="busy", after=2.0, folder=tmp_path)
    assert code == 7, said
    assert said.endswith("0 waiting\n" if mode == "alone" else "1 waiting\n")
    assert "Traceback" not in said
    assert seconds < 60  # of 300


def test_an_interrupt_that_nobody_catches_is_pythons_own(tmp_path: Path) -> None:
    code, said, seconds = interrupted(PROGRAM, "parallel", "raised", at="busy", after=2.0, folder=tmp_path)
    assert code == -signal.SIGINT, said
    assert said.splitlines()[-1] == "KeyboardInterrupt"
    assert said.count("Traceback") == 1
    assert seconds < 60  # of 300


@pytest.mark.model
@pytest.mark.parametrize("after", [0.05, 1.5, 4.0])
def test_a_local_model_is_not_waited_for(after: float, tmp_path: Path) -> None:
    models.get("smollm2-135m")
    question = " ".join(f"Room {n} holds object {7 * n}." for n in range(150)) + " What does room 12 hold?"
    task = {"id": "q", "instruction": question, "env_args": {"answer": "84"}}
    (tmp_path / "task.jsonl").write_text(json.dumps(task))
    code, said, seconds = interrupted(
        COMMAND,
        *("run", "--stream", "task.jsonl", "--matts", "parallel", "--k", "8"),
        *("--set", "backbones.agent.model=local/smollm2-135m"),
        at="sees",
        after=after,
        folder=tmp_path,
    )
    assert code == 130, said
    assert "interrupted: what was learned is in the bank" in said
    assert "Traceback" not in said
    assert "FATAL" not in said
    assert seconds < 30  # left alone, it was not done after 45
