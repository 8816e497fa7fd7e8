"""Whatever is written to a file: whole or not at all, on disk, through links, and never in the place of a bank."""

from __future__ import annotations

import errno
import os
import stat
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from rb_dspy import Compiled, MemoryBank, ReasoningBank, Task, TaskStream, save_program
from rb_dspy.compile.harvest import Harvest
from rb_dspy.errors import InputError, RBError
from rb_dspy.files import replaced
from rb_dspy.testing import HashEmbedder

STREAM = TaskStream("s", (Task(id="a", instruction="Open the door."),))


def _export(path: Path) -> None:
    with MemoryBank.open(scope="s", embedder=HashEmbedder()) as bank:
        bank.export_jsonl(path)


WRITERS: dict[str, Callable[[Path], object]] = {
    "save_program": lambda path: save_program(ReasoningBank(), path),
    "Harvest.to_jsonl": lambda path: Harvest().to_jsonl(path),
    "TaskStream.to_jsonl": STREAM.to_jsonl,
    "TaskStream.to_parquet": STREAM.to_parquet,
    "export_jsonl": _export,
}


def _restore(path: Path) -> None:
    MemoryBank.restore(path, copy=_bank(path.parent / "copy.sqlite"))


def _backup(path: Path) -> None:
    MemoryBank.backup(_bank(path.parent / "bank.sqlite"), to=path)


def _bank(path: Path) -> Path:
    MemoryBank.open(path, scope="s", embedder=HashEmbedder()).close()
    return path


ALL = {**WRITERS, "MemoryBank.backup": _backup, "MemoryBank.restore": _restore}
"""With those that write banks, which have rules of their own for what is there already."""


@pytest.fixture(params=ALL)
def write_any(request: pytest.FixtureRequest) -> Callable[[Path], object]:
    return ALL[request.param]


@pytest.fixture(params=WRITERS)
def write(request: pytest.FixtureRequest) -> Callable[[Path], object]:
    return WRITERS[request.param]


@pytest.mark.parametrize("place", ["bank.sqlite", "bank.sqlite-wal", "bank.sqlite.lock", "link"])
def test_no_bank_is_written_over(write: Callable[[Path], object], tmp_path: Path, place: str) -> None:
    with MemoryBank.open(tmp_path / "bank.sqlite", scope="s", embedder=HashEmbedder()) as bank:
        bank.snapshot("before")
    (tmp_path / "link").symlink_to(tmp_path / "bank.sqlite")
    before = (tmp_path / "bank.sqlite").read_bytes()
    with pytest.raises(InputError, match="a database, perhaps a bank"):
        write(tmp_path / place)
    assert (tmp_path / "bank.sqlite").read_bytes() == before


def test_a_link_is_followed_and_what_was_private_stays_so(write: Callable[[Path], object], tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text("old")
    target.chmod(0o600)
    (tmp_path / "link").symlink_to(target)
    write(tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert target.read_bytes() != b"old"
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    assert sorted(each.name for each in tmp_path.iterdir()) == ["link", "target"]


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("", "a folder; expected the name of a file"),
        ("nowhere/file", "nowhere: no such folder; make it"),
        ("circle", "a link that leads back to itself"),
        ("a\0b", "holds no NUL"),
        ("pipe", "no file; expected"),
    ],
)
def test_a_place_that_holds_no_file_is_said_in_one_line(
    write: Callable[[Path], object], tmp_path: Path, place: str, said: str
) -> None:
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match=said) as caught:
        write(tmp_path / place)
    assert "\n" not in str(caught.value)


def test_a_block_that_raises_leaves_what_was_there_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")

    def breaks(exc: Exception) -> None:
        with replaced(path) as file:
            file.write(b"half")
            raise exc

    with pytest.raises(ValueError, match="mine"):
        breaks(ValueError("mine"))
    with pytest.raises(RBError, match=r"file: cannot be written: No space left.*; what was there is as before$"):
        breaks(OSError(28, "No space left on device"))
    assert path.read_text() == "old"
    assert [each.name for each in tmp_path.iterdir()] == ["file"]


def test_a_compiled_program_is_not_written_over_a_bank(tmp_path: Path) -> None:
    MemoryBank.open(tmp_path / "bank.sqlite", scope="s", embedder=HashEmbedder()).close()
    compiled = Compiled.model_construct(state={})
    with pytest.raises(InputError, match="a database"):
        compiled.save(tmp_path / "bank.sqlite")


STRAYS = [f".rb-dspy-{'0' * 16}.part", f".rb-dspy-{'1' * 16}.part-journal"]


def test_what_a_process_that_died_left_in_the_making_goes(write_any: Callable[[Path], object], tmp_path: Path) -> None:
    kept = [f".rb-dspy-{'2' * 16}.part", ".rb-dspy-mine.part", f"{STRAYS[0]}.txt"]
    for name in (*STRAYS, *kept):
        (tmp_path / name).write_text("half")
        if name != kept[0]:  # which is in the making still
            os.utime(tmp_path / name, (time.time() - 2 * 86_400,) * 2)
    write_any(tmp_path / "file")
    assert sorted(each.name for each in tmp_path.glob(".rb-dspy-*")) == sorted(kept)


def _folders(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """Syncing a folder fails from here on."""
    real = os.fsync

    def fsync(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(number, os.strerror(number))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOTSUP])
def test_where_folders_cannot_be_synced_files_are_written(
    write_any: Callable[[Path], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    _folders(monkeypatch, number)
    write_any(tmp_path / "file")
    assert (tmp_path / "file").stat().st_size
    assert not [*tmp_path.glob(".rb-dspy-*")]


@pytest.mark.parametrize("name", [*WRITERS, "MemoryBank.backup"])  # a restore syncs it before, too
def test_a_disk_that_breaks_when_the_folder_is_synced_is_told(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file is there, and who counts on it after a power cut must know."""
    _folders(monkeypatch, errno.EIO)
    with pytest.raises(RBError, match="Input/output error") as caught:
        ALL[name](tmp_path / "file")
    assert "\n" not in str(caught.value)
    assert "as before" not in str(caught.value)
    assert (tmp_path / "file").stat().st_size
    assert not [*tmp_path.glob(".rb-dspy-*")]


@pytest.mark.skipif(sys.platform == "win32" or os.geteuid() != 0, reason="only root gives files away")
def test_a_file_stays_its_owners_where_root_writes_it(write: Callable[[Path], object], tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    os.chown(path, 65533, 65534)
    write(path)
    assert path.read_bytes() != b"old"
    assert (path.stat().st_uid, path.stat().st_gid) == (65533, 65534)
