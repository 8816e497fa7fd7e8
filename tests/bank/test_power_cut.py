"""What was acknowledged is on disk: a power cut, simulated by keeping only what was synced, loses none of it."""

import os
import shutil
import sqlite3
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rb_dspy.bank.sqlite.store import SqliteStore
from rb_dspy.errors import CorruptBank, InputError, StorageError
from tests.bank.helpers import add, open_bank
from tests.bank.store_cases import SCOPE, a_store, give, names

_SYNC = "fdatasync" if hasattr(os, "fdatasync") else "fsync"


class Disk:
    """What a power cut would leave of a bank: the files as they were when a sync of them began, number by number.

    Only syncs that end well count. What SQLite syncs by itself is not seen here, so nothing of it is needed.
    """

    def __init__(self, path: Path, kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.broken = False
        self.syncs = 0
        self._path = path
        self._kept = kept
        self._sync = getattr(os, _SYNC)
        monkeypatch.setattr(os, _SYNC, self._synced)

    def after(self, number: int) -> SqliteStore:
        """The bank as it is found after a power cut that came before the sync of this number."""
        return SqliteStore(self._kept / str(number) / self._path.name, create=False)

    def _synced(self, file: int) -> None:
        if self.broken:
            raise OSError(5, "Input/output error")
        place = self._kept / str(self.syncs + 1)
        place.mkdir(parents=True)
        for name in (self._path.name, f"{self._path.name}-wal"):
            shutil.copy(self._path.parent / name, place / name)
        self._sync(file)
        self.syncs += 1


@pytest.fixture
def disk(store: SqliteStore, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(path, tmp_path / "kept", monkeypatch)


def test_nothing_acknowledged_is_lost(store: SqliteStore, disk: Disk) -> None:
    def one(number: int) -> tuple[str, int]:
        id = give(store, f"e{number}", f"lesson {number}").id
        return id, disk.syncs  # a power cut after this must leave it

    with ThreadPoolExecutor(4) as work:
        acknowledged = list(work.map(one, range(40)))
    assert disk.syncs > 1
    for number in range(1, disk.syncs + 1):
        left = disk.after(number)
        found = left.have(SCOPE, [id for id, _ in acknowledged])
        assert found >= {id for id, synced in acknowledged if synced <= number}
        assert list(left.check()) == []
        left.close()


def test_other_writes_are_synced_too(store: SqliteStore, disk: Disk) -> None:
    give(store, "e1", "a lesson")
    store.snapshot(SCOPE, "before", "2026-11-20T00:00:00+00:00")
    left = disk.after(disk.syncs)
    assert [snapshot.name for snapshot in left.snapshots(SCOPE)] == ["before"]
    left.close()


def test_who_shares_a_transaction_with_a_refused_request_is_synced(store: SqliteStore, disk: Disk, path: Path) -> None:
    now = "2026-11-20T00:00:00+00:00"
    store.snapshot(SCOPE, "taken", now)
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    with ThreadPoolExecutor(2) as work:
        kept = work.submit(give, store, "e1", "a lesson")
        while len(store._writer._waiting) < 1:
            time.sleep(0.01)
        refused = work.submit(store.snapshot, SCOPE, "taken", now)  # of a state that is another one by then
        while len(store._writer._waiting) < 2:
            time.sleep(0.01)
        holder.execute("ROLLBACK")
        holder.close()
        assert kept.result().id == "e1"
    with pytest.raises(InputError):
        refused.result()
    left = disk.after(disk.syncs)
    assert left.have(SCOPE, ["e1"]) == {"e1"}
    left.close()


def test_a_disk_that_fails_acknowledges_nothing(store: SqliteStore, disk: Disk, path: Path) -> None:
    give(store, "e1", "before")
    disk.broken = True
    with pytest.raises(StorageError, match=r"the disk failed \(Input/output error\).*not known.*do it again"):
        give(store, "e2", "meanwhile")
    disk.broken = False
    assert give(store, "e2", "meanwhile").id == "e2"
    assert list(store.check()) == []
    # The system may have dropped what that sync was to write, so nothing may rest on that part of the log any more.
    database = sqlite3.connect(f"{path.as_uri()}?immutable=1", uri=True)  # without the log
    assert database.execute("SELECT count(*) FROM experiences WHERE id IN ('e1', 'e2')").fetchone() == (2,)
    database.close()


def test_while_a_reader_holds_the_broken_log_nothing_is_written(store: SqliteStore, disk: Disk, path: Path) -> None:
    give(store, "e1", "before")
    reader = sqlite3.connect(path, isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM items").fetchone()
    disk.broken = True
    with pytest.raises(StorageError, match="the disk failed"):
        give(store, "e2", "meanwhile")
    disk.broken = False
    with pytest.raises(StorageError, match="a reader is in the way"):
        give(store, "e3", "after")
    reader.execute("ROLLBACK")
    reader.close()
    give(store, "e3", "after")
    assert names(store) == ["e1", "e2", "e3"]


def test_a_log_that_another_program_has_switched_off(path: Path) -> None:
    a_store(path).close()
    database = sqlite3.connect(path)
    assert database.execute("PRAGMA journal_mode = DELETE").fetchone() == ("delete",)
    database.close()
    store = SqliteStore(path)

    def synchronous(connection: sqlite3.Connection) -> object:
        return connection.execute("PRAGMA synchronous").fetchone()[0]

    assert store._write(synchronous) == 2  # SQLite syncs by itself then
    give(store, "e1", "a lesson")
    store.close()
    again = SqliteStore(path)
    assert again.have(SCOPE, ["e1"]) == {"e1"}
    again.close()


def test_a_long_log_is_synced_before_anybody_is_told(
    store: SqliteStore, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = []

    def shorten(_: sqlite3.Connection) -> None:
        told.append(disk.syncs)  # callers have their outcome by now

    monkeypatch.setattr(store._writer._log, "is_long", lambda: True)
    monkeypatch.setattr(store._writer._log, "shorten", shorten)
    give(store, "e1", "a lesson")
    give(store, "e2", "another")
    assert told[0] == 1
    left = disk.after(1)
    assert left.have(SCOPE, ["e1"]) == {"e1"}
    left.close()


@pytest.mark.parametrize("closed", [False, True])
def test_others_do_not_write_after_what_one_could_not_sync(
    store: SqliteStore, disk: Disk, path: Path, tmp_path: Path, closed: bool
) -> None:
    give(store, "e1", "before")
    log = Path(f"{path}-wal")
    begin = log.stat().st_size
    disk.broken = True
    with pytest.raises(StorageError, match="the disk failed"):
        give(store, "e2", "meanwhile")
    hole = log.stat().st_size - begin
    disk.broken = False
    other = SqliteStore(path)  # the system tells nothing of the error to whoever opens the log from now on
    assert names(other) == ["e1", "e2"]
    if closed:
        store.close()
    give(other, "e3", "after")
    left = tmp_path / "left" / path.name
    left.parent.mkdir()
    data = log.read_bytes()
    shutil.copy(path, left)
    if len(data) >= begin + hole:  # what was not written then never is
        data = data[:begin] + bytes(hole) + data[begin + hole :]
    Path(f"{left}-wal").write_bytes(data)
    found = SqliteStore(left)
    assert found.have(SCOPE, ["e1", "e3"]) == {"e1", "e3"}
    found.close()
    give(other, "e4", "later")
    other.close()
    store.close()
    assert sorted(file.name for file in path.parent.iterdir() if file.is_file()) == [path.name]


def test_what_one_could_not_sync_while_another_wrote(store: SqliteStore, disk: Disk, path: Path) -> None:
    give(store, "e1", "before")
    other = SqliteStore(path)

    def meanwhile(connection: sqlite3.Connection) -> None:
        connection.execute("INSERT INTO scopes (name) VALUES ('other')")
        disk.broken = True
        with pytest.raises(StorageError, match="the disk failed"):
            store._writer._log.sync()
        disk.broken = False

    with pytest.raises(StorageError, match="another process could not sync"):
        other._write(meanwhile)
    give(other, "e2", "after")
    other.close()


@pytest.mark.skipif(os.name == "nt", reason="links need a right there")
@pytest.mark.parametrize("stale", [False, True])
def test_a_bank_behind_a_link(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stale: bool) -> None:
    a_store(path).close()
    link = tmp_path / "elsewhere" / "link.sqlite"
    link.parent.mkdir()
    link.symlink_to(path)
    if stale:
        Path(f"{link}-wal").touch()
    store, synced, sync = SqliteStore(link), set[int](), getattr(os, _SYNC)

    def noted(file: int) -> None:
        synced.add(os.fstat(file).st_ino)
        sync(file)

    monkeypatch.setattr(os, _SYNC, noted)
    give(store, "e1", "a lesson")
    assert synced == {os.stat(f"{path}-wal").st_ino}
    store.close()


def test_a_close_that_does_not_wait_any_longer_acknowledges_nothing(
    store: SqliteStore, disk: Disk, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    give(store, "e1", "before")
    other = SqliteStore(path)  # so that closing does not copy the log into the database
    assert names(other) == ["e1"]
    closed = threading.Event()
    monkeypatch.setattr("rb_dspy.bank.sqlite.files.WAIT_SECONDS", 0.2)
    monkeypatch.setattr("rb_dspy.bank.sqlite.store._CLOSING_SECONDS", 0.2)

    def reached(name: str) -> None:
        if name == "after-commit":  # as if it took that long
            assert closed.wait(20)

    monkeypatch.setattr("rb_dspy.bank.sqlite.failpoints.reached", reached)
    with ThreadPoolExecutor(1) as work:
        slow = work.submit(give, store, "e2", "meanwhile")
        while not store._writer._waiting and not store._writer._lock._turn.locked():
            time.sleep(0.01)
        store.close()
        syncs = disk.syncs
        closed.set()
        with pytest.raises(StorageError, match="closed before the disk had it, so it is not known"):
            slow.result()
    assert disk.syncs == syncs
    other.close()


def test_what_was_learned_already_is_on_disk_before_anybody_goes_on_from_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process may have written it and not be told yet that it is stored."""
    path = tmp_path / "bank.sqlite"
    with open_bank(path) as bank:
        learned = add(bank, "t1")
        disk = Disk(path, tmp_path / "kept", monkeypatch)
        bank.record(learned.task, learned.trajectories[0], run_id="r")
        assert bank.pending() == []
        assert disk.syncs == 1


def test_a_log_with_a_hole_is_not_copied_over_what_is_sound(
    store: SqliteStore, disk: Disk, path: Path, tmp_path: Path
) -> None:
    for number in range(20):
        give(store, f"e{number}", f"lesson {number}")
    before = path.read_bytes()
    log = Path(f"{path}-wal")
    begin = log.stat().st_size
    disk.broken = True
    with pytest.raises(StorageError, match="the disk failed"):
        give(store, "lost", "meanwhile")
    disk.broken = False
    with log.open("r+b") as file:  # the system has dropped what it could not write
        file.seek(begin)
        file.write(bytes(log.stat().st_size - begin))
    with pytest.raises(CorruptBank, match=r"restore the file|damaged"):
        give(store, "after", "after")
    assert path.read_bytes() == before
