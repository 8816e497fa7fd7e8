"""The stored state of an evaluation: a plan, a line for each task, and the banks of its cells.

A cell is one arm in one order. Its bank is a file if the evaluation has a folder, so a killed evaluation continues
where it stopped: only the task in progress is repeated.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import filelock
import pydantic

from rb_dspy.bank import MemoryBank
from rb_dspy.errors import InputError, StorageError
from rb_dspy.evaluation.identity import UNNAMED
from rb_dspy.files import atomic_write, make_folder
from rb_dspy.jsonl import append, read_appended
from rb_dspy.protocols import Embedder
from rb_dspy.schema import Label, Usage

PLAN, RECORDS, BANKS = "plan.json", "records.jsonl", "banks"
SCOPE = "evaluation"

Cell = tuple[str, int]
"""The name of an arm and the number of an order, from 0."""


class TaskRecord(pydantic.BaseModel, frozen=True):
    """One task of a cell."""

    arm: str
    order: int
    position: int
    """Position in the order, from 0."""
    task: str
    solved: bool | None = None
    """By ground truth; None if it is unknown, or something broke."""
    error: str = ""
    """The error of a task that broke twice; else empty."""
    tries: int = 1
    verdict: Label | None = None
    steps: int | None = None
    answer: str | None = None
    """What the agent submitted, its first 200 characters."""
    shown: tuple[tuple[str, str], ...] = ()
    """Id and title of each lesson that was shown."""
    learned: int = 0
    """Lessons that were stored."""
    usage: Usage = pydantic.Field(default_factory=dict)
    seconds: float = 0.0

    @property
    def score(self) -> float | None:
        """1 if solved, else 0, also if something broke (intention to treat); None if the outcome is unknown."""
        return 0.0 if self.error else None if self.solved is None else float(self.solved)

    @property
    def tokens(self) -> int:
        """Tokens of all roles."""
        return sum(used.prompt_tokens + used.completion_tokens for used in self.usage.values())

    @property
    def calls(self) -> int:
        """Calls of all roles."""
        return sum(used.calls for used in self.usage.values())


class Journal:
    """The records of an evaluation, in memory, and in a folder if it has one.

    Raises:
        InputError: The folder has another evaluation, another process works in it, or its records cannot be read.
        StorageError: The folder cannot be written.
    """

    def __init__(self, folder: str | Path | None, plan: Mapping[str, Any], cells: Iterable[Cell], size: int) -> None:
        self.folder = None if folder is None else Path(folder)
        self._cells: dict[Cell, dict[str, TaskRecord]] = {cell: {} for cell in cells}
        self._claim: filelock.FileLock | None = None
        self.date = datetime.now(UTC).date().isoformat()
        """When the evaluation was started; empty if that is unknown."""
        if self.folder is None:
            return
        make_folder(self.folder / BANKS, error=StorageError)
        self._claim = filelock.FileLock(self.folder / ".lock")
        try:
            self._claim.acquire(timeout=0)
        except filelock.Timeout:
            raise InputError(f"{self.folder}: another process uses this folder; wait, or pass another folder") from None
        try:
            stored = check_plan(self.folder, plan)
            if stored is None:
                stored = {**plan, "date": self.date}
                with atomic_write(self.folder / PLAN, error=StorageError) as file:
                    file.write(json.dumps(stored, indent=1, ensure_ascii=False).encode() + b"\n")
            self.date = str(stored.get("date", ""))
            self._read(self.folder, size)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Release the lock on the folder."""
        if self._claim is not None:
            self._claim.release()

    def of(self, cell: Cell) -> dict[str, TaskRecord]:
        """A copy of the records of a cell: task id -> record."""
        return dict(self._cells[cell])

    def all(self) -> list[TaskRecord]:
        """All records."""
        return [record for cell in self._cells.values() for record in cell.values()]

    def add(self, record: TaskRecord) -> None:
        """Store a record; it is on disk when this returns."""
        if self.folder is not None:
            append(self.folder / RECORDS, record.model_dump(mode="json", exclude_defaults=True))
        self._cells[record.arm, record.order][record.task] = record

    def open_bank(
        self, number: int, order: int, start: MemoryBank | None, embedder: Embedder | str | None
    ) -> MemoryBank:
        """Open the bank of the cell of arm ``number``, with its experiences so far; the caller closes it."""
        path = None if self.folder is None else self.folder / BANKS / f"{number}-{order}.sqlite"
        bank = MemoryBank.open(path, scope=SCOPE, embedder=embedder if start is None else start.embedder)
        if start is not None and len(start):
            try:
                with tempfile.TemporaryDirectory() as place:
                    start.export_jsonl(Path(place) / "start.jsonl")
                    bank.import_jsonl(Path(place) / "start.jsonl", own=True)  # existing experiences are skipped
            except BaseException:
                bank.close()
                raise
        return bank

    def _read(self, folder: Path, size: int) -> None:
        for record in read_records(folder):
            if (record.arm, record.order) in self._cells:
                self._cells[record.arm, record.order][record.task] = record
        if all(len(records) == size for records in self._cells.values()):
            return
        for records in self._cells.values():  # if a cell stopped after errors in a row, those tasks are repeated
            for record in sorted(records.values(), key=lambda record: -record.position):
                if not record.error:
                    break
                del records[record.task]


def read_records(folder: Path) -> list[TaskRecord]:
    """The records in a folder, the last one of each task; none if there is no file. Incomplete lines are skipped.

    Raises:
        InputError: A line is not a record.
    """
    path = folder / RECORDS
    records: dict[tuple[str, int, str], TaskRecord] = {}
    for fields in read_appended(path) if path.exists() else ():
        try:
            record = TaskRecord.model_validate(fields)
        except pydantic.ValidationError:
            raise InputError(f"{path}: has a line that is not a task record; pass another folder") from None
        records[record.arm, record.order, record.task] = record
    return list(records.values())


def check_plan(folder: Path, plan: Mapping[str, Any]) -> dict[str, Any] | None:
    """The plan that is stored in ``folder``, which must have every key of ``plan``; None in a new folder.

    Raises:
        InputError: It has another evaluation, or one that may be another: records without a plan, or code that has no
            name.
    """
    path = folder / PLAN
    if not path.exists():
        if (folder / RECORDS).exists():
            raise InputError(f"{folder}: has {RECORDS} of an evaluation, but no {PLAN}; pass another folder")
        return None
    try:
        stored = dict(json.loads(path.read_text("utf-8")))
    except (OSError, ValueError, TypeError) as exc:
        raise InputError(f"{path}: cannot be read as a plan ({exc}); pass another folder") from None
    for key, was, now in _differences(stored, json.loads(json.dumps(plan)), ""):
        if isinstance(now, str) and now.startswith(UNNAMED):
            raise InputError(
                f"{folder}: {key} is {now.removeprefix(UNNAMED)}, which cannot be compared with that of the stored"
                " evaluation; pass another folder, or give the object a text in its attribute id"
            )
        was, now = (f"{json.dumps(each, ensure_ascii=False):.80}" for each in (was, now))
        raise InputError(
            f"{folder}: has another evaluation: {key} was {was}, and is {now} now; pass another folder, or the same"
            " arguments"
        )
    return stored


def _differences(stored: Any, plan: Any, key: str) -> Iterator[tuple[str, Any, Any]]:
    """Yield the parts of ``plan`` that differ in ``stored``: key, stored and planned value."""
    if isinstance(plan, dict) and isinstance(stored, dict) and (not key or plan.keys() == stored.keys()):
        for name, value in plan.items():
            yield from _differences(stored.get(name), value, f"{key}.{name}".lstrip("."))
    elif stored != plan:
        yield key, stored, plan
