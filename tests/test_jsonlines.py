"""What is wrong with a file of JSON Lines is told in the same words by all that read one."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rb_dspy import MemoryBank, Task, TaskStream
from rb_dspy.compile.harvest import Harvest
from rb_dspy.errors import InputError
from rb_dspy.stream.installed import check_environments
from rb_dspy.testing import HashEmbedder

TASK = Task(id="a", instruction="Open the door.")


def _import(path: Path) -> object:
    with MemoryBank.open(scope="s", embedder=HashEmbedder()) as bank:
        return bank.import_jsonl(path)


def _export(path: Path) -> None:
    with MemoryBank.open(scope="s", embedder=HashEmbedder()) as bank:
        bank.export_jsonl(path)


READERS: dict[str, tuple[Callable[[Path], Any], Callable[[Path], Any]]] = {
    "TaskStream": (lambda path: TaskStream.from_jsonl(path).tasks, TaskStream("s", (TASK,)).to_jsonl),
    "Harvest": (Harvest.from_jsonl, Harvest().to_jsonl),
    "MemoryBank": (_import, _export),
}


@pytest.fixture(params=READERS)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", r":1: the file is empty; expected a JSON object"),
        (b"\n \n", r":1: the file is empty; expected a JSON object"),
        (b"{oops}\n", r":1: not JSON \(.* at column 2\); expected a JSON object"),
        (b"\n{oops}\n", r":2: not JSON \(.* at column 2\); expected a JSON object"),
        (b'{"a": 1', r":1: not JSON \(.*\), and it has no end: the file was cut off; expected a JSON object"),
        (b"[1]\n", r":1: list instead of an object; expected a JSON object"),
        (b"PK\x03\x04\xff\xfe\n", r":1: byte 5 is not UTF-8; expected a JSON object.* in UTF-8"),
        (b'{"a": ' + b"9" * 5000 + b"}\n", r":1: Exceeds the limit .* 5000 digits; expected a JSON object"),
        (b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}\n", r":1: more .*objects and lists inside each other"),
        (None, r": no such file; expected JSON Lines, a JSON object"),
    ],
)
def test_a_fault_is_told_in_the_same_words(name: str, tmp_path: Path, content: bytes | None, said: str) -> None:
    path = tmp_path / "x.jsonl"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError, match=rf"^{path}{said}") as caught:
        READERS[name][0](path)
    assert "\n" not in str(caught.value)


def test_a_folder_or_a_database_is_no_such_file(name: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=rf"^{tmp_path}: not a file; expected JSON Lines"):
        READERS[name][0](tmp_path)
    MemoryBank.open(tmp_path / "bank.sqlite", scope="s", embedder=HashEmbedder()).close()
    with pytest.raises(
        InputError, match=r"bank\.sqlite: a database, perhaps a bank, or a file of one; expected JSON L"
    ):
        READERS[name][0](tmp_path / "bank.sqlite")


OPENS = """
import sqlite3, sys
with sqlite3.connect(sys.argv[1]) as other:
    other.execute("SELECT count(*) FROM meta").fetchone()
other.close()  # alone with the file, it would take the log away
"""


@pytest.mark.skipif(sys.platform == "win32", reason="closing a file drops no locks there")
def test_a_bank_that_is_open_keeps_its_locks(name: str, tmp_path: Path) -> None:
    """Closing its file, whatever a process took it for, drops all that it has on it."""
    path = tmp_path / "bank.sqlite"
    with MemoryBank.open(path, scope="s", embedder=HashEmbedder()) as bank:
        bank.snapshot("before")
        with pytest.raises(InputError, match="a database"):
            READERS[name][0](path)
        subprocess.run([sys.executable, "-c", OPENS, str(path)], check=True)
        assert Path(f"{path}-wal").exists()


@pytest.mark.parametrize(
    "change",
    [
        lambda data: b"\xef\xbb\xbf" + data,
        lambda data: data.replace(b"\n", b"\r\n"),
        lambda data: b"\n \n" + data.replace(b"\n", b"\n\n\t\n"),
        lambda data: b" " + data.rstrip(b"\n"),
    ],
    ids=["byte-order mark", "CRLF", "blank lines", "no last line end"],
)
def test_what_other_programs_make_of_a_file_is_accepted(
    name: str, tmp_path: Path, change: Callable[[bytes], bytes]
) -> None:
    read, write = READERS[name]
    path = tmp_path / "x.jsonl"
    write(path)
    before = read(path)
    path.write_bytes(change(path.read_bytes()))
    assert read(path) == before


@pytest.mark.skipif(not Path("/dev/fd").exists(), reason="pipes have no names there")
def test_tasks_come_through_a_pipe_which_is_read_once() -> None:
    end, begin = os.pipe()
    os.write(begin, b'{"instruction": "x", "env": "nowhere"}\n')
    os.close(begin)
    pipe = Path(f"/dev/fd/{end}")
    tasks = TaskStream.from_jsonl(pipe).tasks
    assert [task.instruction for task in tasks] == ["x"]
    with pytest.raises(InputError, match=rf"^{pipe}: task 1: "):
        check_environments(tasks, pipe)
    os.close(end)
