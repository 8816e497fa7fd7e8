"""What breaks, is interrupted or is killed loses at most the rollout under way, and is learned from once."""

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
from dspy import lm15

from rb_dspy import MaTTS, MemoryBank, errors, run_stream
from rb_dspy.testing import HashEmbedder, Prompt, Reply
from tests.scenarios.helpers import Spy, bank_at, contents, learned_tasks, program, series

ROOT = Path(__file__).parents[2]
VARIABLES = {"PYTHONPATH": str(ROOT), "LITELLM_LOCAL_MODEL_COST_MAP": "True", "HF_HUB_OFFLINE": "1"}


def breaks_at(role: str, error: Exception | None = None) -> Spy:
    """Plays every role except one, which raises ``error``."""

    def broken(prompt: Prompt) -> Reply:
        raise error or lm15.ServerError("overloaded")

    return Spy({role: broken})


def uninterrupted(tasks: Any) -> list[Any]:
    with MemoryBank.open(None, scope="scenarios", embedder=HashEmbedder()) as bank:
        run_stream(program(), tasks, bank, run_id="r")
        return contents(bank)


@pytest.mark.parametrize("role", ["judge", "distiller"])
@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (lm15.TimeoutError("no answer in time"), errors.InfrastructureError),
        (lm15.AuthError("key"), errors.BackboneError),
    ],
)
async def test_a_rollout_waits_if_a_model_fails_and_resuming_gives_what_the_call_would_have_given(
    bank: MemoryBank, role: str, error: Exception, expected: type[Exception]
) -> None:
    tasks = series(2)
    program()(task=tasks[0], bank=bank, run_id="r")
    for attempt in range(3):
        broken = program(breaks_at(role, error))
        with pytest.raises(expected):
            broken(task=tasks[1], bank=bank, run_id="r") if attempt == 0 else broken.resume(*bank.pending())
        assert learned_tasks(bank) == [tasks[0].id]
        assert [(pending.task, pending.run_id, pending.tries) for pending in bank.pending()] == [(tasks[1], "r", 0)]

    spy = Spy()
    done = await program(spy).aresume(*bank.pending())
    assert "agent" not in spy.roles_asked(), "the task is not done again"
    assert [item.content for item in done.memory.items] == ["What Abus made opens with 0000."], (
        "what the agent was shown"
    )
    assert done.experience.shown == tuple(item.id for item in done.memory.items)
    assert bank.pending() == []
    assert contents(bank) == uninterrupted(tasks)


CHILD = """
import json, os, signal, sys, time
from rb_dspy import MaTTS, run_stream
from rb_dspy.testing import locksmith
from tests.scenarios.helpers import bank_at, series, program

def run(path, role, serial, how, k):
    def stop():
        os.kill(os.getpid(), signal.SIGKILL if how == "kill" else signal.SIGINT)
        time.sleep(30)

    def script(prompt):
        if prompt.role == role and serial in prompt.text:
            stop()
        return locksmith(prompt)

    def on_result(result):
        print(result.task.id, file=reported, flush=True)
        if role == "on_result" and result.task.instruction.endswith(serial):
            stop()

    scaled = MaTTS(program(script), k=k)
    with bank_at(path) as bank, open(f"{path}.reported", "w") as reported:
        run_stream(scaled if k > 1 else program(script), series(4), bank, run_id="night", on_result=on_result)

signal.signal(signal.SIGINT, signal.default_int_handler)
for case in json.loads(sys.argv[1]):
    if not (child := os.fork()):
        run(*case)
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""

POINTS = {
    "an agent is killed": ("agent", "serial 2.", "kill", 1),
    "a judge is killed": ("judge", "serial 2.", "kill", 1),
    "a report is killed": ("on_result", "serial 2.", "kill", 1),
    "a judge is interrupted": ("judge", "serial 1.", "interrupt", 1),
    "a selector is killed": ("selector", "serial 1.", "kill", 3),
}


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, int]]:
    """Point -> the bank of a run that stopped itself there, and the exit code. One process imports for all of them."""
    folder = tmp_path_factory.mktemp("stopped")
    paths = {point: folder / f"{number}.sqlite" for number, point in enumerate(POINTS)}
    cases = json.dumps([(str(paths[point]), *case) for point, case in POINTS.items()])
    command = [sys.executable, "-c", CHILD, cases]
    done = subprocess.run(
        command, env={**os.environ, **VARIABLES}, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return {point: (path, int(code)) for (point, path), code in zip(paths.items(), done.stdout.split(), strict=True)}


@pytest.mark.parametrize("point", POINTS)
def test_after_kill_or_ctrl_c_every_task_is_learned_from_exactly_once(
    stopped: dict[str, tuple[Path, int]], point: str
) -> None:
    (role, _, how, k), (path, code) = POINTS[point], stopped[point]
    assert code in ([-signal.SIGKILL] if how == "kill" else [-signal.SIGINT, 130])
    spy, tasks = Spy(), series(4)
    with bank_at(path) as bank:
        reported = Path(f"{path}.reported").read_text().split()
        assert set(reported) <= set(learned_tasks(bank)), "what was reported is on disk"
        waiting = {pending.task.id for pending in bank.pending()}
        done = waiting | set(learned_tasks(bank))
        run_stream(MaTTS(program(spy), k=k) if k > 1 else program(spy), tasks, bank, run_id="night")
        assert bank.pending() == []
        assert sorted(learned_tasks(bank, "night")) == [task.id for task in tasks]
        assert {len(each.trajectories) for each in bank.experiences()} == {k}
        if k == 1:
            assert json.dumps(contents(bank)) == json.dumps(uninterrupted(tasks))
    again = {task.id for task in tasks for prompt in spy.of("agent") if task.instruction == prompt["task"]}
    assert again == {task.id for task in tasks} - done, "no rollout that had ended is done again"
    assert bool(waiting) == (role in ("judge", "selector")), "a rollout that had ended waits in the bank"


RESTARTED = """
import signal, sys, time
from rb_dspy import MaTTS, run_stream
from rb_dspy.testing import locksmith
from tests.scenarios.helpers import bank_at, series, program

if __name__ == "__main__":
    path, k = sys.argv[1:]
    signal.signal(signal.SIGINT, signal.default_int_handler)

    def script(prompt):
        time.sleep(0.01)
        return locksmith(prompt)

    run = program(script)
    with bank_at(path) as bank:
        print("ready", flush=True)
        run_stream(
            run if k == "1" else MaTTS(run, k=int(k)), series(40), bank, run_id="night",
            on_result=lambda result: print(result.task.id, flush=True),
        )
    print("finished", flush=True)
"""


@pytest.mark.stress
@pytest.mark.parametrize("k", [1, 3])
def test_a_stream_that_is_stopped_at_random_learns_from_every_task_exactly_once(tmp_path: Path, k: int) -> None:
    """Killed and interrupted by turns of chance, at moments of chance, and started again until it has finished."""
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    chance = random.Random(seed)
    path, child = tmp_path / "bank.sqlite", tmp_path / "child.py"
    child.write_text(RESTARTED)
    acknowledged: list[str] = []
    for _ in range(200):
        command = [sys.executable, str(child), str(path), str(k)]
        with subprocess.Popen(
            command, env={**os.environ, **VARIABLES}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            assert process.stdout.readline().strip() == "ready"
            time.sleep(chance.uniform(0, 0.4))
            process.send_signal(chance.choice([signal.SIGKILL, signal.SIGINT]))
            printed, _ = process.communicate(timeout=60)
        acknowledged += [line for line in printed.split() if line != "finished"]
        with bank_at(path) as bank:
            assert set(acknowledged) <= set(learned_tasks(bank)), "what was reported is on disk"
        if "finished" in printed:
            break
    else:
        pytest.fail("200 starts were not enough")
    with bank_at(path) as bank:
        assert sorted(learned_tasks(bank, "night")) == sorted(task.id for task in series(40))
        assert bank.pending() == []
    assert sorted(acknowledged) == sorted(set(acknowledged)), "no task is reported twice"
