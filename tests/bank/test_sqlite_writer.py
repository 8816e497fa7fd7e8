"""One writer a process, one at a time across processes: what callers may count on, whatever happens to them."""

import gc
import os
import signal
import sqlite3
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rb_dspy.bank.parts import Source
from rb_dspy.bank.sqlite import files as sqlite, lock_elsewhere
from rb_dspy.bank.sqlite.connections import Readers
from rb_dspy.bank.sqlite.lock import FileLock
from rb_dspy.bank.sqlite.original import Original
from rb_dspy.bank.sqlite.store import SqliteStore
from rb_dspy.errors import InputError, StorageError
from rb_dspy.schema import Experience
from tests.bank.helpers import finish, start
from tests.bank.store_cases import DIMENSION, SCOPE, a_store, append, give, lesson, names, new, rollout, vector, waiting


def writers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "rb_dspy bank writer"]


def locked(path: Path) -> sqlite3.Connection:
    """A program that holds SQLite's lock, without ours."""
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    return holder


def wait_for(store: SqliteStore, requests: int) -> None:
    """Until so many requests wait for the writer."""
    deadline = time.monotonic() + 20
    while len(store._writer._waiting) < requests:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def commits(path: Path, work: ThreadPoolExecutor, jobs: int, store: SqliteStore) -> int:
    """How many transactions it takes to do many appends that all wait at once."""
    holder = locked(path)
    futures = [work.submit(give, store, f"e{n}", f"lesson {n}") for n in range(jobs)]
    wait_for(store, jobs)
    watcher = sqlite3.connect(path)
    before = watcher.execute("PRAGMA data_version").fetchone()[0]
    seen: set[int] = {before}
    holder.execute("ROLLBACK")
    holder.close()
    while not all(future.done() for future in futures):
        seen.add(watcher.execute("PRAGMA data_version").fetchone()[0])
    watcher.close()
    assert [future.result().id for future in futures] == [f"e{n}" for n in range(jobs)]
    return len(seen) - 1


def test_appends_that_wait_share_a_transaction(path: Path, store: SqliteStore) -> None:
    with ThreadPoolExecutor(40) as work:
        assert commits(path, work, 40, store) <= 2
    assert len(names(store)) == 40
    assert list(store.check()) == []


def test_one_bad_request_fails_its_caller_alone(path: Path, store: SqliteStore) -> None:
    kept = give(store, "first", "a")
    holder = locked(path)
    with ThreadPoolExecutor(8) as work:
        source = Source("experience", "second")
        jobs: list[Future[Any]] = [
            work.submit(give, store, "second", "b"),
            work.submit(append, store, "nowhere", [new("x", "c", scope="nowhere")]),
            work.submit(store.edit, SCOPE, "no such item", lesson("d"), vector("d"), note=""),
            work.submit(give, store, "third", "e", run_id="\ud800"),  # no column takes a lone surrogate
            work.submit(store.record, SCOPE, rollout("waits")),
            work.submit(give, store, "fourth", "f"),
            work.submit(give, store, "first", "a"),
        ]
        wait_for(store, len(jobs))
        holder.execute("ROLLBACK")
        holder.close()
        errors = [type(job.exception()).__name__ for job in jobs]
        assert errors[:4] == ["NoneType", "UnknownScope", "InputError", "UnicodeEncodeError"]
        assert errors[4:] == ["NoneType"] * 3
        assert jobs[-1].result() == kept
    assert sorted(names(store)) == ["first", "fourth", "second"]
    assert waiting(store) == ["waits"]
    assert store.remove(SCOPE, kind="delete", source=source, descendants=False, note="").experiences == ("second",)
    assert list(store.check()) == []


def test_a_batch_that_cannot_be_kept_whole_is_not_kept_at_all(store: SqliteStore) -> None:
    with pytest.raises(UnicodeEncodeError):
        append(store, SCOPE, [new("good", "a"), new("bad", "b", run_id="\ud800"), new("fine", "c")])
    assert (names(store), store.mark(SCOPE)) == ([], 0)
    with pytest.raises(InputError, match="1 items and 0 vectors"):
        append(store, SCOPE, [new("good", "a"), replace(new("bad", "b"), item_vectors=())])
    assert (names(store), store.mark(SCOPE)) == ([], 0)


def test_who_waits_too_long_is_told_and_nothing_comes_later(
    path: Path, store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "WAIT_SECONDS", 0.2)
    holder = locked(path)
    began = time.monotonic()
    with pytest.raises(StorageError, match=r"another process keeps it locked; end that process or wait"):
        give(store, "late", "a")
    assert time.monotonic() - began < 5
    holder.execute("ROLLBACK")
    holder.close()
    monkeypatch.undo()
    give(store, "after", "b")
    assert names(store) == ["after"]


def test_the_file_lock_counts_as_well(path: Path, store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    lock = FileLock(Path(f"{path}.lock"))
    with lock:
        monkeypatch.setattr(sqlite, "WAIT_SECONDS", 0.2)
        with pytest.raises(StorageError, match="another process keeps it locked"):
            give(store, "late", "a")
        assert names(store) == []  # who reads does not wait
        monkeypatch.undo()
    lock.forget()
    give(store, "after", "b")
    assert names(store) == ["after"]


@pytest.mark.skipif(os.name == "nt", reason="links need a right there")
def test_the_file_lock_is_the_same_through_a_link(
    path: Path, store: SqliteStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite's own locks do not keep a checkpoint from meeting a writer."""
    link = tmp_path / "elsewhere" / "link.sqlite"
    link.parent.mkdir()
    link.symlink_to(path)
    other = SqliteStore(link)
    lock = FileLock(Path(f"{path}.lock"))
    with lock:
        monkeypatch.setattr(sqlite, "WAIT_SECONDS", 0.2)
        with pytest.raises(StorageError, match="another process keeps it locked"):
            give(other, "late", "a")
        monkeypatch.undo()
    lock.forget()
    give(other, "after", "b")
    assert names(store) == ["after"]
    other.close()
    assert [file.name for file in link.parent.iterdir()] == ["link.sqlite"]


def test_a_write_that_has_begun_is_waited_for(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long it takes: giving up would leave its caller in doubt."""
    begun = threading.Event()

    def slow(connection: sqlite3.Connection) -> str:
        begun.set()
        time.sleep(0.6)
        connection.execute("INSERT INTO scopes (name) VALUES ('slow')")
        return "done"

    monkeypatch.setattr(sqlite, "WAIT_SECONDS", 0.2)
    assert store._write(slow) == "done"
    assert begun.is_set()
    assert "slow" in store.scopes()


def test_ctrl_c_during_a_write_that_has_begun(store: SqliteStore) -> None:
    def slow(connection: sqlite3.Connection) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.3)
        connection.execute("INSERT INTO scopes (name) VALUES ('slow')")

    with pytest.raises(KeyboardInterrupt):
        store._write(slow)
    assert "slow" in store.scopes()  # it was known when the interrupt came through
    give(store, "after", "a")


def test_ctrl_c_before_a_write_begins(path: Path, store: SqliteStore) -> None:
    holder = locked(path)
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        give(store, "withdrawn", "a")
    holder.execute("ROLLBACK")
    holder.close()
    give(store, "after", "b")
    assert names(store) == ["after"]


@pytest.mark.parametrize("error", [ValueError, InputError])
def test_a_failed_write_that_was_reading_does_not_hold_up_the_next(
    path: Path, store: SqliteStore, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    give(store, "first", "a", "b")

    def failing(connection: sqlite3.Connection) -> None:
        cursor = connection.execute("SELECT * FROM items")
        cursor.fetchone()
        raise error

    with pytest.raises(error) as caught:
        store._write(failing)
    monkeypatch.setattr(sqlite, "WAIT_SECONDS", 3.0)
    other = a_store(path)
    give(other, "second", "c")
    other.close()
    give(store, "third", "d")
    assert names(store) == ["first", "second", "third"]
    assert caught.tb is not None  # and with it the cursor


def test_a_thread_that_dies_leaves_nobody_waiting(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading, "excepthook", lambda _: None)

    def deadly(_: sqlite3.Connection) -> None:
        raise SystemExit

    with pytest.raises(StorageError, match="the thread that writes died"):
        store._write(deadly)
    give(store, "after", "a")  # by a new thread
    assert names(store) == ["after"]
    assert list(store.check()) == []


def test_close_writes_what_waits(path: Path) -> None:
    store = a_store(path)
    holder = locked(path)
    with ThreadPoolExecutor(5) as work:
        jobs = [work.submit(give, store, f"e{n}", "a") for n in range(4)]
        wait_for(store, 4)
        closing = work.submit(store.close)
        time.sleep(0.1)
        assert not closing.done()
        holder.execute("ROLLBACK")
        holder.close()
        closing.result()
        assert {job.result().id for job in jobs} == {"e0", "e1", "e2", "e3"}
    with pytest.raises(StorageError, match="closed; open it again"):
        give(store, "late", "b")
    with pytest.raises(StorageError, match="closed; open it again"):
        store.items(SCOPE)
    store.close()
    again = a_store(path)
    assert len(names(again)) == 4
    again.close()


def test_only_the_bank_is_left_when_all_have_closed_it(path: Path) -> None:
    one, two = a_store(path), a_store(path)
    give(one, "a", "a")
    one.close()
    give(two, "b", "b")
    two.close()
    assert [file.name for file in path.parent.iterdir()] == [path.name]


class Closing(Original):
    """Somebody closes the readers while the file is looked up."""

    readers: Readers

    def check(self) -> None:
        self.readers.close()


def test_nothing_is_opened_after_a_close(path: Path) -> None:
    made: list[sqlite3.Connection] = []

    def connect() -> sqlite3.Connection:
        made.append(sqlite3.connect(path))
        return made[-1]

    original = Closing(path, str(path))
    original.readers = readers = Readers(str(path), connect, original)
    with pytest.raises(StorageError, match="closed; open it again"):
        readers.version()
    assert made == []


CLOSES = """
import sys
from pathlib import Path
from rb_dspy.bank.sqlite.store import SqliteStore
from rb_dspy.errors import StorageError
path = Path(sys.argv[1])
store = SqliteStore(path)
def hook(event, given):
    if event == "sqlite3.connect" and str(path) in str(given[0]):
        store.close()
sys.addaudithook(hook)
try:
    store.scopes()
except StorageError as exc:
    print(exc)
print(*[file.name for file in path.parent.iterdir()])
"""


def test_what_was_opened_during_a_close_is_closed(path: Path) -> None:
    a_store(path).close()
    assert finish(start(CLOSES, str(path))) == f"{path}: this bank is closed; open it again\n{path.name}\n"


def test_no_thread_before_the_first_write_nor_after_the_last(path: Path) -> None:
    before = len(writers())
    a_store(path).close()
    assert len(writers()) == before
    store = SqliteStore(path)
    assert store.items(SCOPE) == []
    assert len(writers()) == before
    store.bind("test", DIMENSION)
    give(store, "a", "a")
    assert len(writers()) == before + 1
    used = time.process_time()
    time.sleep(0.5)
    assert time.process_time() - used < 0.1  # it sleeps
    store.close()
    assert len(writers()) == before


def test_a_store_that_nobody_holds_closes_itself(path: Path) -> None:
    store = a_store(path)
    give(store, "a", "a")
    before = len(writers())
    del store
    gc.collect()
    assert len(writers()) == before - 1
    assert [file.name for file in path.parent.iterdir()] == [path.name]


ENDS = """
import sys
from pathlib import Path
from tests.bank.store_cases import DIMENSION, SCOPE, give
from rb_dspy.bank.sqlite.store import SqliteStore
store = SqliteStore(Path(sys.argv[1]))
store.bind("test", DIMENSION)
store.add_scope(SCOPE)
for n in range(5):
    give(store, f"e{n}", "a")
"""


def test_a_program_may_end_without_closing(path: Path) -> None:
    assert finish(start(ENDS, str(path))) == ""
    assert [file.name for file in path.parent.iterdir()] == [path.name]
    store = a_store(path)
    assert len(names(store)) == 5
    store.close()


FORKS = """
import os, sys
from pathlib import Path
from tests.bank.store_cases import DIMENSION, SCOPE, give, names
from rb_dspy.bank.sqlite.store import SqliteStore
from rb_dspy.errors import StorageError
store = SqliteStore(Path(sys.argv[1]))
store.bind("test", DIMENSION)
store.add_scope(SCOPE)
give(store, "before", "a")
child = os.fork()
if not child:
    for use in (lambda: give(store, "child", "b"), lambda: names(store), store.version):
        try:
            use()
        except StorageError as exc:
            assert "opened before a fork; open it again" in str(exc), exc
        else:
            os._exit(9)
    again = SqliteStore(Path(sys.argv[1]))
    again.bind("test", DIMENSION)
    give(again, "child", "b")
    again.close()
    store.close()  # nothing of the parent's
    sys.exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
give(store, "after", "c")
print(*names(store))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_after_a_fork_the_parent_goes_on_and_the_child_opens_it_again(path: Path) -> None:
    assert finish(start(FORKS, str(path))).split() == ["before", "child", "after"]


HELD = """
import os, sys, time
from pathlib import Path
from rb_dspy.bank.sqlite.lock import FileLock
with FileLock(Path(sys.argv[1])):
    child = os.fork()
    if not child:
        time.sleep(60)
    print(child, flush=True)
    time.sleep(60)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_a_forked_child_does_not_keep_a_dead_parents_lock(tmp_path: Path) -> None:
    parent = start(HELD, str(tmp_path / "lock"))
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    try:
        lock = FileLock(tmp_path / "lock")
        assert lock.take(10)
        lock.remove()
    finally:
        os.kill(child, signal.SIGKILL)
        parent.communicate()


def test_the_lock_is_one_at_a_time_even_while_its_file_comes_and_goes(tmp_path: Path) -> None:
    inside = 0
    most = 0

    def work(n: int) -> None:
        nonlocal inside, most
        lock = FileLock(tmp_path / "lock")
        for turn in range(50):
            removes = (n + turn) % 3 == 0
            if removes:
                assert lock.take(30)
            else:
                lock.__enter__()
            inside += 1
            most = max(most, inside)
            time.sleep(0.0002)
            inside -= 1
            lock.remove() if removes else lock.__exit__(None, None, None)
        lock.forget()

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    assert most == 1


def test_a_long_log_is_copied_into_the_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rb_dspy.bank.sqlite.log._LONG_BYTES", 200_000)
    store = a_store(path)
    reader = sqlite3.connect(path, isolation_level=None)
    for n in range(300):
        if n == 100:  # somebody reads an old state for a while: the log cannot begin anew
            reader.execute("BEGIN")
            reader.execute("SELECT * FROM scopes").fetchall()
        if n == 200:
            reader.execute("ROLLBACK")
        give(store, f"e{n}", f"a {n}", f"b {n}", f"c {n}")
    assert Path(f"{path}-wal").stat().st_size < 3_000_000
    assert path.stat().st_size > 100_000
    reader.close()
    assert list(store.check()) == []
    store.close()


def test_what_goes_wrong_after_a_write_is_not_the_next_ones(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Copying the log comes after the answers: it can fail nobody, neither those before it nor those who wait."""
    copied = threading.Event()

    def failing(connection: sqlite3.Connection) -> None:
        if not copied.is_set():
            wait_for(store, 1)
            copied.set()
            raise OSError(5, "the disk is gone")

    monkeypatch.setattr(store._writer._log, "is_long", lambda: True)
    monkeypatch.setattr(store._writer._log, "shorten", failing)
    first = give(store, "first", "a")
    with ThreadPoolExecutor(1) as work:
        second = work.submit(give, store, "second", "b").result()
    assert copied.is_set()
    assert [first.id, second.id] == names(store) == ["first", "second"]


def test_threads_get_their_own_answers(store: SqliteStore) -> None:
    def one(n: int) -> Experience:
        return give(store, f"e{n % 25}", f"own {n % 25}", "shared by all")

    with ThreadPoolExecutor(8) as work:
        made = list(work.map(one, range(100)))
    assert [experience.id for experience in made] == [f"e{n % 25}" for n in range(100)]
    assert all(experience.items[0].title == f"On own {n % 25}" for n, experience in enumerate(made))
    shared = store.experience(SCOPE, "e3")
    assert shared is not None
    assert len(shared.items[1].provenances) == 25
    assert len(store.items(SCOPE)) == 26


def test_the_lock_of_systems_without_flock(tmp_path: Path) -> None:
    one, two = lock_elsewhere.FileLock(tmp_path / "lock"), lock_elsewhere.FileLock(tmp_path / "lock")
    with one:
        assert not two.take(0.1)
    assert two.take(5)
    two.remove()
    with one:
        one.forget()
    (tmp_path / "file").touch()
    assert not lock_elsewhere.FileLock(tmp_path / "file" / "lock").take(0.1)


def test_how_connections_are_set(store: SqliteStore) -> None:
    def settings(connection: sqlite3.Connection) -> list[object]:
        names = ("journal_mode", "foreign_keys", "wal_autocheckpoint", "synchronous")
        return [connection.execute(f"PRAGMA {name}").fetchone()[0] for name in names]

    assert store._read(settings) == ["wal", 1, 0, 2]
    assert store._write(settings) == ["wal", 1, 0, 1]  # NORMAL: what it leaves out ``Log`` does, see test_power_cut.py
