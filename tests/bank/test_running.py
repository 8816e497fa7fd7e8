"""Runs that are at work on a bank: nobody takes from a living one, and one that died holds nothing."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rb_dspy import MemoryBank, ReasoningBank, Task, TaskResult, Trajectory, run_stream
from rb_dspy.errors import InputError
from rb_dspy.matts import MaTTS
from rb_dspy.testing import HashEmbedder, Lock
from tests.bank.helpers import finish, start
from tests.worlds import backbones, lock

AT_WORK = """
import sys
from rb_dspy import MemoryBank
from rb_dspy.testing import HashEmbedder
with MemoryBank.open(sys.argv[1], scope="s", embedder=HashEmbedder()) as bank, bank.running("night"):
    print("at work", flush=True)
    sys.stdin.readline()
"""


@pytest.fixture(params=["memory", "file"])
def bank(request: pytest.FixtureRequest, tmp_path: Path) -> MemoryBank:
    return opened(None if request.param == "memory" else tmp_path / "bank.sqlite")


def opened(url: Path | None) -> MemoryBank:
    return MemoryBank.open(url, scope="s", embedder=HashEmbedder())


def kept(bank: MemoryBank, task: Task, run_id: str = "night") -> None:
    """A rollout of the run that waits, since that has just begun to learn from it."""
    bank.ingest(task, Trajectory(task_id=task.id, answer="0000"), run_id=run_id)


def elsewhere(work: Callable[[], object]) -> object:
    """What another thread gets, or the error that it ends with."""
    with ThreadPoolExecutor(1) as pool:
        job = pool.submit(work)
        return job.exception() or job.result()


def program() -> ReasoningBank:
    return ReasoningBank(backbones=backbones(), environments=Lock.make)


def test_a_second_run_of_one_name_is_refused_at_its_start(bank: MemoryBank) -> None:
    asked: list[object] = []

    def again() -> object:
        return run_stream(program(), [lock("Abus", 9)], bank, run_id="night", on_result=asked.append)

    def beside(result: TaskResult) -> None:
        said = elsewhere(again)
        assert isinstance(said, InputError)
        assert "a run named 'night' is at work in scope 's', here or in another process" in str(said)
        assert elsewhere(lambda: run_stream(program(), [lock("Abus", 9)], bank, run_id="day").summary().tasks) == 1

    run_stream(program(), [lock("Abus", 1)], bank, run_id="night", on_result=beside)
    assert not asked
    assert not bank.at_work()
    assert run_stream(program(), [lock("Abus", 2)], bank, run_id="night").summary().tasks == 1


@pytest.mark.parametrize("scaled", [False, True])
def test_what_a_living_run_goes_on_with_is_left_to_it(bank: MemoryBank, scaled: bool) -> None:
    task = lock("Abus", 1)
    learner = MaTTS(program(), k=2) if scaled else program()
    kept(bank, task)
    with bank.running("night"):
        (waits,) = bank.pending()
        assert not waits.elsewhere, "it is this run's own"
        said = elsewhere(lambda: learner.resume(bank.pending()[0]))
        assert isinstance(said, InputError)
        assert "left to the run 'night', which is at work now" in str(said)
        report = elsewhere(lambda: run_stream(learner, [task], bank, run_id="other", resume="all"))
        assert [result.resumed for result in report.results] == [False]  # type: ignore[attr-defined]
        assert len(bank.pending()) == 1
    assert run_stream(learner, [task], bank, run_id="third", resume="all").results[0].resumed
    assert not bank.pending()


def test_a_run_goes_on_with_its_own(bank: MemoryBank) -> None:
    task = lock("Abus", 1)
    kept(bank, task)
    with bank.running("night"):  # as a loop of its own has it, around the stream
        assert [each.resumed for each in run_stream(program(), [task], bank, run_id="night").results] == [True]


def test_a_run_that_was_killed_holds_nothing_and_leaves_nothing(tmp_path: Path) -> None:
    path, task = tmp_path / "bank.sqlite", lock("Abus", 1)
    with opened(path) as bank:
        kept(bank, task)
        other = start(AT_WORK, str(path), stdin=subprocess.PIPE)
        assert other.stdout is not None
        assert other.stdout.readline() == "at work\n"
        assert bank.at_work()
        assert [ingest.elsewhere for ingest in bank.pending()] == [True]
        with pytest.raises(InputError, match="'night' is at work"):
            run_stream(program(), [task], bank, run_id="night")
        other.kill()
        other.communicate()
        assert [ingest.elsewhere for ingest in bank.pending()] == [False]
        assert [each.resumed for each in run_stream(program(), [task], bank, run_id="night").results] == [True]
    assert [file.name for file in tmp_path.iterdir()] == ["bank.sqlite"]


def test_a_run_that_ends_leaves_nothing_and_one_that_looks_makes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "bank.sqlite"
    other = start(AT_WORK, str(path), stdin=subprocess.PIPE)
    assert other.stdout is not None
    other.stdout.readline()
    assert other.stdin is not None
    other.stdin.write("\n")
    other.stdin.flush()
    finish(other)
    assert [file.name for file in tmp_path.iterdir()] == ["bank.sqlite"]
    with opened(path) as bank:
        before = {file.name for file in tmp_path.iterdir()}
        assert not bank.at_work()
        assert not bank.at_work("night")
        assert {file.name for file in tmp_path.iterdir()} == before


@pytest.mark.skipif(sys.platform == "win32", reason="there is no fork")
def test_a_forked_child_that_ends_ends_no_run_of_its_parent(tmp_path: Path) -> None:
    with opened(tmp_path / "bank.sqlite") as bank:
        run = bank.running("night")
        run.__enter__()
        child = os.fork()
        if not child:
            try:
                run.__exit__(None, None, None)
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        assert bank.at_work("night")
        run.__exit__(None, None, None)
        assert not bank.at_work("night")


def test_of_many_who_begin_one_run_at_once_one_has_it(bank: MemoryBank) -> None:
    count, barrier, had = 8, threading.Barrier(8), threading.Barrier(8)

    def begin(_: int) -> bool:
        barrier.wait()
        try:
            with bank.running("night"):
                had.wait()
                return True
        except InputError:
            had.wait()
            return False

    with ThreadPoolExecutor(count) as pool:
        assert sum(pool.map(begin, range(count))) == 1
    assert not bank.at_work()


def test_other_scopes_and_forks_are_not_its_business(bank: MemoryBank) -> None:
    with bank.running("night"):
        assert not bank.fork().at_work()
        assert not bank.at_work("day")
        with MemoryBank.open(None, scope="t", embedder=HashEmbedder()) as other:
            assert not other.at_work()


def test_a_leftover_that_cannot_be_taken_away_stops_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As of another user, in a folder where everybody removes his own files only."""
    with opened(tmp_path / "bank.sqlite") as bank:
        with bank.running("night"):
            (left,) = tmp_path.glob("*.run-*.lock")
        left.touch()

        def refused(path: Path, missing_ok: bool = False) -> None:
            raise PermissionError(1, "Operation not permitted", str(path))

        monkeypatch.setattr(Path, "unlink", refused)
        for _ in range(2):
            with bank.running("night"):
                assert bank.at_work()
            assert not bank.at_work()


def test_a_bank_of_the_longest_name_has_runs(tmp_path: Path) -> None:
    with opened(tmp_path / ("b" * 243)) as bank, bank.running("night"):
        assert not bank.at_work()  # nothing fits beside it


def test_nothing_is_written_over_the_lock_of_a_living_run(tmp_path: Path) -> None:
    with opened(tmp_path / "bank.sqlite") as bank, bank.running("night"):
        (held,) = tmp_path.glob("*.run-*.lock")
        with pytest.raises(InputError, match="a database, perhaps a bank, or a file of one"):
            bank.export_jsonl(held)
        assert bank.at_work()
