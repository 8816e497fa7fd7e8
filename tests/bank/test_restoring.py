"""A copy takes a bank's place whole, whatever a process that was killed has left beside it, and nothing is lost."""

import os
import re
import shutil
import signal
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from rb_dspy.bank import MemoryBank
from rb_dspy.errors import CorruptBank, InputError, RBError, SchemaTooNew, StorageError
from tests.bank.helpers import add, finish, open_bank, start

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="what is killed there leaves no open file to copy over")

DIES = """
import os, signal, sys
from tests.bank.helpers import add, open_bank
bank = open_bank(sys.argv[1])
for n in range(int(sys.argv[2]), int(sys.argv[3])):
    add(bank, f"t{n}", f"do {n}", lessons=2)
os.kill(os.getpid(), signal.SIGKILL)
"""


def killed(path: Path, begin: int, end: int) -> None:
    """A process appends these and dies: they are in the log that it leaves."""
    process = start(DIES, str(path), str(begin), str(end))
    process.communicate(timeout=120)
    assert process.returncode == -signal.SIGKILL
    assert Path(f"{path}-wal").stat().st_size


def fill(path: Path, begin: int, end: int) -> None:
    with open_bank(path) as bank:
        for n in range(begin, end):
            add(bank, f"t{n}", f"do {n}", lessons=2)


def tasks(path: Path) -> set[str]:
    """What the bank holds, which the doctor finds nothing wrong with."""
    with open_bank(path, create=False) as bank:
        assert bank.doctor() == []
        assert len(bank.items()) == 2 * len(bank.experiences())
        return {experience.task.id for experience in bank.experiences()}


def named(begin: int, end: int) -> set[str]:
    return {f"t{n}" for n in range(begin, end)}


def state(folder: Path) -> dict[str, bytes]:
    """All files but the lock's: who takes that takes it away."""
    return {file.name: file.read_bytes() for file in folder.rglob("*") if file.is_file() and file.suffix != ".lock"}


@pytest.fixture
def copy(path: Path) -> Path:
    """A copy of the bank at ``path`` when it held ten; it has learned more since, and was killed at it."""
    fill(path, 0, 10)
    copy = path.with_name("copy.db")
    shutil.copy(path, copy)
    fill(path, 10, 30)
    killed(path, 30, 32)
    return copy


def test_a_copy_takes_the_place_of_a_bank_that_was_killed(path: Path, copy: Path) -> None:
    before = copy.read_bytes()
    aside = MemoryBank.restore(path, copy=copy)
    assert copy.read_bytes() == before
    assert tasks(path) == named(0, 10)
    with open_bank(path, create=False) as bank:
        add(bank, "new")
        assert len(bank) == 21
    assert aside == path.with_name(f"{path.name}.before-restore")
    assert tasks(aside) == named(0, 32), "what was there is there still, with its log"
    assert {file.name for file in path.parent.iterdir()} == {path.name, copy.name, aside.name}


def test_also_where_it_was_copied_over_by_hand_before(path: Path, copy: Path) -> None:
    """The log lies there still, and is nobody's but the file's that is gone."""
    shutil.copy(copy, path)
    assert MemoryBank.restore(path, copy=copy) is not None
    assert tasks(path) == named(0, 10)


@pytest.mark.parametrize("remains", [(), ("-wal", "-shm")])
def test_a_log_without_its_file_is_moved_aside_as_well(path: Path, copy: Path, remains: tuple[str, ...]) -> None:
    path.unlink()
    for end in {"-wal", "-shm"} - set(remains):
        Path(f"{path}{end}").unlink()
    aside = MemoryBank.restore(path, copy=copy)
    assert tasks(path) == named(0, 10)
    assert (aside is not None) == bool(remains)
    assert Path(f"{path}.before-restore-wal").exists() == bool(remains)


def test_what_a_copys_own_log_holds_is_restored_too(path: Path) -> None:
    fill(path, 0, 3)
    killed(path, 3, 6)
    copy = path.with_name("copy.db")
    for end in ("", "-wal"):
        shutil.copy(f"{path}{end}", f"{copy}{end}")
    before = copy.read_bytes(), Path(f"{copy}-wal").read_bytes()
    fill(path, 6, 8)
    MemoryBank.restore(path, copy=copy)
    assert tasks(path) == named(0, 6)
    assert (copy.read_bytes(), Path(f"{copy}-wal").read_bytes()) == before


def test_of_a_bank_that_is_open_elsewhere_a_copy_is_whole(path: Path) -> None:
    fill(path, 0, 2)
    with open_bank(path.with_name("live.db")) as live:
        add(live, "t7", lessons=2)
        MemoryBank.restore(path, copy=path.with_name("live.db"))
        assert tasks(path) == {"t7"}
        add(live, "t8", lessons=2)
    assert tasks(path) == {"t7"}


def test_nothing_that_was_moved_aside_is_written_over(path: Path, copy: Path) -> None:
    held = []
    for number in (1, 2, 3):
        aside = MemoryBank.restore(path, copy=copy)
        assert aside is not None
        held.append(aside.name.removeprefix(path.name))
        fill(path, 10, 10 + number)
    assert held == [".before-restore", ".before-restore-2", ".before-restore-3"]
    assert [len(tasks(Path(f"{path}{end}"))) for end in held] == [32, 11, 12]
    Path(f"{path}.before-restore-4-wal").write_text("somebody's")
    assert MemoryBank.restore(path, copy=copy) == Path(f"{path}.before-restore-5")


def test_saved_indexes_stay_with_the_bank_that_they_were_made_of(path: Path, copy: Path) -> None:
    index = path.with_name(f"{path.name}.index")
    index.mkdir()
    (index / "of the old one").touch()
    aside = MemoryBank.restore(path, copy=copy)
    assert aside is not None
    assert not index.exists()
    assert aside.with_name(f"{aside.name}.index").joinpath("of the old one").exists()


def test_the_bank_keeps_its_permissions_and_its_link(path: Path, copy: Path) -> None:
    path.chmod(0o660)
    copy.chmod(0o444)
    link = path.parent / "elsewhere" / "link.db"
    link.parent.mkdir()
    link.symlink_to(path)
    assert MemoryBank.restore(link, copy=copy) == Path(f"{path}.before-restore")
    assert link.is_symlink()
    assert path.stat().st_mode & 0o777 == 0o660
    assert tasks(link) == named(0, 10)
    new = path.with_name("new.db")
    assert MemoryBank.restore(new, copy=copy) is None
    assert new.stat().st_mode & 0o777 == 0o644, "as the copy's, but a bank is written"


def bytes_changed(copy: Path) -> None:
    """A lesson is not what was stored, which only its digest tells."""
    with sqlite3.connect(copy) as connection:
        connection.execute("UPDATE items SET title = 'Read last' WHERE key = (SELECT min(key) FROM items)")
    connection.close()


def cut_short(copy: Path) -> None:
    os.truncate(copy, copy.stat().st_size // 2)


def no_bank(copy: Path) -> None:
    copy.write_bytes(b"not a bank, " * 1000)


def empty(copy: Path) -> None:
    copy.write_bytes(b"")


def newer(copy: Path) -> None:
    with sqlite3.connect(copy) as connection:
        connection.execute("PRAGMA user_version = 99")
    connection.close()


@pytest.mark.parametrize(
    ("spoilt", "kind", "words"),
    [
        (bytes_changed, CorruptBank, r"the copy is damaged \(.*\); give another one"),
        (cut_short, CorruptBank, "damaged|not a bank"),
        (no_bank, CorruptBank, "not a bank"),
        (empty, CorruptBank, "not a bank"),
        (newer, SchemaTooNew, "bank schema 99"),
        (Path.unlink, InputError, "no such file; expected a copy of a bank"),
    ],
)
def test_a_copy_that_is_no_sound_bank_is_refused(
    path: Path, copy: Path, spoilt: Callable[[Path], None], kind: type[RBError], words: str
) -> None:
    spoilt(copy)
    before = state(path.parent)
    with pytest.raises(kind, match=words) as caught:
        MemoryBank.restore(path, copy=copy)
    assert str(caught.value).startswith(str(copy))
    assert "\n" not in str(caught.value)
    assert state(path.parent) == before


def test_the_bank_itself_is_no_copy_of_it(path: Path) -> None:
    fill(path, 0, 1)
    path.with_name("link").symlink_to(path)
    for copy in (path, path.with_name("link")):
        with pytest.raises(InputError, match="is the bank itself"):
            MemoryBank.restore(path, copy=copy)
    with pytest.raises(InputError, match="only a bank in a file"):
        MemoryBank.restore(":memory:", copy=path)
    with pytest.raises(StorageError, match="not a file"):
        MemoryBank.restore(path.parent, copy=path)


HOLDS = """
import sys
from tests.bank.helpers import add, open_bank
with open_bank(sys.argv[1]) as bank:
    add(bank, "t40", "do 40", lessons=2)
    print("open", flush=True)
    sys.stdin.readline()
    add(bank, "t41", "do 41", lessons=2)
"""


def test_a_bank_that_another_process_has_open_is_refused_and_goes_on(path: Path, copy: Path) -> None:
    process = start(HOLDS, str(path), stdin=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == "open\n"
    with pytest.raises(StorageError, match="another process has it open; end that process or wait") as caught:
        MemoryBank.restore(path, copy=copy)
    assert str(caught.value).startswith(f"{path}: ")
    process.communicate("go on\n", timeout=60)
    assert process.returncode == 0
    assert tasks(path) == named(0, 32) | {"t40", "t41"}
    MemoryBank.restore(path, copy=copy)
    assert tasks(path) == named(0, 10)


def test_a_bank_that_this_process_has_open_is_refused_and_goes_on(path: Path, copy: Path) -> None:
    with open_bank(path) as bank:
        with pytest.raises(StorageError, match="it is open in this process; close it first"):
            MemoryBank.restore(path, copy=copy)
        add(bank, "t40", "do 40", lessons=2)
    assert tasks(path) == named(0, 32) | {"t40"}


RESTORES = """
import os, sys
os.environ["RB_DSPY_FAILPOINT"] = sys.argv[3]
from rb_dspy.bank import MemoryBank
MemoryBank.restore(sys.argv[1], copy=sys.argv[2])
"""


@pytest.mark.parametrize("where", ["restore-linked", "restore-moved"])
def test_a_restore_that_was_killed_loses_nothing_and_is_done_again(path: Path, copy: Path, where: str) -> None:
    process = start(RESTORES, str(path), str(copy), where)
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL
    for create in (True, False):  # neither the old state without its log, nor a new bank in its place
        with pytest.raises(StorageError, match="has 2 hard links"):
            open_bank(path, create=create)
    aside = MemoryBank.restore(path, copy=copy)
    assert aside == Path(f"{path}.before-restore")
    assert tasks(path) == named(0, 10)
    assert tasks(aside) == named(0, 32)


def test_where_the_disk_refuses_all_is_as_it_was(path: Path, copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(old: object, new: object) -> None:
        raise OSError(28, "No space left on device")

    before = state(path.parent)
    with monkeypatch.context() as broken:
        broken.setattr(os, "replace", refuses)
        with pytest.raises(StorageError, match="No space left"):
            MemoryBank.restore(path, copy=copy)
    assert state(path.parent) == before
    assert tasks(path) == named(0, 32)


@pytest.mark.parametrize("error", [OSError(5, "Input/output error"), KeyboardInterrupt()])
def test_once_the_copy_is_in_place_nothing_is_undone(
    path: Path, copy: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    real, before = os.fsync, path.read_bytes()

    def fsync(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode) and path.exists() and path.read_bytes() != before:
            raise error
        real(descriptor)

    with monkeypatch.context() as broken:
        broken.setattr(os, "fsync", fsync)
        with pytest.raises(StorageError if isinstance(error, OSError) else type(error)):
            MemoryBank.restore(path, copy=copy)
    assert tasks(path) == named(0, 10)
    assert tasks(Path(f"{path}.before-restore")) == named(0, 32)


def test_on_a_file_system_without_links_it_is_moved(path: Path, copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(old: object, new: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuses)
    aside = MemoryBank.restore(path, copy=copy)
    assert aside is not None
    assert tasks(path) == named(0, 10)
    assert tasks(aside) == named(0, 32)


BACKS_UP = """
import os, sys
from pathlib import Path
from rb_dspy.bank import MemoryBank
from rb_dspy.errors import InputError
path, to, links = sys.argv[1], Path(sys.argv[2]), sys.argv[3] == "links"
def hook(event, given):
    if event == "sqlite3.connect" and str(given[0]).endswith(".part"):
        to.write_text("another's")
    if event == "os.link" and not links:
        raise PermissionError(1, "Operation not permitted")
sys.addaudithook(hook)
try:
    MemoryBank.backup(path, to=to)
except InputError as exc:
    print(exc)
"""


@pytest.mark.parametrize("links", ["links", "none"])
def test_what_comes_to_be_where_a_backup_goes_stays(path: Path, links: str) -> None:
    fill(path, 0, 3)
    to = path.with_name("to.db")
    assert (
        finish(start(BACKS_UP, str(path), str(to), links)) == f"{to}: is there already; give a path where nothing is\n"
    )
    assert to.read_text() == "another's"
    assert {file.name for file in path.parent.iterdir()} == {path.name, "to.db"}


def test_a_backup_goes_where_there_are_no_links(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(old: object, new: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    fill(path, 0, 3)
    monkeypatch.setattr(os, "link", refuses)
    MemoryBank.backup(path, to=path.with_name("to.db"))
    assert tasks(path.with_name("to.db")) == named(0, 3)


def test_what_is_damaged_says_by_which_command_a_copy_is_restored(path: Path) -> None:
    fill(path, 0, 10)
    bytes_changed(path)
    with open_bank(path) as bank:
        assert any(f"(rb-dspy bank restore COPY --bank {path})" in finding.remedy for finding in bank.doctor())
    cut_short(path)
    with pytest.raises(CorruptBank, match=rf"restore it from a copy \(rb-dspy bank restore COPY --bank {path}\)"):
        open_bank(path)


def test_a_backup_is_whole_while_others_write_and_what_a_killed_process_left_is_in_it(path: Path) -> None:
    fill(path, 0, 10)
    killed(path, 10, 20)
    MemoryBank.backup(path, to=path.with_name("first.db"))
    with open_bank(path) as bank:
        for n in range(20, 30):
            add(bank, f"t{n}", f"do {n}", lessons=2)
        MemoryBank.backup(path, to=path.with_name("second.db"))
        add(bank, "later", lessons=2)
    assert sorted(file.name for file in path.parent.iterdir() if "first" in file.name) == ["first.db"]
    assert tasks(path.with_name("first.db")) == named(0, 20)
    MemoryBank.restore(path, copy=path.with_name("second.db"))
    assert tasks(path) == named(0, 30)


def test_a_backup_is_as_private_as_the_bank_and_takes_nobodys_place(path: Path) -> None:
    fill(path, 0, 2)
    path.chmod(0o600)
    to = path.with_name("copy.db")
    MemoryBank.backup(path, to=to)
    assert to.stat().st_mode & 0o777 == 0o600
    before = state(path.parent)
    with pytest.raises(InputError, match="is there already"):
        MemoryBank.backup(path, to=to)
    with pytest.raises(InputError, match="no such file"):
        MemoryBank.backup(path.with_name("none.db"), to=path.with_name("other.db"))
    with pytest.raises(InputError, match="only a bank in a file"):
        MemoryBank.backup(":memory:", to=path.with_name("other.db"))
    path.with_name("text.db").write_text("no bank " * 100)
    with pytest.raises(CorruptBank):
        MemoryBank.backup(path.with_name("text.db"), to=path.with_name("other.db"))
    assert {name: data for name, data in state(path.parent).items() if name != "text.db"} == before


def test_a_copy_by_hand_of_a_bank_that_is_open_is_told(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    copy = path.with_name("copy.db")
    with open_bank(path) as bank:
        add(bank, "t1")
        shutil.copy(path, copy)  # without its log, in which all is
    said = "copy.db: an SQLite file that holds nothing.*copy that by rb-dspy bank backup"
    with pytest.raises(CorruptBank, match=said):
        open_bank(copy, create=False)
    with pytest.raises(CorruptBank, match=said):
        MemoryBank.restore(path, copy=copy)
    assert caplog.records == []
    open_bank(copy).close()
    assert re.search(said, caplog.text)
