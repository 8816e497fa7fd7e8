"""Attacks on evaluations that are shared in PostgreSQL."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from rb_dspy import Backbones, MemoryBank, MemoryDraft, ReasoningBank, Task, evaluate
from rb_dspy.cli.main import main
from rb_dspy.errors import InputError, RBError
from rb_dspy.evaluation.queue import Job, enqueue, queued, work
from rb_dspy.evaluation.records import read_records
from rb_dspy.stream.journal import Journal
from rb_dspy.testing import HashEmbedder, locks, locksmith, scripted_lm, scripted_program
from tests.bank.conftest import bare_url as bare_url, postgres_server as postgres_server

_CALLS: list[str] = []
_HOLD, _DONE = threading.Event(), threading.Event()


class Named:
    id = "named"

    def __call__(self, task: Task, lessons: str) -> str:
        return _broken(task) if self.id == "broken" else _slow(task)


def _broken(task: Task) -> str:
    _CALLS.append(task.id)
    if task.id == "c":
        raise ValueError("always broken")
    return "x"


def _slow(task: Task) -> str:
    _HOLD.set()
    _DONE.wait(30)
    return "x"


broken, slow = Named(), Named()
broken.id = "broken"


def test_a_task_that_broke_is_not_done_again_each_second_while_others_work(bare_url: str) -> None:
    """A worker that is done waits for the others; it must not pay for its broken last task again and again."""
    calls, agent = _CALLS, broken

    tasks = [Task(id=each, instruction=f"Task {each}") for each in "abc"]
    lm = Backbones(agent=scripted_lm(locksmith))
    made = ReasoningBank(agent=agent, score=lambda task, answer: True, backbones=lm)
    first = ReasoningBank(agent=lambda task, lessons: "x", score=lambda task, answer: True, backbones=lm)
    arms = {"base": first, "mine": made}
    hold, done = _HOLD, _DONE
    first.act.agent = slow
    errors: list[BaseException] = []

    def worker() -> None:
        try:
            evaluate(arms, tasks, orders=1, folder=bare_url, embedder=HashEmbedder(), jobs=2)
        except BaseException as exc:  # noqa: BLE001
            errors.append(exc)

    threads = [threading.Thread(target=worker) for _ in range(2)]
    for each in threads:
        each.start()
    assert hold.wait(20)
    time.sleep(6)
    seen = calls.count("c")
    done.set()
    for each in threads:
        each.join()
    assert not errors
    assert seen <= 4, f"the broken task was tried {seen} times in 6 seconds"


def test_two_evaluations_in_one_database_are_not_mixed(bare_url: str, capsys: Any) -> None:
    for seed in (0, 1):
        evaluate(
            ["none", "bank"],
            locks(3),
            program=scripted_program(),
            orders=1,
            seed=seed,
            embedder=HashEmbedder(),
            folder=bare_url,
        )
    with pytest.raises(InputError, match="2 evaluations are there; choose one") as refused:
        read_records(bare_url)
    id = str(refused.value).rpartition(" ")[2]
    assert len(read_records(bare_url, id)) == 6
    assert main(["evaluations", "show", bare_url, "--evaluation", id, "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [each["orders"] for each in rows if "orders" in each] == [{"none": 1, "bank": 1}] * 3
    assert main(["evaluations", "list", bare_url, "--json"]) == 0
    listed = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert (len(listed), {each["done"] for each in listed}) == (2, {6})


WORKER = """
import sys, threading
from rb_dspy import ReasoningBank, Task, evaluate
from rb_dspy.testing import HashEmbedder

class Mine:
    def __init__(self):
        self.client = threading.Lock()  # as any client of a server has one
    def __call__(self, task, lessons):
        print("did", task.id, flush=True)
        return "x"

def right(task, answer):
    return True

tasks = [Task(id=each, instruction=f"Task {each}") for each in "ab"]
evaluate(["none", "bank"], tasks, program=ReasoningBank(agent=Mine(), score=right, judge=lambda t, r: None), orders=1,
    folder=sys.argv[1], embedder=HashEmbedder())
"""


def test_two_processes_with_an_agent_that_holds_a_lock_share_one_evaluation(bare_url: str, tmp_path: Path) -> None:
    (tmp_path / "w.py").write_text(
        WORKER.replace("judge=lambda t, r: None", "judge=judge").replace(
            "def right",
            "from rb_dspy.schema import Verdict\ndef judge(task, rollout):\n"
            "    return Verdict(label='unknown', reasons='')\n\ndef right",
        )
    )
    command = [sys.executable, str(tmp_path / "w.py"), bare_url]
    outputs = [subprocess.run(command, capture_output=True, text=True, timeout=100) for _ in range(2)]
    if outputs[0].returncode:
        assert "attribute id" in outputs[0].stderr or "unnamed" in outputs[0].stderr, outputs[0].stderr
        return
    assert outputs[0].stdout.count("did") == 3 or outputs[0].stdout.count("did") == 4, outputs[0]
    assert outputs[1].stdout.count("did") == 0, "everything was done, and paid, a second time"


def job(**changes: Any) -> Job:
    tasks = [Task(id=f"t{n}", instruction=f"What is {n}?", env_args={"answer": "1"}) for n in range(2)]
    given: dict[str, Any] = {
        "name": "s",
        "tasks": tasks,
        "arms": ("none", "bank"),
        "orders": 1,
        "settings": {"bank": {"embedder": "minilm"}},
    }
    return Job(**{**given, **changes})


def test_a_job_that_cannot_run_does_not_stop_the_others(
    bare_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "adversary_agent.py").write_text(
        "def agent(task, lessons):\n    return '1'\ndef right(task, answer):\n    return True\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPENAI_API_KEY", "a-key")
    enqueue(bare_url, job(agent="missing_module:agent", score="missing_module:right"))
    good = enqueue(
        bare_url,
        job(
            agent="adversary_agent:agent",
            score="adversary_agent:right",
            arms=("none", "oracle"),
            lessons=(MemoryDraft(title="One", content="It is 1."),),
            settings={"bank": {"embedder": "minilm"}, "backbones": {"agent": {"model": "openai/x"}}},
        ),
    )
    with pytest.raises(RBError, match=r"^job "):
        work(bare_url)
    reports = {id: report for id, _, report in queued(bare_url)}
    assert reports[good] is not None, "one bad job at the head of the queue blocks every other, for ever"


def test_a_password_is_not_stored_in_the_queue(
    bare_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """docs: keys are not stored."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tasks.jsonl").write_text('{"id": "a", "instruction": "What?", "env_args": {"answer": "1"}}\n')
    with_password = bare_url.replace("postgres@", "postgres:s3cretpassw0rd@")
    MemoryBank.open(with_password, scope="default", embedder=HashEmbedder()).close()
    args = [
        "evaluate",
        "tasks.jsonl",
        "--arms",
        "none,bank",
        "--orders",
        "1",
        "--on",
        bare_url,
        "--enqueue",
        "--bank",
        with_password,
    ]
    args += ["--set", "bank.embedder=hash", "--set", "backbones.agent.model=openai/x"]
    code = main(args)
    assert (code, "password" in capsys.readouterr().err) == (2, True)
    with closing(Journal.at(bare_url)) as journal:
        heads = json.dumps([run.head for run in journal.runs()])
    assert "s3cretpassw0rd" not in heads


def test_a_password_is_not_in_an_error(bare_url: str, capsys: Any) -> None:
    for url in (
        "postgresql://ann:pa/ss_w0rd@127.0.0.1:1/db",
        "postgresql://ann:passw0rd1@127.0.0.1:1/db",
        "postgresql://ann:pass:w0rd@[::1/db",
        "postgres://ann:pw#passw0rd1@127.0.0.1:1/db?x=y",
    ):
        for command in (["evaluations", "show", url], ["work", url]):
            code = main(command)
            said = capsys.readouterr()
            text = said.out + said.err
            assert code, text
            for part in ("ss_w0rd", "passw0rd1", "w0rd"):
                assert part not in text, text


@pytest.mark.parametrize("id", ["=0", "+", "", "../x", "a/b", "x" * 500, "аpple", "apple"])
def test_task_ids_do_not_collide_with_rollouts(bare_url: str, id: str) -> None:
    with closing(Journal.at(bare_url)) as journal:
        record = journal.start([id or "e", "other"], "r")
        id = id or "e"
        record.add({"task": id, "error": "", "n": 1})
        journal.attach("r", id, {"trajectories": [1]})
        again = journal.run("r")
        assert again is not None
        assert list(again.rows) == [id]
        assert journal.attached("r", id) == {"trajectories": [1]}
        assert journal.attached("r", "other") is None
