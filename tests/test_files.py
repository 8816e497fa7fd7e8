"""Files that are complete or absent, and never replace a bank."""

from __future__ import annotations

import os
import sqlite3
import stat
from contextlib import closing
from pathlib import Path

import pytest

from rb_dspy.errors import InputError, RBError, StorageError
from rb_dspy.files import atomic_write, is_database, make_folder
from rb_dspy.jsonl import append


def write(path: Path, data: bytes = b"new") -> None:
    with atomic_write(path) as file:
        file.write(data)


def names(folder: Path) -> list[str]:
    return sorted(each.name for each in folder.iterdir())


def test_what_is_new_is_for_its_owner_only(tmp_path: Path) -> None:
    usual = os.umask(0)
    try:
        make_folder(tmp_path / "a" / "b")
        write(tmp_path / "a" / "file")
        append(tmp_path / "a" / "lines", {"a": 1})
    finally:
        os.umask(usual)
    assert [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("a", "a/b")] == [0o700] * 2
    assert [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("a/file", "a/lines")] == [0o600] * 2
    with pytest.raises(StorageError, match="another folder"):
        make_folder(tmp_path / "a" / "file" / "b", error=StorageError)


def test_a_link_is_followed_and_permissions_stay(tmp_path: Path) -> None:
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_text("old")
    target.chmod(0o640)
    link.symlink_to(target)
    write(link)
    assert link.is_symlink()
    assert target.read_bytes() == b"new"
    assert stat.S_IMODE(target.stat().st_mode) == 0o640
    assert names(tmp_path) == ["link", "target"]


@pytest.mark.parametrize("exc", [ValueError("mine"), KeyboardInterrupt()])
def test_a_block_that_raises_changes_nothing(tmp_path: Path, exc: BaseException) -> None:
    (tmp_path / "file").write_text("old")

    def interrupted() -> None:
        with atomic_write(tmp_path / "file") as file:
            file.write(b"half")
            raise exc

    with pytest.raises(type(exc)):
        interrupted()
    assert (tmp_path / "file").read_text() == "old"
    assert names(tmp_path) == ["file"]


def test_a_full_disk_is_told_as_asked(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="No space left"), atomic_write(tmp_path / "file", error=StorageError):
        raise OSError(28, "No space left on device")
    assert names(tmp_path) == []
    with pytest.raises(RBError), atomic_write(tmp_path / "file"):
        raise OSError(28, "No space left on device")


@pytest.mark.parametrize("place", ["", "nowhere/file", "a\0b"])
def test_a_place_that_can_hold_no_file_is_refused(tmp_path: Path, place: str) -> None:
    with pytest.raises(InputError):
        write(tmp_path / place)


@pytest.mark.parametrize("place", ["bank.sqlite", "bank.sqlite-wal", "bank.sqlite.lock", "link"])
def test_no_database_is_replaced(tmp_path: Path, place: str) -> None:
    bank = tmp_path / "bank.sqlite"
    with closing(sqlite3.connect(bank)) as connection:
        connection.execute("CREATE TABLE t (x)")
    (tmp_path / "link").symlink_to(bank)
    before = bank.read_bytes()
    with pytest.raises(InputError):
        write(tmp_path / place)
    assert bank.read_bytes() == before
    assert is_database(bank)
    assert not is_database(tmp_path / "other.lock")
