"""Threads, tasks and processes on one bank: nothing is lost, nothing waits for ever."""

import itertools
import os
import sqlite3
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, nullcontext
from pathlib import Path

import pytest

from rb_dspy.bank.store.commits import GroupCommit
from rb_dspy.errors import StorageError
from tests.bank.helpers import add, finish, open_bank, start


def test_eight_writers_and_readers(place: str | Path | None) -> None:
    with open_bank(place) as bank:
        done = threading.Event()

        def write(writer: int) -> None:
            for n in range(6):
                add(bank, f"{writer}/{n}", f"task {n} of writer {writer}", lessons=2)

        def read() -> int:
            seen = 0
            while not done.is_set():
                found = bank.retrieve("task 5 of writer 3", k=1000)
                assert len(found) >= seen
                assert all(len(match.items) == 2 for match in found)
                scores = [match.score for match in found]
                assert all(better >= worse - 1e-6 for better, worse in itertools.pairwise(scores))
                seen = len(found)
            return seen

        with ThreadPoolExecutor(10) as pool:
            readers = [pool.submit(read) for _ in range(2)]
            for writer in [pool.submit(write, writer) for writer in range(8)]:
                writer.result()
            done.set()
            for reader in readers:
                reader.result()
        assert len(bank) == 96
        assert len(bank.retrieve("task", k=1000)) == 48
        assert bank.seen_tasks() == {f"{writer}/{n}" for writer in range(8) for n in range(6)}
        seqs = sorted([e.seq for e in bank.experiences()] + [item.seq for item in bank.items()])
        assert seqs == list(range(1, 145))


@pytest.mark.parametrize("depth", [0, 2])
def test_reads_beside_edits_are_of_one_moment(url: str | Path, depth: int) -> None:
    """Also in a fork of a fork: no half of a write is seen, and nobody waits for ever."""
    with open_bank(url) as bank:
        experience = add(bank, "t1", lessons=3)
        for _ in range(depth):
            bank = bank.fork()
        done = threading.Event()

        def read() -> None:
            while not done.is_set():
                assert len(bank.items()) == 3
                assert len(bank.get(experience.id).items) == 3  # type: ignore[union-attr]
                assert len(bank.retrieve("sort", k=9)) == 1
                assert bank.doctor() == []

        with ThreadPoolExecutor(3) as pool:
            readers = [pool.submit(read) for _ in range(2)]
            id = experience.items[0].id
            for n in range(8):
                id = bank.edit(id, content=f"Content {n}.").id
            done.set()
            for reader in readers:
                reader.result(timeout=60)


def test_the_same_attempt_from_many_threads_is_stored_once(url: str | Path) -> None:
    with open_bank(url) as bank, ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda _: add(bank, lessons=2), range(16)))
        assert all(experience == made[0] for experience in made)
        assert bank.experiences() == made[:1]


WRITER = """
import sys, tests.bank.helpers as h
for n in range(6):
    with h.open_bank(sys.argv[1], "s" if n % 2 else sys.argv[2]) as bank:
        h.add(bank, f"{sys.argv[2]}/{n}", lessons=2)
        bank.record(h.a_task("t1"), h.a_rollout(rollout_id=f"{sys.argv[2]}/{n}"), run_id="waits")
"""


def test_three_processes(url: str | Path) -> None:
    """All three make the bank, its scopes and its rows at once, opening and closing it each time."""
    for process in [start(WRITER, str(url), name) for name in ("one", "two", "three")]:
        finish(process)
    with open_bank(url, create=False) as bank:
        assert bank.seen_tasks() == {f"{name}/{n}" for name in ("one", "two", "three") for n in (1, 3, 5)}
        assert len(bank) == 18
        assert [len(waiting.trajectories) for waiting in bank.pending()] == [9]
        assert bank.scopes() == ["one", "s", "three", "two"]
        seqs = sorted([e.seq for e in bank.experiences()] + [item.seq for item in bank.items()])
        assert seqs == list(range(1, 28))
        assert bank.doctor() == []
    for name in ("one", "two", "three"):
        with open_bank(url, name, create=False) as bank:
            assert len(bank) == 6


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_a_fork_must_open_the_bank_again(url: str | Path) -> None:
    code = """
import os, sys, tests.bank.helpers as h
from rb_dspy.errors import StorageError
bank = h.open_bank(sys.argv[1])
child = os.fork()
try:
    len(bank)
except StorageError as exc:
    os._exit(7 if "fork" in str(exc) else 8)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
h.add(bank)
bank.close()
"""
    assert finish(start(code, str(url))).strip() == "7"


def test_a_locked_bank_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sqlite3

    path = tmp_path / "bank.sqlite"
    open_bank(path).close()
    monkeypatch.setattr("rb_dspy.bank.store.sqlite._TIMEOUT", 0.1)
    with open_bank(path) as bank:
        add(bank)
        holder = sqlite3.connect(path, isolation_level=None)
        holder.execute("BEGIN IMMEDIATE")
        assert len(bank.retrieve("x", k=5)) == 1  # readers do not wait
        with pytest.raises(StorageError, match="locked"):
            add(bank, "t2")
        holder.execute("ROLLBACK")
        holder.close()
        add(bank, "t2")
        assert len(bank) == 2


def test_of_appends_that_share_a_transaction_only_the_one_that_fails_is_undone(tmp_path: Path) -> None:
    path = tmp_path / "bank.sqlite"
    with open_bank(path) as bank, closing(sqlite3.connect(path, isolation_level=None)) as other:
        add(bank, "t0")
        when = "BEFORE INSERT ON items WHEN NEW.task_id = 't3'"
        other.execute(f"CREATE TRIGGER fails {when} BEGIN SELECT RAISE(ABORT, 'no'); END")
        other.execute("BEGIN IMMEDIATE")  # so that they wait for each other
        with ThreadPoolExecutor(6) as pool:
            waiting = [pool.submit(add, bank, f"t{number}") for number in range(1, 7)]
            time.sleep(0.3)
            other.execute("COMMIT")
            errors = [type(each.exception(60)) for each in waiting]
        assert errors == [type(None), type(None), StorageError, *[type(None)] * 3]
        assert bank.seen_tasks() == {"t0", "t1", "t2", "t4", "t5", "t6"}
        assert bank.doctor() == []


def test_an_interrupted_write_is_not_done_later_and_those_that_wait_are() -> None:
    commits = GroupCommit(lambda: nullcontext(sqlite3.connect(":memory:")))
    begun, queued, calls = threading.Event(), threading.Event(), []

    def interrupted(connection: object, items: Sequence[int]) -> list[str]:
        calls.append(connection)
        begun.set()
        queued.wait(10)
        raise KeyboardInterrupt

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(commits.run, 1, interrupted, 1)
        begun.wait(10)
        second = pool.submit(commits.run, 2, lambda connection, items: ["done"], 1)
        time.sleep(0.1)
        queued.set()
        assert isinstance(first.exception(10), KeyboardInterrupt)
        assert second.result(10) == "done"
    assert len(calls) == 1
