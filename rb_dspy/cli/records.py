"""The results of runs, stored beside their bank: one JSON Lines file per run, a head and then a row for each result.

A file survives a crash: rows are appended, and an incomplete line is skipped. A task that failed and was run again has
two rows; the last one counts.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import filelock

from rb_dspy.errors import InputError, StorageError
from rb_dspy.files import make_folder
from rb_dspy.jsonl import append, read_appended

FORMAT = "rb_dspy-run"
NO_FILE = Path("rb-runs")
"""The folder for runs of banks without a file."""


@dataclass
class Record:
    """One run: its head, and task id -> its last row."""

    path: Path
    head: dict[str, Any]
    rows: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def id(self) -> str:
        return str(self.head["run_id"])

    @property
    def tasks(self) -> list[str]:
        """Ids of the tasks of the run, in order."""
        return list(self.head["tasks"])

    @property
    def done(self) -> list[str]:
        """Ids of the tasks that have a result and no error."""
        return [id for id in self.tasks if id in self.rows and not self.rows[id]["error"]]

    @property
    def finished(self) -> bool:
        return len(self.done) == len(self.tasks)

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Lock this run. Raises ``InputError`` if it is active in another process."""
        lock = filelock.FileLock(self.path.with_suffix(".lock"), timeout=0)
        try:
            lock.acquire()
        except filelock.Timeout:
            raise InputError(
                f"run {self.id} of these tasks is active in another process; --new starts a new run"
            ) from None
        try:
            yield
        finally:
            lock.release()
            self.path.with_suffix(".lock").unlink(missing_ok=True)

    def add(self, row: Mapping[str, Any]) -> None:
        """Append a row, with its position in the run; it is on disk when this returns."""
        id = str(row["task"])
        self.rows[id] = {**row, "position": self.tasks.index(id) + 1 if id in self.tasks else None}
        append(self.path, self.rows[id])


def folder_of(url: str) -> Path:
    """The folder of the runs of a bank: beside its file, or ``NO_FILE``."""
    if "://" in url or url in ("", ":memory:"):
        return NO_FILE
    return Path(f"{url}.runs").expanduser()


def new_record(folder: Path, tasks: Iterable[str], **head: Any) -> Record:
    """Create a run with a new id."""
    id = secrets.token_hex(6)
    created_at = datetime.now(UTC).isoformat(timespec="seconds")
    known = {"format": FORMAT, "version": 1, "run_id": id, "created_at": created_at, **head, "tasks": list(tasks)}
    record = Record(folder / f"{id}.jsonl", known)
    make_folder(folder, error=StorageError)
    append(record.path, known)
    return record


def records(folder: Path) -> list[Record]:
    """All runs in a folder, oldest first; other files are skipped."""
    found = [record for path in sorted(folder.glob("*.jsonl")) if (record := _read(path)) is not None]
    return sorted(found, key=lambda record: (record.head["created_at"], record.path.stat().st_mtime_ns))


def find_record(folder: Path, name: str) -> Record:
    """The run whose id begins with ``name``; ``last`` is the newest. Raises ``InputError``."""
    every = records(folder)
    found = every[-1:] if name == "last" else [each for each in every if each.id.startswith(name)]
    if len(found) == 1:
        return found[0]
    known = ", ".join(each.id for each in every[-5:]) or "none yet"
    what = f"begins the ids of {len(found)} runs" if found else "no such run"
    raise InputError(f"{folder}: {name!r}: {what}; the newest: {known}")


def unfinished(folder: Path, **head: Any) -> Record | None:
    """The newest run with this head if it has unfinished tasks, else None."""
    same = [each for each in records(folder) if all(each.head.get(name, "") == value for name, value in head.items())]
    return same[-1] if same and not same[-1].finished else None


def _read(path: Path) -> Record | None:
    head, *rows = read_appended(path) or [{}]
    if head.get("format") != FORMAT:
        return None
    return Record(path, head, {str(row["task"]): row for row in rows if "task" in row})
