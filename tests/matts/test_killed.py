"""A process that dies while rollouts of one call are under way loses none that had ended."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rb_dspy import MemoryBank, run_stream
from rb_dspy.config import MattsMode
from rb_dspy.testing import HashEmbedder
from tests.matts.helpers import booth_task, counts, scaled

ROOT = Path(__file__).parents[2]
PATIENCE = 120.0
PROGRAM = """
import asyncio, sys, time
from rb_dspy import MemoryBank
from rb_dspy.testing import HashEmbedder
from tests.matts.helpers import House, Script, booth_task, called, scaled

path, mode, how = sys.argv[1:]

def hang(*where):
    if where[:1] != ("0",) and where[1:] in ((), ("step 0",)):
        print("hangs", flush=True)
        time.sleep(300)

house = House()
house.breaks = hang
run = scaled(Script(roles={"checker": lambda prompt: hang()}), house, k=2, mode=mode)
with MemoryBank.open(path, scope="t", embedder=HashEmbedder()) as bank:
    asyncio.run(called(run, how == "asyncio", task=booth_task(), bank=bank, run_id="night"))
"""


@contextmanager
def killed(path: Path, mode: str, how: str) -> Iterator[None]:
    """What is done inside the block is done while the second rollout hangs; after it the process is dead."""
    paths = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True", "PYTHONPATH": paths}
    command = [sys.executable, "-c", PROGRAM, str(path), mode, how]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment, cwd=path.parent) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "hangs\n"
            yield
            assert process.poll() is None
        finally:
            process.kill()


@pytest.mark.parametrize("how", ["threads", "asyncio"])
@pytest.mark.parametrize("mode", ["parallel", "sequential"])
def test_a_rollout_that_had_ended_outlives_kill_9_while_another_goes_on(
    mode: MattsMode, how: str, tmp_path: Path
) -> None:
    path = tmp_path / "bank.sqlite"
    with killed(path, mode, how), MemoryBank.open(path, scope="t", embedder=HashEmbedder()) as bank:
        end = time.monotonic() + PATIENCE
        while not bank.pending() and time.monotonic() < end:
            time.sleep(0.02)
        assert len(bank.pending()) == 1
    with MemoryBank.open(path, scope="t", embedder=HashEmbedder()) as bank:
        (kept,) = bank.pending()
        assert (kept.state.run_id, kept.task) == ("night", booth_task())
        (rollout,) = kept.state.trajectories
        assert (rollout.rollout_id, rollout.answer) == ("0", "wrong")
        assert bank.experiences() == []
        run = scaled(k=2, mode=mode)
        if how == "threads":
            run.resume(kept)
        else:
            (result,) = run_stream(run, [booth_task()], bank, run_id="night").results
            assert result.resumed
        assert "agent" not in counts(run)
        (experience,) = bank.experiences()
        assert experience.trajectories == (rollout,)
        assert bank.pending() == []
        assert bank.doctor() == []
        assert run_stream(run, [booth_task()], bank, run_id="night").skipped == 1
