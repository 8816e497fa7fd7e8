"""The journal of runs: for each run a head, a line for each rollout that ended, and a row for each task that was done.

What it says is stored when a call returns, so a run that was killed continues where it stopped. A task that broke and
was done again has two rows; the last one counts. A journal is a folder of JSON Lines files, one for each run, or two
tables in PostgreSQL (``rb_dspy.stream.tables``), which many machines can share.
"""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import quote

import filelock
import pydantic

from rb_dspy.environments.scored import Ended
from rb_dspy.errors import InputError, StorageError
from rb_dspy.files import make_folder
from rb_dspy.jsonl import append, read_appended
from rb_dspy.schema import Outcome, Usage
from rb_dspy.stream.score import broke

FORMAT = "rb_dspy-run"
NO_FILE = Path("rb-runs")
"""The folder for runs of banks without a file."""

_USAGE = pydantic.TypeAdapter(Usage)


@dataclass
class Record:
    """One run: its head, and task id -> its last row. Without a ``journal`` it is in memory only."""

    head: dict[str, Any]
    journal: Journal | None = field(default=None, repr=False)
    rows: dict[str, dict[str, Any]] = field(default_factory=dict)
    ended: dict[tuple[str, str], Ended] = field(default_factory=dict)
    """Task id and rollout id -> how the rollout ended."""
    spent: dict[str, Usage] = field(default_factory=dict)
    """Task id -> what the run has used for it, up to its last entry."""

    @property
    def id(self) -> str:
        return str(self.head["run_id"])

    @property
    def tasks(self) -> list[str]:
        """Ids of the tasks of the run, in order."""
        return list(self.head["tasks"])

    @property
    def done(self) -> list[str]:
        """Ids of the tasks that have a row and did not break."""
        return [id for id in self.tasks if id in self.rows and not broke(self.rows[id])]

    @property
    def finished(self) -> bool:
        return len(self.done) == len(self.tasks)

    def add(self, row: Mapping[str, Any]) -> None:
        """Store a row, with its position in the run."""
        id = str(row["task"])
        position = self.tasks.index(id) + 1 if id in self.tasks else None
        self._store({**row, "position": position})

    def end(self, task_id: str, rollout_id: str, ended: Ended, usage: Usage) -> None:
        """Store how a rollout ended, and what its task has used so far."""
        outcomes = [None if each is None else each.model_dump(exclude={"info"}) for each in ended.passes]
        used = _USAGE.dump_python(usage, mode="json")
        self._store({"rollout": rollout_id, "of": task_id, "passes": outcomes, "error": ended.error, "usage": used})

    def spend(self, task_id: str, usage: Usage) -> None:
        """Store what a task has used that was stopped before its row."""
        self._store({"of": task_id, "usage": _USAGE.dump_python(usage, mode="json")})

    def attach(self, task_id: str, value: Mapping[str, Any]) -> None:
        """See ``Journal.attach``."""
        if self.journal is not None:
            self.journal.attach(self.id, task_id, value)

    def read(self, entries: Sequence[Mapping[str, Any]]) -> Record:
        """Take stored entries, oldest first; returns itself."""
        for entry in entries:
            if "task" in entry:
                self.rows[str(entry["task"])] = {**entry, "error": str(entry["error"])}
            elif "rollout" in entry:
                passes = tuple(None if each is None else Outcome(**each) for each in entry["passes"])
                self.ended[entry["of"], entry["rollout"]] = Ended(passes, entry["error"])
            if "usage" in entry:
                self.spent[entry.get("task") or entry["of"]] = _USAGE.validate_python(entry["usage"])
        return self

    def _store(self, entry: Mapping[str, Any]) -> None:
        if self.journal is not None:
            self.journal.store(self.id, entry)
        self.read([entry])

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Lock this run. Raises ``InputError`` if it is active in another process."""
        with self.journal.lock(self.id) if self.journal is not None else nullcontext(True) as locked:
            if not locked:
                raise InputError(f"run {self.id} of these tasks is active in another process; wait, or use --new")
            yield


class Journal(ABC):
    """Where runs are stored: ``Journal.at(place)``."""

    @staticmethod
    def at(place: str | Path) -> Journal:
        """The journal in a folder, or in the PostgreSQL database with this URL."""
        if "://" not in str(place):
            return Folder(Path(place))
        from rb_dspy.stream.tables import Tables

        return Tables(str(place))

    @abstractmethod
    def runs(self, prefix: str = "") -> list[Record]:
        """All runs whose ids begin with ``prefix``, oldest first."""

    @abstractmethod
    def run(self, run_id: str) -> Record | None:
        """The run with this id, if there is one."""

    @abstractmethod
    def store(self, run_id: str, entry: Mapping[str, Any]) -> None:
        """Store an entry of a run; it is safe when this returns. Raises ``StorageError``."""

    @abstractmethod
    def attach(self, run_id: str, task_id: str, value: Mapping[str, Any]) -> None:
        """Store a large value of a task, such as its transcript, which is read only by ``attached``."""

    @abstractmethod
    def attached(self, run_id: str, task_id: str) -> dict[str, Any] | None:
        """What was attached last to a task of a run; None if nothing was."""

    @abstractmethod
    def lock(self, run_id: str) -> AbstractContextManager[bool]:
        """Lock a run as long as the block and this process last. Yields False if another process has it."""

    def close(self) -> None:  # noqa: B027 (a folder holds nothing)
        """Release what the journal holds."""

    @abstractmethod
    def _begin(self, head: Mapping[str, Any]) -> None:
        """Store the head of a run. If a run has this id, nothing changes."""

    def start(self, tasks: Sequence[str], run_id: str = "", **head: Any) -> Record:
        """Start a run of these tasks, by default with a new id; a run that has this id is returned as it is."""
        id = run_id or secrets.token_hex(6)
        if run_id and (found := self.run(id)):
            return found
        now = datetime.now(UTC).isoformat(timespec="seconds")
        self._begin({"format": FORMAT, "version": 1, "run_id": id, "created_at": now, **head, "tasks": list(tasks)})
        found = self.run(id)
        if found is None:
            raise StorageError(f"{self}: run {id} was stored, and cannot be read; check the disk")
        return found

    def find(self, name: str) -> Record:
        """The run whose id begins with ``name``; ``last`` is the newest. Raises ``InputError``."""
        every = self.runs()
        found = every[-1:] if name == "last" else [each for each in every if each.id.startswith(name)]
        if len(found) == 1:
            return found[0]
        known = ", ".join(each.id for each in every[-5:]) or "none yet"
        what = f"begins the ids of {len(found)} runs" if found else "no such run"
        raise InputError(f"{self}: {name!r}: {what}; the newest: {known}")

    def unfinished(self, **head: Any) -> Record | None:
        """The newest run with this head if it has unfinished tasks, else None."""
        same = [run for run in self.runs() if all(run.head.get(name, "") == value for name, value in head.items())]
        return same[-1] if same and not same[-1].finished else None


class Folder(Journal):
    """A file for each run. A line that is incomplete, because its process was killed, is skipped."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def of(cls, bank: str) -> Folder:
        """The journal of the runs of a bank, by its URL: beside its file, or in ``NO_FILE``."""
        no_file = "://" in bank or bank in ("", ":memory:")
        return cls(NO_FILE if no_file else Path(f"{bank}.runs").expanduser())

    def __str__(self) -> str:
        return str(self.path)

    def runs(self, prefix: str = "") -> list[Record]:
        paths = sorted(path for path in self.path.glob("*.jsonl") if path.name.startswith(prefix))
        found = [(record, path.stat().st_mtime_ns) for path in paths if (record := self._read(path)) is not None]
        return [record for record, _ in sorted(found, key=lambda each: (each[0].head["created_at"], each[1]))]

    def run(self, run_id: str) -> Record | None:
        path = self._file(run_id)
        return self._read(path) if path.exists() else None

    def store(self, run_id: str, entry: Mapping[str, Any]) -> None:
        append(self._file(run_id), entry)

    def attach(self, run_id: str, task_id: str, value: Mapping[str, Any]) -> None:
        make_folder(self._attachments(run_id).parent, error=StorageError)
        append(self._attachments(run_id), {"task": task_id, "value": dict(value)})

    def attached(self, run_id: str, task_id: str) -> dict[str, Any] | None:
        path = self._attachments(run_id)
        every = read_appended(path) if path.exists() else []
        return next((dict(each["value"]) for each in reversed(every) if each["task"] == task_id), None)

    @contextmanager
    def lock(self, run_id: str) -> Iterator[bool]:
        path = self._file(run_id).with_suffix(".lock")
        make_folder(self.path, error=StorageError)
        lock = filelock.FileLock(path, timeout=0)
        try:
            lock.acquire()
        except filelock.Timeout:
            yield False
            return
        try:
            yield True
        finally:
            lock.release()  # the file stays: another process may be about to lock it

    def _begin(self, head: Mapping[str, Any]) -> None:
        make_folder(self.path, error=StorageError)
        append(self._file(head["run_id"]), head)

    def _file(self, run_id: str) -> Path:
        return self.path / f"{_file_name(run_id)}.jsonl"

    def _attachments(self, run_id: str) -> Path:
        return self.path / "attached" / f"{_file_name(run_id)}.jsonl"

    def _read(self, path: Path) -> Record | None:
        head, *entries = read_appended(path) or [{}]
        if head.get("format") != FORMAT:
            return None
        try:
            return Record({name: head[name] for name in ("run_id", "created_at", "tasks")} | head, self).read(entries)
        except (KeyError, TypeError, ValueError) as exc:
            raise InputError(f"{path}: has a line that is not of a run ({exc!r:.80}); move the file away") from None


def _file_name(run_id: str) -> str:
    """A name that stays in its folder, and that a file system can hold."""
    name = quote(run_id, safe=" @+,=")
    return name if len(name) <= 150 else f"{name[:100]}-{sha256(run_id.encode()).hexdigest()[:32]}"
