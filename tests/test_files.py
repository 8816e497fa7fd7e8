"""Whatever is written to a file: whole or not at all, through links, and never in the place of a bank."""

from __future__ import annotations

import os
import stat
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
