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
from tests.scenarios.world import (
    Spy,
    bank_at,
    contents,
    keypad,
    keypads,
    last,
    learned_tasks,
    lessons,
    play,
    program,
    resume_all,
)

ROOT = Path(__file__).parents[2]
FAULTS = {
    "server": lambda: lm15.ServerError("overloaded"),
    "rate limit": lambda: lm15.RateLimitError("too many requests", retry_after=0),
    "timeout": lambda: lm15.TimeoutError("no answer in time"),
    "connection": lambda: lm15.TransportError("connection refused"),
}


def breaks_at(role: str, error: Any = FAULTS["server"], serial: str = "") -> Spy:
    """Plays every role, but breaks in ``role``, for all tasks or for the one with this serial number."""

    def broken(prompt: Prompt) -> Reply:
        if serial in last(prompt):
            raise error()
        return play(prompt)

    return Spy({role: broken})


def uninterrupted(tasks: Any, make: Any = program) -> list[Any]:
    with MemoryBank.open(None, scope="scenarios", embedder=HashEmbedder()) as bank:
        run_stream(make(), tasks, bank, run_id="r")
        return contents(bank)


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("role", ["judge", "distiller"])
def test_a_rollout_waits_if_a_model_fails_and_resuming_equals_an_uninterrupted_run(
    bank: MemoryBank, role: str, fault: str
) -> None:
    with pytest.raises(errors.InfrastructureError):
        program(breaks_at(role, FAULTS[fault]))(task=keypad(), bank=bank, run_id="r")
    assert bank.experiences() == []
    assert [pending.task.id for pending in bank.pending()] == [keypad().id]

    spy = Spy()
    resume_all(program(spy), bank)
    assert "agent" not in spy.roles_asked(), "the task is not done again"
    assert bank.pending() == []
    assert contents(bank) == uninterrupted([keypad()])


def test_a_resumed_rollout_gives_what_the_call_would_have_given(bank: MemoryBank) -> None:
    program()(task=keypad(1), bank=bank)
    with pytest.raises(errors.InfrastructureError):
        program(breaks_at("judge"))(task=keypad(2), bank=bank)
    (pending,) = bank.pending()
    done = program().resume(pending)
    assert done.verdict.label == "success"
    assert [item.content for item in done.memory.items] == ["Here the code is 0000."], "what the agent was shown"
    assert done.experience.shown == tuple(item.id for item in done.memory.items)
    assert done.experience.task == keypad(2)


async def test_resuming_can_be_awaited(bank: MemoryBank) -> None:
    with pytest.raises(errors.InfrastructureError):
        await program(breaks_at("judge")).acall(task=keypad(), bank=bank)
    (pending,) = bank.pending()
    await program().aresume(pending)
    assert contents(bank) == uninterrupted([keypad()])


def test_a_rollout_that_breaks_again_waits_again(bank: MemoryBank) -> None:
    with pytest.raises(errors.InfrastructureError):
        program(breaks_at("judge"))(task=keypad(), bank=bank, run_id="r")
    for role in ("judge", "distiller"):
        with pytest.raises(errors.InfrastructureError):
            resume_all(program(breaks_at(role)), bank)
        assert [pending.task.id for pending in bank.pending()] == [keypad().id]
    resume_all(program(), bank)
    assert learned_tasks(bank) == [keypad().id]


def test_an_agent_that_fails_leaves_nothing(bank: MemoryBank) -> None:
    with pytest.raises(errors.InfrastructureError):
        program(breaks_at("agent"))(task=keypad(), bank=bank)
    assert (bank.pending(), bank.experiences()) == ([], [])


def test_what_waits_survives_closing_the_file(tmp_path: Path) -> None:
    with bank_at(tmp_path / "bank.sqlite") as bank, pytest.raises(errors.InfrastructureError):
        program(breaks_at("distiller"))(task=keypad(), bank=bank, run_id="r")
    with bank_at(tmp_path / "bank.sqlite") as bank:
        resume_all(program(), bank)
        assert contents(bank) == uninterrupted([keypad()])
    with bank_at(tmp_path / "bank.sqlite") as bank:
        assert bank.pending() == []
        assert learned_tasks(bank) == [keypad().id]


@pytest.mark.parametrize("role", ["judge", "distiller"])
def test_a_stream_resumes_its_own_waiting_rollouts(bank: MemoryBank, role: str) -> None:
    tasks = keypads(3)
    first = run_stream(program(breaks_at(role, serial="serial 1")), tasks, bank, run_id="r")
    assert [bool(result.error) for result in first.results] == [False, True, False]
    assert sorted(learned_tasks(bank)) == [tasks[0].id, tasks[2].id]

    spy = Spy()
    second = run_stream(program(spy), tasks, bank, run_id="r")
    assert "agent" not in spy.roles_asked()
    assert [(result.task.id, result.resumed) for result in second.results] == [(tasks[1].id, True)]
    assert sorted(learned_tasks(bank)) == sorted(task.id for task in tasks)
    assert sorted(map(repr, contents(bank))) == sorted(map(repr, uninterrupted(tasks)))


def test_scaled_rollouts_wait_together(bank: MemoryBank) -> None:
    def make(spy: Any = play) -> MaTTS:
        return MaTTS(program(spy), k=3)

    run_stream(make(breaks_at("distiller")), [keypad()], bank, run_id="r")
    assert {pending.task.id for pending in bank.pending()} == {keypad().id}
    resume_all(make(), bank)
    (experience,) = bank.experiences()
    assert len(experience.trajectories) == 3
    assert lessons(bank) == {"Here the code is 0000."}
    assert bank.pending() == []


CHILD = """
import os, signal, sys, time
from rb_dspy import MaTTS, run_stream
from tests.scenarios.world import Spy, bank_at, keypads, last, play, program, role_of

if __name__ == "__main__":
    path, role, serial, how, k = sys.argv[1:]
    signal.signal(signal.SIGINT, signal.default_int_handler)

    def stop() -> None:
        time.sleep(1 if k != "1" else 0)  # for what other threads write
        os.kill(os.getpid(), signal.SIGKILL if how == "kill" else signal.SIGINT)
        time.sleep(30)

    def script(prompt):
        if role_of(prompt) == role and serial in prompt.text:
            stop()
        return play(prompt)

    def on_result(result):
        print(result.task.id, flush=True)
        if role == "on_result" and result.task.id.endswith(serial):
            stop()

    run = program(script)
    with bank_at(path) as bank:
        run_stream(run if k == "1" else MaTTS(run, k=int(k)), keypads(4), bank, run_id="night", on_result=on_result)
"""


def stopped_at(path: Path, role: str, serial: str, how: str, k: int = 1) -> tuple[int, list[str]]:
    """Exit code of a process that stops itself in a stream, and the tasks whose results it had printed by then."""
    variables = {"PYTHONPATH": str(ROOT), "LITELLM_LOCAL_MODEL_COST_MAP": "True", "HF_HUB_OFFLINE": "1"}
    child = path.with_suffix(".py")
    child.write_text(CHILD)
    made = subprocess.run(
        [sys.executable, str(child), str(path), role, serial, how, str(k)],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert made.returncode != 0, made.stderr
    return made.returncode, made.stdout.split()


POINTS = [
    ("agent", "serial 2", "kill"),
    ("judge", "serial 2", "kill"),
    ("distiller", "serial 2", "kill"),
    ("on_result", "2", "kill"),
    ("agent", "serial 1", "interrupt"),
    ("judge", "serial 1", "interrupt"),
]


@pytest.mark.parametrize(("role", "serial", "how"), POINTS)
def test_after_kill_or_ctrl_c_every_task_is_learned_from_exactly_once(
    tmp_path: Path, role: str, serial: str, how: str
) -> None:
    path = tmp_path / "bank.sqlite"
    code, printed = stopped_at(path, role, serial, how)
    assert code in ([-signal.SIGKILL] if how == "kill" else [-signal.SIGINT, 130])
    spy = Spy()
    with bank_at(path) as bank:
        assert set(printed) <= set(learned_tasks(bank)), "what was reported is on disk"
        waiting = {pending.task.id for pending in bank.pending()}
        done = set(learned_tasks(bank)) | waiting
        run_stream(program(spy), keypads(4), bank, run_id="night")
        assert sorted(learned_tasks(bank, "night")) == sorted(task.id for task in keypads(4))
        assert bank.pending() == []
        assert json.dumps(contents(bank)) == json.dumps(uninterrupted(keypads(4)))
    again = {task.id for task in keypads(4) for prompt in spy.of("agent") if task.instruction in prompt.text}
    assert again == {task.id for task in keypads(4)} - done, "no rollout that had ended is done again"
    if role in ("judge", "distiller"):
        assert waiting, "a rollout that had ended waits in the bank"


def test_after_a_kill_while_scaled_rollouts_are_judged_no_rollout_is_done_again(tmp_path: Path) -> None:
    path = tmp_path / "bank.sqlite"
    stopped_at(path, "selector", "serial 1", "kill", k=3)
    spy = Spy()
    with bank_at(path) as bank:
        run_stream(MaTTS(program(spy), k=3), keypads(4), bank, run_id="night")
        assert sorted(learned_tasks(bank)) == sorted(task.id for task in keypads(4))
        assert [len(each.trajectories) for each in bank.experiences()] == [3] * 4
        assert bank.pending() == []
    assert not [prompt for prompt in spy.of("agent") if keypad(0).instruction in prompt.text]
    assert not [prompt for prompt in spy.of("agent") if keypad(1).instruction in prompt.text]


RESTARTED = """
import signal, sys, time
from rb_dspy import MaTTS, run_stream
from tests.scenarios.world import bank_at, keypads, play, program

if __name__ == "__main__":
    path, k = sys.argv[1:]
    signal.signal(signal.SIGINT, signal.default_int_handler)

    def script(prompt):
        time.sleep(0.01)
        return play(prompt)

    run = program(script)
    with bank_at(path) as bank:
        print("ready", flush=True)
        run_stream(
            run if k == "1" else MaTTS(run, k=int(k)), keypads(40), bank, run_id="night",
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
    variables = {"PYTHONPATH": str(ROOT), "LITELLM_LOCAL_MODEL_COST_MAP": "True", "HF_HUB_OFFLINE": "1"}
    path, child = tmp_path / "bank.sqlite", tmp_path / "child.py"
    child.write_text(RESTARTED)
    acknowledged: list[str] = []
    for _ in range(200):
        command = [sys.executable, str(child), str(path), str(k)]
        with subprocess.Popen(
            command, env={**os.environ, **variables}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
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
        assert sorted(learned_tasks(bank, "night")) == sorted(task.id for task in keypads(40))
        assert bank.pending() == []
    assert sorted(acknowledged) == sorted(set(acknowledged)), "no task is reported twice"
