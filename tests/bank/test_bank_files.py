"""Files that are no banks are refused in one line and left alone; what was acknowledged survives."""

import os
import shutil
import signal
import sqlite3
from pathlib import Path

import pytest
import sqlalchemy as sa

from rb_dspy.bank import tables
from rb_dspy.bank.migrations import APPLICATION_ID, MIGRATIONS
from rb_dspy.bank.sqlite import in_memory
from rb_dspy.errors import BankError, CorruptBank, InputError, RBError, SchemaTooNew, StorageError
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
        connection.execute("PRAGMA user_version = 99")
    connection.close()
    refused(full, SchemaTooNew, r"bank schema 99; this one knows 1")


def test_newer_schema_still_in_the_log(full: Path) -> None:
    """The version that counts is the one SQLite would read, not the one in the file's first bytes."""
    connection = sqlite3.connect(full)
    connection.execute("PRAGMA wal_autocheckpoint = 0")
    connection.execute("PRAGMA user_version = 99")
    refused(full, SchemaTooNew, "99")
    connection.close()


def test_tables_that_are_not_a_banks(tmp_path: Path) -> None:
    path = tmp_path / "bank.sqlite"
    with sqlite3.connect(path) as connection:
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")
        connection.execute("CREATE TABLE notes (text)")
    connection.close()
    with pytest.raises(CorruptBank, match="not those of a bank"):
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
    ("url", "kind", "words"),
    [
        ("postgresql://host/db", RBError, "not there yet"),
        ("mysql://host/db", InputError, "expected a path"),
        ("", InputError, "expected a path"),
        ("a\0b", InputError, "expected a path"),
        ("a\ud800b", InputError, "expected a path"),
    ],
)
def test_addresses(url: str, kind: type[RBError], words: str) -> None:
    with pytest.raises(kind, match=words):
        open_bank(url)


@pytest.mark.parametrize("name", ["with space.sqlite", "a?b=c#d%20e.sqlite", "ünï.sqlite", "'quote\".db"])
def test_odd_file_names(tmp_path: Path, name: str) -> None:
    for _ in range(2):
        with open_bank(str(tmp_path / name)) as bank:
            add(bank)
    assert [file.name for file in tmp_path.iterdir()] == [name]


def test_read_only_file(full: Path) -> None:
    full.chmod(0o444)
    if os.access(full, os.W_OK):  # root may write anyway: then SQLite is told
        with open_bank(full) as bank:
            sa.event.listen(bank._store._engine, "begin", lambda c: c.exec_driver_sql("PRAGMA query_only = 1"))  # type: ignore[attr-defined]
            bank._store._engine.dispose()  # type: ignore[attr-defined]
            with pytest.raises(StorageError, match="cannot be written"):
                add(bank, "new")
    else:
        with open_bank(full, create=False) as bank:
            assert len(bank) == 40
            with pytest.raises(StorageError, match="cannot be written"):
                add(bank, "new")


def test_damaged_row_is_named_and_the_others_are_read(full: Path) -> None:
    with open_bank(full) as bank:
        made = bank.experiences()
    with sqlite3.connect(full) as connection:
        connection.execute("UPDATE experiences SET payload = substr(payload, 1, 50) WHERE id = ?", (made[3].id,))
    connection.close()
    with open_bank(full) as bank:
        with pytest.raises(CorruptBank, match=made[3].id):
            bank.get(made[3].id)
        assert bank.get(made[4].id) == made[4]
        assert len(bank.retrieve("sort the numbers", k=50)) == 20
        add(bank, "new")


def test_damaged_vector(full: Path) -> None:
    with sqlite3.connect(full) as connection:
        connection.execute("UPDATE vectors SET data = x'00'")
    connection.close()
    with open_bank(full) as bank, pytest.raises(CorruptBank, match="vector of 1 bytes"):
        bank.retrieve("x")


DISK_FULL = """
import resource, signal, sys, tests.bank.helpers as h
from rb_dspy.errors import StorageError
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
bank = h.open_bank(sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (4_000_000, resource.RLIM_INFINITY))
done = 0
try:
    for n in range(10_000):
        h.add(bank, f"t{n}", lessons=3)
        done += 1
except StorageError as exc:
    assert "\\n" not in str(exc) and "safe" in str(exc), exc
    assert len(bank.experiences()) == done and len(bank.retrieve("sort", k=9)) == 9
    print(done)
"""


def test_disk_full(tmp_path: Path) -> None:
    path = tmp_path / "bank.sqlite"
    done = int(finish(start(DISK_FULL, str(path))))
    assert done > 10
    with open_bank(path) as bank:
        assert len(bank) == 3 * done
        add(bank, "new")


KILLED = """
import sys, tests.bank.helpers as h
bank = h.open_bank(sys.argv[1])
for n in range(100_000):
    print(h.add(bank, f"{sys.argv[2]}/{n}", lessons=2).id, flush=True)
"""


def test_kill_9_loses_nothing_acknowledged(tmp_path: Path) -> None:
    path = tmp_path / "bank.sqlite"
    acknowledged: list[str] = []
    for round_, after in enumerate((1, 7, 40)):
        process = start(KILLED, str(path), str(round_))
        assert process.stdout is not None
        for _ in range(after):
            acknowledged.append(process.stdout.readline().strip())
        process.send_signal(signal.SIGKILL)
        acknowledged += [line for line in process.communicate()[0].splitlines() if len(line) == 21]
        with open_bank(path, create=False) as bank:
            stored = bank.experiences()
            assert set(acknowledged) <= {experience.id for experience in stored}
            assert len(stored) - len(acknowledged) <= round_ + 1  # at most the one that was being acknowledged
            assert {len(experience.items) for experience in stored} == {2}
            assert len(bank.retrieve("sort", k=10_000)) == len(stored)
            assert len(bank.retrieve("sort", k=10_000, unit="item")) == 2 * len(stored)
    with sqlite3.connect(path) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    connection.close()


def test_copy_of_a_closed_bank_is_whole(full: Path, tmp_path: Path) -> None:
    shutil.copy(full, tmp_path / "copy.sqlite")
    with open_bank(full) as bank, open_bank(tmp_path / "copy.sqlite", create=False) as other:
        assert other.experiences() == bank.experiences()


def test_migrations_make_the_tables_that_queries_use() -> None:
    engine = in_memory()
    found = sa.inspect(engine)
    made = {name: {column["name"] for column in found.get_columns(name)} for name in found.get_table_names()}
    assert made == {table.name: {column.name for column in table.columns} for table in tables.metadata.sorted_tables}
    engine.dispose()


def test_what_is_acknowledged_is_synced(full: Path) -> None:
    with open_bank(full) as bank, bank._store._engine.connect() as connection:  # type: ignore[attr-defined]
        assert connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"
        assert connection.exec_driver_sql("PRAGMA synchronous").scalar() == 2
        assert connection.exec_driver_sql("PRAGMA foreign_keys").scalar() == 1
