"""Several users of one file: who may write the bank may use what lies beside it, and who only reads leaves nothing.

Where root runs these, the other user is one of its children; elsewhere, where nobody can become another, it is the same
one, whom the permissions bind as they do others.
"""

import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bank.helpers import add, finish, open_bank, start

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="files have no such permissions there")


@pytest.mark.parametrize("mode", [0o664, 0o600, 0o666])
def test_who_may_write_the_bank_may_take_its_lock(path: Path, mode: int) -> None:
    """As they may write SQLite's own files beside it; others may do neither."""
    before = os.umask(0o077)
    try:
        open_bank(path).close()
        path.chmod(mode)
        with open_bank(path) as bank:
            add(bank)
            modes = {end: stat.S_IMODE(os.stat(f"{path}{end}").st_mode) for end in ("-wal", "-shm", ".lock")}
        assert modes == {"-wal": mode, "-shm": mode, ".lock": mode}
    finally:
        os.umask(before)


OTHER = """
import os, sys
from pathlib import Path
from tempfile import TemporaryDirectory
from rb_dspy.errors import StorageError
from tests.bank.helpers import add, open_bank
with TemporaryDirectory() as folder, open_bank(Path(folder, "b")) as bank:
    add(bank)
    bank.retrieve("x")  # what is imported for it may lie where only root reads
if not os.geteuid():
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65533)
"""


APPENDS = """
try:
    with open_bank(sys.argv[1]) as bank:
        add(bank, "theirs")
except StorageError as exc:
    print(exc)
"""

DIES = """
import os, sys
from tests.bank.helpers import add, open_bank
bank = open_bank(sys.argv[1])
add(bank, "mine")
os.kill(os.getpid(), 9)
"""


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that others can write: pytest's are closed to them."""
    folder = Path(tempfile.mkdtemp(prefix="rb_dspy-", dir="/tmp"))
    folder.chmod(0o777)
    yield folder
    shutil.rmtree(folder)


def test_the_message_names_the_lock_that_is_in_the_way(open_folder: Path) -> None:
    path, lock = open_folder / "bank.sqlite", open_folder / "bank.sqlite.lock"
    open_bank(path).close()
    path.chmod(0o666)
    lock.touch()
    lock.chmod(0)  # closed to whomever runs this, and to others where that is root
    told = finish(start(OTHER + APPENDS, str(path))).strip()
    assert told == f"{path}: {lock} cannot be used: Permission denied; check the permissions"


def test_a_lock_that_a_process_left_that_was_killed_keeps_nobody_out(open_folder: Path) -> None:
    """Where that process may have been another user's; without rights over users it is the same one's."""
    path = open_folder / "bank.sqlite"
    open_bank(path).close()
    path.chmod(0o666)
    start(DIES, str(path)).communicate(timeout=60)
    assert (open_folder / "bank.sqlite.lock").exists()
    assert finish(start(OTHER + APPENDS, str(path))) == ""
    with open_bank(path) as bank:
        assert len(bank) == 2


READS = """
try:
    with open_bank(sys.argv[1]) as bank:
        found = bank.retrieve("do t", k=9)
        print(len(bank), len(found), len(bank.doctor()))
        print(*sorted(os.listdir(os.path.dirname(sys.argv[1]))))
        if len(sys.argv) > 2:
            print("go", flush=True)
            sys.stdin.readline()
            print(len(bank), len(bank.retrieve("do t", k=9)))
        add(bank, "theirs")
except StorageError as exc:
    print(exc)
"""

ONLY_READ = "it is only read, since it cannot be written; check the permissions of the file and its folder"


@pytest.fixture
def anothers(open_folder: Path) -> Path:
    """A bank in a folder that all may write, which its owner alone may write; here as if its owner were somebody else.

    Where root runs this its mode binds the child; elsewhere the mode is that of a file that nobody may write.
    """
    path = open_folder / "bank.sqlite"
    with open_bank(path) as bank:
        for n in range(3):
            add(bank, f"t{n}")
    path.chmod(0o644 if os.geteuid() == 0 else 0o444)
    return path


def test_who_may_only_read_the_file_leaves_nothing_beside_it(anothers: Path) -> None:
    before = anothers.read_bytes()
    told = finish(start(OTHER + READS, str(anothers))).splitlines()
    assert told == ["3 3 0", anothers.name, f"{anothers}: {ONLY_READ}"]
    assert [file.name for file in anothers.parent.iterdir()] == [anothers.name]
    assert anothers.read_bytes() == before
    anothers.chmod(0o644)
    with open_bank(anothers) as bank:
        add(bank, "mine")
        assert len(bank) == 4


def test_nor_while_its_owner_has_it_open_whom_it_follows(open_folder: Path, anothers: Path) -> None:
    anothers.chmod(0o644)
    with open_bank(anothers) as bank:
        add(bank, "in the log")
        anothers.chmod(0o644 if os.geteuid() == 0 else 0o444)
        beside = {file.name: file.stat().st_uid for file in open_folder.iterdir()}
        reader = start(OTHER + READS, str(anothers), "waits", stdin=subprocess.PIPE)
        assert reader.stdout is not None
        told = [reader.stdout.readline().strip() for _ in range(3)]
        assert told == ["4 4 0", " ".join(sorted(beside)), "go"]
        add(bank, "later")
        rest, said = reader.communicate("go on\n", timeout=60)
        assert rest.splitlines() == ["5 5", f"{anothers}: {ONLY_READ}"], said
        assert {file.name: file.stat().st_uid for file in open_folder.iterdir()} == beside
        add(bank, "last")
        assert len(bank) == 6


def test_nor_where_its_owner_was_killed(open_folder: Path, anothers: Path) -> None:
    anothers.chmod(0o644)
    start(DIES, str(anothers)).communicate(timeout=60)
    anothers.chmod(0o644 if os.geteuid() == 0 else 0o444)
    beside = {file.name: (file.stat().st_uid, file.read_bytes()) for file in open_folder.iterdir()}
    told = finish(start(OTHER + READS, str(anothers))).splitlines()
    assert (told[0], told[2]) == ("4 4 0", f"{anothers}: {ONLY_READ}")
    assert {file.name: (file.stat().st_uid, file.read_bytes()) for file in open_folder.iterdir()} == beside
    anothers.chmod(0o644)
    with open_bank(anothers) as bank:
        add(bank, "more")
        assert len(bank) == 5


def test_what_is_read_without_locks_is_not_read_on_when_it_is_written(anothers: Path) -> None:
    reader = start(OTHER + READS, str(anothers), "waits", stdin=subprocess.PIPE)
    assert reader.stdout is not None
    assert [reader.stdout.readline().strip() for _ in range(3)][2] == "go"
    anothers.chmod(0o644)
    with open_bank(anothers) as bank:
        add(bank, "later")
        rest, _ = reader.communicate("go on\n", timeout=60)
    assert "the file was changed, replaced or removed while it was open; open it again" in rest


def test_who_may_only_read_a_bank_that_nobody_may_write_copies_it(anothers: Path) -> None:
    anothers.chmod(0o444)
    backs_up = """
from rb_dspy.bank import MemoryBank
MemoryBank.backup(sys.argv[1], to=Path(sys.argv[2]))
with open_bank(sys.argv[2]) as bank:
    print(len(bank), oct(os.stat(sys.argv[2]).st_mode & 0o777))
"""
    to = anothers.with_name("copy.sqlite")
    assert finish(start(OTHER + backs_up, str(anothers), str(to))).strip() == "3 0o444"
    assert sorted(file.name for file in anothers.parent.iterdir()) == [anothers.name, to.name]
