"""Files that are no banks are refused in one line and left alone; what was acknowledged survives."""

import os
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from rb_dspy.bank import MemoryBank
from rb_dspy.errors import BankError, CorruptBank, InputError, SchemaTooNew, StorageError
from rb_dspy.testing.embedder import HashEmbedder
from tests.bank.helpers import add, finish, open_bank, start


def refused(path: Path, kind: type[BankError], words: str, **kwargs: bool) -> None:
    before = path.read_bytes() if path.is_file() else None
    folder = sorted(path.parent.iterdir()) if path.parent.is_dir() else None
    for create in (True, False):
        with pytest.raises(kind, match=words) as caught:
            open_bank(path, create=create)
        message = str(caught.value)
        assert message.startswith(str(path))
        assert "\n" not in message
        assert len(message) < 300 + len(str(path))
    assert (path.read_bytes() if path.is_file() else None) == before
    assert (sorted(path.parent.iterdir()) if path.parent.is_dir() else None) == folder


@pytest.fixture
def full(tmp_path: Path) -> Path:
    """A bank with something in it."""
    path = tmp_path / "bank.sqlite"
    with open_bank(path) as bank:
        for n in range(20):
            add(bank, f"t{n}", lessons=2)
    return path


GARBAGE = [b"not a bank, " * 1000, b"x", b"{}\n", b"\0" * 5000, b"SQLite format 3\0" + b"\xff" * 9000]


@pytest.mark.parametrize("content", GARBAGE)
def test_garbage(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "bank.sqlite"
    path.write_bytes(content)
    refused(path, CorruptBank, "not a bank|damaged")


@pytest.mark.parametrize("share", [0.02, 0.3, 0.7, 0.95])
def test_truncated(full: Path, share: float) -> None:
    content = full.read_bytes()
    full.write_bytes(content[: int(len(content) * share)])
    refused(full, CorruptBank, "damaged|not a bank")


def test_somebody_elses_database(tmp_path: Path) -> None:
    path = tmp_path / "other.sqlite"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE notes (text)")
    connection.close()
    refused(path, CorruptBank, "a database, but not a bank")


def test_newer_schema(full: Path) -> None:
    with sqlite3.connect(full) as connection:
        connection.execute("UPDATE meta SET value = '99' WHERE key = 'schema'")
    connection.close()
    refused(full, SchemaTooNew, r"bank schema 99; this one knows 2")


def test_a_bank_of_the_first_edition(tmp_path: Path) -> None:
    path = tmp_path / "bank.sqlite"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE experiences (id)")
        connection.execute("CREATE TABLE items (id)")
        connection.execute("CREATE TABLE scopes (id)")
    connection.close()
    with pytest.raises(CorruptBank, match="a bank of the first edition; export it"):
        open_bank(path, create=False)


def test_folder_and_other_non_files(tmp_path: Path) -> None:
    refused(tmp_path / ".", StorageError, "not a file")
    os.mkfifo(tmp_path / "pipe")
    refused(tmp_path / "pipe", StorageError, "not a file")
    (tmp_path / "file").write_text("x")
    refused(tmp_path / "file" / "bank.sqlite", StorageError, "cannot be used|no bank there")


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs a file system that nobody can write to")
def test_unwritable_place() -> None:
    with pytest.raises(StorageError, match="cannot be"):
        open_bank("/proc/bank.sqlite")


def test_a_name_that_is_too_long_is_called_that(tmp_path: Path) -> None:
    for create in (True, False):
        with pytest.raises(StorageError, match=r"name too long.*; give a shorter one") as caught:
            open_bank(tmp_path / ("x" * 300), create=create)
        assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_looking_makes_nothing(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="no bank there"):
        open_bank(tmp_path / "a" / "bank.sqlite", create=False)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "empty").touch()
    with pytest.raises(StorageError, match="no bank there"):
        open_bank(tmp_path / "empty", create=False)
    assert (tmp_path / "empty").stat().st_size == 0
    open_bank(tmp_path / "empty").close()  # a creation that was interrupted leaves an empty file


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("mysql://host/db", "expected a path"),
        ("", "expected a path"),
        ("a\0b", "expected a path"),
        ("a\ud800b", "expected a path"),
        ("~nobody has this name/b", "give the whole path"),
    ],
)
def test_addresses(url: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        open_bank(url)


@pytest.mark.parametrize("embedder", [HashEmbedder, open_bank])
def test_what_is_no_embedder_makes_no_file(tmp_path: Path, embedder: Any) -> None:
    with pytest.raises(InputError, match="expected an object with id, dimension and embed"):
        MemoryBank.open(tmp_path / "bank.sqlite", scope="s", embedder=embedder)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["with space.sqlite", "a?b=c#d%20e.sqlite", "ünï.sqlite", "'quote\".db"])
def test_odd_file_names(tmp_path: Path, name: str) -> None:
    for _ in range(2):
        with open_bank(str(tmp_path / name)) as bank:
            add(bank)
    assert {file.name for file in tmp_path.iterdir()} == {name, f"{name}.lock"}


def test_files_are_for_their_owner_only(full: Path, tmp_path: Path) -> None:
    MemoryBank.backup(full, to=tmp_path / "copy.sqlite")
    MemoryBank.restore(full, copy=tmp_path / "copy.sqlite")
    for file in (full, tmp_path / "copy.sqlite"):
        assert file.stat().st_mode & 0o777 == 0o600


def test_a_bank_that_is_open_is_not_replaced(full: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.sqlite"
    MemoryBank.backup(full, to=copy)
    with open_bank(full) as bank:
        with pytest.raises(StorageError, match="in use"):
            MemoryBank.restore(full, copy=copy)
        add(bank, "late")
    with pytest.raises(InputError, match="the bank itself"):
        MemoryBank.restore(full, copy=full)
    aside = MemoryBank.restore(full, copy=copy)
    with open_bank(full) as bank, open_bank(aside) as before:
        assert (len(bank.experiences()), len(before.experiences())) == (20, 21)


def test_a_bank_that_is_in_use_is_restored_from_with_its_last_appends(full: Path, tmp_path: Path) -> None:
    with open_bank(full) as live:
        add(live, "late")  # in the log of the file
        MemoryBank.restore(tmp_path / "restored.sqlite", copy=full)
    with open_bank(tmp_path / "restored.sqlite", create=False) as bank:
        assert len(bank.experiences()) == 21
        assert bank.doctor() == []
    assert not list(tmp_path.glob("*.restoring*"))


FULL_DISK = """
import resource, signal, sys
from pathlib import Path
import tests.bank.helpers as h
from rb_dspy.bank import MemoryBank
from rb_dspy.errors import StorageError
from rb_dspy.testing.embedder import HashEmbedder
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
path = Path(sys.argv[1])
bank = h.open_bank(path)
class Other(HashEmbedder):
    id = "other"
def fill():
    for n in range(200):
        h.add(bank, f"more{n}", f"words {n} " * 99)
for n in range(30):
    h.add(bank, f"t{n}", "words " * 99)
writers = {
    "append": fill,
    "record": lambda: [bank.record(h.a_task(f"p{n}", "words " * 999), h.a_rollout(f"p{n}")) for n in range(99)],
    "export": lambda: bank.export_jsonl(path.with_name("export.jsonl")),
    "backup": lambda: MemoryBank.backup(path, to=path.with_name("copy.sqlite")),
    "purge": lambda: bank.purge(bank.items()[0].id),
    "reindex": lambda: bank.reindex(Other()),
}
for name, write in writers.items():
    least = 0 if name in ("export", "backup") else path.with_name(path.name + "-wal").stat().st_size
    resource.setrlimit(resource.RLIMIT_FSIZE, (least + 8192, resource.RLIM_INFINITY))
    try:
        write()
    except StorageError as exc:
        assert "\\n" not in str(exc), exc
        print(name, "StorageError")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
    assert bank.doctor() == [], name
    assert len(bank.items()) == len(bank.retrieve("words", k=999, unit="item")) >= 29, name
    h.add(bank, f"after {name}")
print(*sorted(each.name for each in path.parent.iterdir()))
"""


def test_a_full_disk_is_one_error_and_the_bank_stays_whole(tmp_path: Path) -> None:
    names = ("append", "record", "export", "backup", "purge", "reindex")
    files = "bank.sqlite bank.sqlite-shm bank.sqlite-wal bank.sqlite.lock"
    expected = [*(f"{name} StorageError" for name in names), files]
    assert finish(start(FULL_DISK, str(tmp_path / "bank.sqlite"))).splitlines() == expected
