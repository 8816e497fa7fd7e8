"""Attacks on numbers, caps, kills and what an agent raises."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from rb_dspy import Backbones, MaTTS, MemoryBank, ReasoningBank, Task, evaluate, run_stream
from rb_dspy.backbones import budget
from rb_dspy.errors import BudgetSpent, RBError
from rb_dspy.evaluation.records import read_records, transcript
from rb_dspy.schema import Outcome
from rb_dspy.stream.journal import Journal
from rb_dspy.testing import (
    HashEmbedder,
    Lock,
    Prompt,
    Reply,
    lock,
    locks,
    locksmith,
    scripted_lm,
    scripted_program,
)

TASKS = [Task(id=each, instruction=f"Task {each}") for each in "abcdefgh"]


def mine(agent: Any, **more: Any) -> ReasoningBank:
    return ReasoningBank(
        agent=agent, score=lambda task, answer: True, backbones=Backbones(agent=scripted_lm(locksmith)), **more
    )


def bank() -> MemoryBank:
    return MemoryBank.open(None, scope="x", embedder=HashEmbedder())


class Stop(BaseException):
    pass


@pytest.mark.parametrize(
    "kind",
    [SystemExit, asyncio.CancelledError, MemoryError, RecursionError, StopIteration, TimeoutError, ExceptionGroup],
)
@pytest.mark.parametrize("jobs", [1, 8])
def test_what_an_agent_raises_is_an_error_of_its_task(kind: type[BaseException], jobs: int) -> None:
    def agent(task: Task, lessons: str) -> str:
        if task.id == "b":
            raise kind("x", [ValueError()]) if kind is ExceptionGroup else kind(0)
        return "x"

    report = evaluate({"a": mine(agent), "b": mine(agent)}, TASKS[:4], orders=1, jobs=jobs, embedder=HashEmbedder())
    assert report.arms["a"].errors == 1


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt, asyncio.CancelledError, MemoryError, ValueError])
def test_no_deadlock_whatever_on_result_raises(kind: type[BaseException]) -> None:
    def on_result(arm: str, result: Any) -> None:
        raise kind("x")

    made = mine(lambda task, lessons: "x")
    found: list[BaseException] = []

    def run() -> None:
        try:
            evaluate({"a": made, "b": made}, TASKS[:4], orders=4, jobs=8, embedder=HashEmbedder(), on_result=on_result)
        except BaseException as exc:  # noqa: BLE001
            found.append(exc)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(30)
    assert not thread.is_alive()
    assert isinstance(found[0], kind)


def test_an_async_on_result_is_refused() -> None:
    async def on_result(arm: str, result: Any) -> None:
        return None

    made = mine(lambda task, lessons: "x")
    with pytest.raises(RBError):
        evaluate({"a": made, "b": made}, TASKS[:2], orders=1, embedder=HashEmbedder(), on_result=on_result)


def test_an_agent_that_exits_with_0_does_not_pass_a_requirement(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "import sys\ndef agent(task, lessons):\n    sys.exit(0)\ndef right(task, answer):\n    return True\n"
    )
    rows = [{"id": f"t{n}", "instruction": f"What is {n}?"} for n in range(3)]
    (tmp_path / "t.jsonl").write_text("\n".join(map(json.dumps, rows)))
    command = [
        sys.executable,
        "-m",
        "rb_dspy.cli.main",
        "evaluate",
        "t.jsonl",
        "--agent",
        "mine:agent",
        "--score",
        "mine:right",
    ]
    command += [
        "--arms",
        "none,placebo",
        "--orders",
        "1",
        "--require",
        "learning",
        "-y",
        "--set",
        "bank.embedder=hash",
        "--set",
        "backbones.agent.model=openai/x",
    ]
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "OPENAI_API_KEY": "x"}
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=env, timeout=120)
    assert done.returncode != 0, done.stdout + done.stderr


# --- caps


def usage_lm(calls: list[str]) -> Any:
    return scripted_lm(locksmith)


def test_a_cap_in_the_middle_of_a_rollout_keeps_what_was_paid(tmp_path: Path) -> None:
    """Tokens of a try that a cap or an error ended are in no row."""
    spent_all = 0
    with bank() as opened:
        program = scripted_program()
        stream = [lock("Abus", n, "1234", presses=6) for n in range(3)]
        for _ in range(40):
            with budget(max_tokens=6000) as spent:
                try:
                    run_stream(program, stream, opened, run_id="r", journal=tmp_path)
                    spent_all += spent.tokens
                    break
                except BudgetSpent:
                    spent_all += spent.tokens
        run = Journal.at(tmp_path).run("r")
        assert run is not None
        assert run.finished, run
        counted = sum(row["tokens"] for row in run.rows.values())
    assert counted == spent_all, f"paid {spent_all}, counted {counted}"


def test_an_evaluation_under_a_small_cap_makes_progress(tmp_path: Path) -> None:
    """A task that costs more than what is left is paid for again each time, and must not be paid more than twice."""
    total = 0
    program = scripted_program()
    stream = [lock("Abus", n, "1234", presses=6) for n in range(3)]
    with bank():
        whole = evaluate(["none", "bank"], stream, program=program, orders=1, embedder=HashEmbedder())
    price = sum(arm.tokens for arm in whole.arms.values())
    for _ in range(30):
        with budget(max_tokens=price // 4) as spent:
            try:
                evaluate(
                    ["none", "bank"], stream, program=program, orders=1, embedder=HashEmbedder(), folder=tmp_path / "e"
                )
                total += spent.tokens
                break
            except BudgetSpent:
                total += spent.tokens
    report = evaluate(
        ["none", "bank"], stream, program=program, orders=1, embedder=HashEmbedder(), folder=tmp_path / "e"
    )
    counted = sum(arm.tokens for arm in report.arms.values())
    print("price", price, "paid", total, "counted", counted)
    assert total <= 1.5 * price


# --- kills

KILL = """
import os, sys
from rb_dspy import *
from rb_dspy.testing import *
from rb_dspy.evaluation import records
from rb_dspy.stream.journal import Folder

number, where = int(sys.argv[2]), sys.argv[3]
seen = 0
def dying(cls, name):
    old = getattr(cls, name)
    def new(self, *args, **kwargs):
        global seen
        result = None
        if where.endswith("after"):
            result = old(self, *args, **kwargs)
        seen += 1
        if seen == number:
            os._exit(9)
        return result if where.endswith("after") else old(self, *args, **kwargs)
    setattr(cls, name, new)

if where.startswith("store"):
    dying(Folder, "store")
elif where.startswith("attach"):
    dying(Folder, "attach")
elif where.startswith("append"):
    dying(MemoryBank, "append")
evaluate(["none", "bank"], locks(4), program=scripted_program(), orders=2, embedder=HashEmbedder(), folder=sys.argv[1])
"""


@pytest.mark.stress
@pytest.mark.parametrize("where", ["store", "store after", "attach", "attach after", "append", "append after"])
def test_every_task_has_a_transcript_and_one_result_after_kills(tmp_path: Path, where: str) -> None:
    for number in (1, 3, 2):
        subprocess.run(
            [sys.executable, "-c", KILL, str(tmp_path / "e"), str(number), where],
            env={**os.environ, "PYTHONPATH": "."},
            timeout=60,
            check=False,
        )
    report = evaluate(
        ["none", "bank"], locks(4), program=scripted_program(), orders=2, embedder=HashEmbedder(), folder=tmp_path / "e"
    )
    plain = evaluate(["none", "bank"], locks(4), program=scripted_program(), orders=2, embedder=HashEmbedder())
    assert {n: (a.runs, a.success) for n, a in report.arms.items()} == {
        n: (a.runs, a.success) for n, a in plain.arms.items()
    }
    records = read_records(tmp_path / "e")
    missing = [(each.run_id, each.task) for each in records if not transcript(tmp_path / "e", each.run_id, each.task)]
    assert not missing, f"no transcript, for ever: {missing}"


# --- one rollout of k that cannot be scored


class Half(Lock):
    def outcome(self) -> Outcome:
        if self.rollout == "1":
            raise ValueError("scoring failed")
        return super().outcome()


def half(task: Task, rollout_id: str) -> Half:
    made = Half(str(task.env_args["code"]))
    made.rollout = rollout_id
    return made


def test_a_run_in_which_one_rollout_of_k_was_not_scored_can_be_finished(tmp_path: Path) -> None:
    program = MaTTS(scripted_program(environments=half), k=3)
    tasks = [lock("Abus", 1, "1234"), lock("Burg", 2, "1234")]
    with bank() as opened:
        run_stream(program, tasks, opened, run_id="r", journal=tmp_path)
        first = Journal.at(tmp_path).run("r")
        assert first is not None
        print({id: (row["solved"], row["error"]) for id, row in first.rows.items()})
        run_stream(program, tasks, opened, run_id="r", journal=tmp_path)
        run = Journal.at(tmp_path).run("r")
    assert run is not None
    assert all(row["solved"] is not None for row in run.rows.values())
    assert run.finished, "scored, learned from, and never done: the run is continued for ever"


# --- a bank that an evaluation made as the start of another one


def test_an_arm_can_start_from_the_bank_of_an_earlier_evaluation(tmp_path: Path) -> None:
    evaluate(
        ["none", "bank"], locks(6), program=scripted_program(), orders=1, embedder=HashEmbedder(), folder=tmp_path / "e"
    )
    (file,) = (tmp_path / "e" / "banks").glob("*.sqlite")
    from rb_dspy.evaluation import Arm

    with MemoryBank.open(file, scope="evaluation", embedder=HashEmbedder()) as start:
        before = len(start.experiences())
        assert before
        acted: list[str] = []

        def script(prompt: Prompt) -> Reply:
            if prompt.role == "agent":
                acted.append(prompt["task"])
            return locksmith(prompt)

        program = scripted_program(script)
        arms = {"none": Arm(program, "none"), "bank": Arm(program, "bank", bank=start)}
        report = evaluate(arms, locks(6), orders=1, embedder=HashEmbedder(), folder=tmp_path / "f")
        print(report.arms["bank"].success, report.arms["bank"].shown)
    (file,) = (tmp_path / "f" / "banks").glob("*.sqlite")
    with MemoryBank.open(file, scope="evaluation", embedder=HashEmbedder()) as after:
        with MemoryBank.open(None, scope="x", embedder=HashEmbedder()) as other:  # the same tasks, learned in a run
            run_stream(scripted_program(), locks(6), other, run_id="other")
            evaluate(
                {"none": Arm(program, "none"), "bank": Arm(program, "bank", bank=other)},
                locks(6),
                orders=1,
                embedder=HashEmbedder(),
                folder=tmp_path / "g",
            )
        (file,) = (tmp_path / "g" / "banks").glob("*.sqlite")
        with MemoryBank.open(file, scope="evaluation", embedder=HashEmbedder()) as control:
            assert len(control.experiences()) == 12
        assert len(after.experiences()) == before + 6, f"{len(after.experiences())} experiences; started with {before}"
    assert len(acted) == 24  # nothing was done without a need
