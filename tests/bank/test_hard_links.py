"""A file with several hard links is no bank to write to: SQLite would keep a log for each of its names."""

import os
import shutil
import sys
from pathlib import Path

import pytest

from rb_dspy.errors import StorageError
from tests.bank.helpers import add, open_bank

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="an open file is not linked or moved there")

WORDS = "has 2 hard links, expected one"


def linked(path: Path) -> Path:
    """Another name of the file, in another folder."""
    other = path.parent / "backup" / path.name
    other.parent.mkdir(exist_ok=True)
    os.link(path, other)
    return other


@pytest.mark.parametrize("create", [True, False])
def test_a_file_with_two_names_is_refused_by_both_and_left_as_it_was(path: Path, create: bool) -> None:
    with open_bank(path) as bank:
        add(bank)
    other, content = linked(path), path.read_bytes()
    for name in (path, other):
        before = sorted(name.parent.iterdir())
        with pytest.raises(StorageError, match=WORDS) as caught:
            open_bank(name, create=create)
        assert str(caught.value).startswith(f"{name}: ")
        assert "\n" not in str(caught.value)
        assert len(str(caught.value)) < 300 + len(str(name))
        assert sorted(name.parent.iterdir()) == before
    assert path.read_bytes() == content


def test_it_opens_again_by_the_name_that_is_left_and_so_does_a_copy(path: Path) -> None:
    with open_bank(path) as bank:
        add(bank, "t1")
    other = linked(path)
    copy = shutil.copy(path, path.with_name("copy.sqlite"))
    path.unlink()
    for name in (other, copy):
        with open_bank(name) as bank:
            add(bank, "t2")
            assert len(bank) == 2


def test_a_symbolic_link_is_no_second_name(path: Path) -> None:
    open_bank(path).close()
    path.with_name("link").symlink_to(path)
    with open_bank(path.with_name("link")) as bank:
        add(bank)
    path.with_name("link").unlink()
    linked(path)
    path.with_name("link").symlink_to(path)
    with pytest.raises(StorageError, match=WORDS):
        open_bank(path.with_name("link"))


def test_an_empty_file_with_two_names_is_not_made_a_bank(path: Path) -> None:
    path.touch()
    linked(path)
    with pytest.raises(StorageError, match=WORDS):
        open_bank(path)
    assert path.stat().st_size == 0


def test_a_link_that_is_made_of_an_open_bank_is_named_by_the_doctor_and_ends_nothing(path: Path) -> None:
    with open_bank(path) as bank:
        add(bank, "t1")
        assert bank.doctor() == []
        other = linked(path)
        add(bank, "t2")
        (finding,) = bank.doctor()
        assert (finding.severity, finding.kind, finding.where) == ("warning", "file", str(path))
        assert WORDS in finding.what
        assert "-wal" in finding.remedy
        with pytest.raises(StorageError, match=WORDS):  # its log would not be that of the first
            open_bank(other)
    other.unlink()
    with open_bank(path, create=False) as bank:
        assert len(bank) == 2
        assert bank.doctor() == []


def test_a_file_that_took_the_place_of_one_with_two_names_is_refused_nothing(path: Path) -> None:
    """What a program leaves that writes a copy and renames it: the other name has the old file to itself."""
    with open_bank(path) as bank:
        add(bank)
    other = linked(path)
    aside = shutil.copy(path, path.with_name("aside"))
    os.replace(aside, path)
    for name in (path, other):
        with open_bank(name) as bank:
            assert bank.doctor() == []
