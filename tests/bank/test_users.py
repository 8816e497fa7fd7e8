"""Several users of one file: who may write the bank may use what lies beside it, and who only reads leaves nothing.

Where root runs these, the other user is one of its children; elsewhere, where nobody can become another, it is the same
one, whom the permissions bind as they do others.
"""

import os
import shutil
import stat
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
