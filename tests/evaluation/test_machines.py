"""An evaluation that several processes do together, of which some are killed."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from rb_dspy import MemoryBank
from rb_dspy.evaluation.queue import Job, enqueue, queued
from rb_dspy.schema import Task
from rb_dspy.stream.journal import Journal
from rb_dspy.testing import HashEmbedder
from tests.bank.conftest import bare_url as bare_url, postgres_server as postgres_server
from tests.served import Served, cli as cli, served as served

_ROOT = Path(__file__).parents[2]


def job(served: Served, tasks: int = 4, orders: int = 3, **changes: Any) -> Job:
    numbers = range(1, tasks + 1)
    agent = {"model": "openai/scripted", "api_base": f"http://127.0.0.1:{served.port}/v1", "num_retries": 0}
    given: dict[str, Any] = {
        "name": "sums",
        "tasks": [
            Task(id=f"sum/{n}", instruction=f"What is {n} and 5?", env_args={"answer": str(n + 5)}) for n in numbers
        ],
        "arms": ("none", "bank", "success_only"),
        "orders": orders,
        "settings": {"backbones": {"agent": agent}, "bank": {"embedder": "hash"}},
    }
    return Job(**{**given, **changes})


@contextmanager
def worker(url: str, jobs: int) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "rb_dspy.cli.main", "work", url, "--jobs", str(jobs), "--json"]
    environment = {**os.environ, "PYTHONPATH": f"{_ROOT}:{Path('site').absolute()}", "OPENAI_API_KEY": "a-key"}
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, start_new_session=True
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def results(url: str) -> Counter[tuple[str, str]]:
    """Run and task of each stored result."""
    journal = Journal.at(url)
    runs = journal.runs("evaluation-")
    journal.close()
    return Counter((run.id, task) for run in runs for task in run.rows)


def check_complete(url: str, given: Job) -> None:
    """Every task of every stream is in the results, and in the bank of its stream, exactly once."""
    [(_, _, report)] = queued(url)
    assert report is not None
    streams = [run for run in _runs(url) if run.head.get("arm")]
    ids = sorted(task.id for task in given.tasks)
    assert len(streams) == 1 + 2 * given.orders  # the arm none is one stream, which counts for all orders
    for run in streams:
        assert sorted(run.rows) == ids
        assert not any(row["error"] for row in run.rows.values())
        if run.head["arm"] != "none":
            with MemoryBank.open(url, scope=run.id, embedder=HashEmbedder(), create=False) as bank:
                assert sorted(each.task.id for each in bank.experiences()) == ids
                assert bank.pending() == []


def _runs(url: str) -> list[Any]:
    journal = Journal.at(url)
    try:
        return journal.runs("evaluation-")
    finally:
        journal.close()


def killed_once(served: Served, url: str, given: Job, seed: int) -> None:
    """Two workers do a job; one of them is killed after a random number of calls."""
    enqueue(url, given)
    until = random.Random(seed).randrange(len(given.tasks), 5 * len(given.tasks) * given.orders)
    with worker(url, 3) as first, worker(url, 3) as second:
        ends = time.monotonic() + 120
        while len(served.prompts) < until:
            assert time.monotonic() < ends
            assert first.poll() is None or second.poll() is None
            time.sleep(0.01)
        assert first.poll() is None
        first.send_signal(signal.SIGKILL)
        out, err = second.communicate(timeout=120)
        assert second.returncode == 0, err
    assert json.loads(out.splitlines()[-1])["report"]["tasks"] == len(given.tasks)
    check_complete(url, given)


def test_a_worker_that_is_killed_is_replaced_by_the_other(cli: Any, served: Served, bare_url: str) -> None:
    killed_once(served, bare_url, job(served), seed=46)


@pytest.mark.stress
@pytest.mark.parametrize("seed", range(10))
def test_ten_random_kills_of_48_streams(cli: Any, served: Served, bare_url: str, seed: int) -> None:
    killed_once(served, bare_url, job(served, tasks=10, orders=24), seed)


def killed_node(served: Served, url: str, given: Job, seed: int) -> None:
    """Two Ray nodes do a job; one of them is killed after a random number of calls."""
    from ray.cluster_utils import Cluster

    from rb_dspy.evaluation import cluster

    enqueue(url, given)
    until = random.Random(seed).randrange(len(given.tasks), 5 * len(given.tasks) * given.orders)
    memory = 80 * 2**20
    nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "object_store_memory": memory})
    try:
        second = nodes.add_node(num_cpus=1, object_store_memory=memory)
        with ThreadPoolExecutor(1) as pool:
            working = pool.submit(cluster.work, url, nodes.address, jobs=3)
            while len(served.prompts) < until:
                assert not working.done(), working.result()
                time.sleep(0.01)
            nodes.remove_node(second, allow_graceful=False)
            working.result(timeout=240)
    finally:
        nodes.shutdown()
    check_complete(url, given)


@pytest.fixture
def ray_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", f"{_ROOT}:{Path('site').absolute()}")
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")


def test_a_ray_node_that_is_killed_is_replaced(cli: Any, served: Served, bare_url: str, ray_environment: None) -> None:
    killed_node(served, bare_url, job(served), seed=46)


@pytest.mark.stress
@pytest.mark.parametrize("seed", range(10))
def test_ten_random_kills_of_a_ray_node(
    cli: Any, served: Served, bare_url: str, ray_environment: None, seed: int
) -> None:
    killed_node(served, bare_url, job(served, tasks=10, orders=24), seed)


def test_tasks_that_break_are_not_repeated_while_others_are_waited_for(cli: Any, served: Served, bare_url: str) -> None:
    given = job(served, tasks=3, orders=1, arms=("none", "bank"))
    served.refuse = lambda prompt: 400 if "action" in prompt.wants and "What is 3 and" in prompt.text else None

    def stop(progress: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        given.run(bare_url, on_progress=stop)
    other = Journal.at(bare_url)
    [(_, bank)] = sorted(
        (run.head["arm"], run.id) for run in other.runs("evaluation-") if run.head.get("arm") == "bank"
    )
    with ThreadPoolExecutor(1) as pool:
        with other.lock(bank) as locked:
            assert locked
            waiting = pool.submit(given.run, bare_url)
            time.sleep(2.5)  # several passes over the streams
            asked = sum("What is 3 and" in prompt.text for prompt in served.prompts)
        report = waiting.result(timeout=60)
    other.close()
    assert asked == 2  # a task that breaks is tried twice
    assert {name: arm.errors for name, arm in report.arms.items()} == {"none": 1, "bank": 1}


def test_the_command_queues_what_workers_do_and_shares_what_it_does_itself(
    cli: Any, served: Served, bare_url: str
) -> None:
    given = ("evaluate", "tasks.jsonl", "--orders", "2", "--on", bare_url, "--json")
    code, out, err = cli(*given, "--enqueue")
    assert code == 0, err
    assert (json.loads(out)["job"], served.prompts) == (queued(bare_url)[0][0], [])
    code, out, err = cli("work", bare_url, "--json")
    assert code == 0, err
    report = json.loads(out.splitlines()[-1])["report"]
    assert (report["tasks"], report["arms"]["bank"]["runs"], report["arms"]["none"]["runs"]) == (3, 6, 3)
    asked = len(served.prompts)
    code, out, err = cli(*given)  # the same evaluation: it is done
    assert code == 0, err
    assert json.loads(out.splitlines()[-1])["arms"]["bank"]["runs"] == 6
    assert len(served.prompts) == asked
    MemoryBank.open("my.sqlite", scope="default", embedder=HashEmbedder()).close()
    for wrong in (("--enqueue",), ("--on", bare_url, "--enqueue", "--bank", "my.sqlite")):
        code, _, err = cli("evaluate", "tasks.jsonl", *wrong)
        assert (code, err.count("\n")) == (2, 1), err


def test_a_job_is_queued_once_and_done_once(cli: Any, served: Served, bare_url: str) -> None:
    given = job(served, tasks=2, orders=1, arms=("none", "bank"))
    assert enqueue(bare_url, given) == enqueue(bare_url, given)
    for _ in range(2):
        code, out, err = cli("work", bare_url)
        assert code == 0, err
        assert "sums, job" in out
    assert len(served.prompts) == 2 + 3 * 2
    old = given.model_copy(update={"versions": {"rb-dspy": "0.1", "dspy": "3.0"}})
    enqueue(bare_url, old)
    code, _, err = cli("work", bare_url)
    assert (code, "was queued with" in err) == (2, True)
