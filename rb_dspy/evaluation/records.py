"""The stored state of an evaluation: a plan, a row for each task, and the banks of its cells.

A cell is one arm in one order. It is a run in the evaluation's journal, and it has its own bank, so a killed evaluation
continues where it stopped: only the task in progress is repeated. In a folder all of them are files, which one process
uses at a time. In PostgreSQL many processes share them, and each locks the cell that it runs.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, closing, nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pydantic

from rb_dspy.bank import MemoryBank
from rb_dspy.errors import InputError
from rb_dspy.evaluation.identity import UNNAMED
from rb_dspy.evaluation.plan import Cell, Plan
from rb_dspy.files import make_folder
from rb_dspy.jsonl import digest
from rb_dspy.memories import Signal
from rb_dspy.protocols import Embedder
from rb_dspy.schema import Label, StopReason, Trajectory, Usage
from rb_dspy.stream import TaskResult
from rb_dspy.stream.journal import Journal, Record

RUNS, PLAN, BANKS = "runs", "plan", "banks"
SCOPE = "evaluation"


class TaskRecord(pydantic.BaseModel, frozen=True):
    """One task of a cell: its row (``TaskResult.row``), and its arm and order."""

    run_id: str = ""
    """The run of the cell in the journal."""
    arm: str
    order: int
    position: int
    """Position in the order, from 1."""
    task: str
    instruction: str = ""
    """The task's, without keys and passwords; empty in evaluations of earlier versions, as are contents of lessons."""
    solved: bool | None = None
    """By ground truth; False if something broke; None if it is unknown."""
    reward: float | None = None
    error: str = ""
    """The error of a task that broke at every try; else empty."""
    tries: int = 1
    verdict: Label | None = None
    judge_agrees: bool | None = None
    steps: int | None = None
    stop_reason: StopReason | None = None
    answer: str | None = None
    """What the agent submitted."""
    shown: tuple[str, ...] = ()
    """Id of each lesson that was shown."""
    recalled: tuple[str, ...] = ()
    """Their titles."""
    recalled_content: tuple[str, ...] = ()
    """Their contents."""
    tokens_shown: int | None = None
    """Tokens (estimated) of what memory put into the agent's prompt."""
    tokens_beyond: int | None = None
    """Tokens (estimated) that a memory system would have shown beyond the cap, which is equal for all."""
    memory_error: str = ""
    """Why memory showed nothing, if it failed; else empty."""
    learned: tuple[str, ...] = ()
    """Titles of the lessons that were stored."""
    learned_content: tuple[str, ...] = ()
    """Their contents."""
    signal: Signal | None = None
    """What the arm learns from."""
    usage: Usage = pydantic.Field(default_factory=dict)
    tokens: int = 0
    """Tokens of all roles."""
    seconds: float = 0.0
    resumed: bool = False

    @property
    def score(self) -> float | None:
        """1 if solved, else 0, also if something broke (intention to treat); None if the outcome is unknown."""
        return None if self.solved is None else float(self.solved)

    @property
    def broke(self) -> bool:
        """Whether something broke."""
        return bool(self.error) and self.reward is None

    @property
    def calls(self) -> int:
        """Calls of all roles."""
        return sum(used.calls for used in self.usage.values())


class Records:
    """The records of an evaluation, in memory, and in a folder or a PostgreSQL database if it has one.

    Raises:
        InputError: The folder has another evaluation, another process works in it, or its records cannot be read.
        StorageError: The folder or the database cannot be written.
    """

    def __init__(self, place: str | Path | None, plan: Plan, stated: Mapping[str, Any]) -> None:
        self.shared = place is not None and "://" in str(place)
        """Whether other processes may work on it at the same time."""
        self.id = f"evaluation-{digest(stated)}"
        self.date = datetime.now(UTC).date().isoformat()
        """When the evaluation was started; empty if that is unknown."""
        if self.shared and (unnamed := [key for key, value in _leaves(stated, "") if value.startswith(UNNAMED)]):
            raise InputError(
                f"{unnamed[0]} has a state that other processes cannot compare, so they would not share the evaluation;"
                " give the object a text in its attribute id"
            )
        self.in_memory = place is None
        self.repeats = True
        """Whether errors of an earlier call are repeated: in the first pass over the cells."""
        self._place, self._plan = place, plan
        self._journal: Journal | None = None
        self._held = ExitStack()
        if place is not None:
            if not self.shared:
                make_folder(Path(place) / BANKS)
            self._journal = journal_of(place)
        try:
            if self._journal is not None:
                if not self.shared and not self._held.enter_context(self._journal.lock(PLAN)):
                    raise InputError(f"{place}: another process uses this folder; wait, or pass another folder")
                if not self.shared:
                    check_plan(Path(str(place)), stated)
                stored = self._journal.start([], f"{self.id}.{PLAN}" if self.shared else PLAN, plan=stated).head
                self.date = str(stored["created_at"])[:10]
            self.runs = {cell: self._run(cell) for cell in plan.cells}
            """Cell -> its run."""
            self._cells = {cell: _records(run) for cell, run in self.runs.items()}
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Release the lock on the folder, or the connection."""
        self._held.close()
        if self._journal is not None:
            self._journal.close()

    def read(self, *cells: Cell) -> None:
        """Read what is stored of some cells, or of all, by other processes too."""
        for cell in cells or self._plan.cells:
            if self._journal is not None:
                self.runs[cell] = self._run(cell)
            self._cells[cell] = _records(self.runs[cell])

    def lock(self, cell: Cell) -> AbstractContextManager[bool]:
        """Lock a cell; yields False if another process has it."""
        if self._journal is None or not self.shared:
            return nullcontext(True)
        return self._journal.lock(self.runs[cell].id)

    def done(self, cell: Cell) -> set[str]:
        """Ids of the tasks of a cell that need not be done (again).

        If a cell stopped after errors in a row, those tasks are repeated once, unless every cell is complete.
        """
        records = self._cells[cell]
        done = set(records)
        if self.repeats and not self.complete():
            for record in sorted(records.values(), key=lambda record: -record.position):
                if not record.error:
                    break
                done.discard(record.task)
        return done

    def complete(self) -> bool:
        """Whether every task of every cell has a record."""
        return sum(map(len, self._cells.values())) == self._plan.total

    def of(self, cell: Cell) -> list[TaskRecord]:
        """The records of a cell."""
        return list(self._cells[cell].values())

    def all(self) -> list[TaskRecord]:
        """All records."""
        return [record for records in self._cells.values() for record in records.values()]

    def add(self, cell: Cell, result: TaskResult) -> TaskRecord:
        """Take a record that the run of the cell has stored."""
        record = _record(self.runs[cell].head, result.row())
        self._cells[cell][record.task] = record
        return record

    def open_bank(self, cell: Cell, start: MemoryBank | None, embedder: Embedder | str | None) -> MemoryBank:
        """Open the bank of a cell, with its experiences so far; the caller closes it."""
        url = self._place
        if url is not None and not self.shared:
            url = Path(url) / BANKS / f"{_id(self._plan, cell)}.sqlite"
        scope = self.runs[cell].id if self.shared else SCOPE
        trust = None if start is None else start.trust
        bank = MemoryBank.open(url, scope=scope, embedder=embedder if start is None else start.embedder, trust=trust)
        if start is not None and len(start):
            try:
                with tempfile.TemporaryDirectory() as place:
                    start.export_jsonl(Path(place) / "start.jsonl")
                    bank.import_jsonl(Path(place) / "start.jsonl", own=True)  # existing experiences are skipped
            except BaseException:
                bank.close()
                raise
        return bank

    def _run(self, cell: Cell) -> Record:
        name, order = cell
        tasks = [task.id for task in self._plan.orders[order]]
        about = {"evaluation": self.id, "arm": name, "order": order, "signal": self._plan.arms[name].learns_from}
        id = f"{self.id}.{_id(self._plan, cell)}"
        if self._journal is None:
            return Record({"run_id": id, "tasks": tasks, **about})
        return self._journal.start(tasks, id, **about)


def journal_of(place: str | Path) -> Journal:
    """The journal of the evaluations in a folder or a database."""
    return Journal.at(place if "://" in str(place) else Path(place) / RUNS)


def transcript(place: str | Path, run_id: str, task_id: str) -> list[Trajectory]:
    """The rollouts of a task of a stored evaluation; none if it broke before one ended."""
    with closing(journal_of(place)) as journal:
        value = journal.attached(run_id, task_id) or {}
    return [Trajectory.model_validate(each) for each in value.get("trajectories", ())]


def read_records(place: str | Path, evaluation: str = "") -> list[TaskRecord]:
    """The records in a folder or a database, the last one of each task; none if there is no evaluation.

    Args:
        place: The folder, or the PostgreSQL URL.
        evaluation: The beginning of an evaluation's id (``TaskRecord.run_id`` begins with it); needed if there are
            several.

    Raises:
        InputError: A row is not a record, or there are several evaluations.
    """
    with closing(journal_of(place)) as journal:
        runs = [run for run in journal.runs(evaluation) if {"arm", "order", "evaluation"} <= run.head.keys()]
    known = sorted({str(run.head["evaluation"]) for run in runs})
    if len(known) > 1:
        raise InputError(f"{len(known)} evaluations are there; choose one: {', '.join(known)}")
    return [record for run in runs for record in _records(run).values()]


def check_plan(folder: Path, plan: Mapping[str, Any]) -> bool:
    """Whether a folder has an evaluation, which must have every key of ``plan``.

    Raises:
        InputError: It has another evaluation, or one that may be another: code that has no name.
    """
    stored = journal_of(folder).run(PLAN)
    if stored is None and journal_of(folder).runs():
        raise InputError(f"{folder}: has records of an evaluation, but no {RUNS}/{PLAN}.jsonl; pass another folder")
    known = {} if stored is None else stored.head["plan"]
    for key, was, now in _differences(known, json.loads(json.dumps(plan)), "") if known else ():
        if isinstance(now, str) and now.startswith(UNNAMED):
            raise InputError(
                f"{folder}: {key} is {now.removeprefix(UNNAMED)}, which cannot be compared with that of the stored"
                " evaluation; pass another folder, or give the object a text in its attribute id"
            )
        was, now = (f"{json.dumps(each, ensure_ascii=False):.80}" for each in (was, now))
        raise InputError(
            f"{folder}: has another evaluation: {key} was {was}, and is {now} now (the arguments, or"
            " code of yours: its whole file counts); pass another folder"
        )
    return stored is not None


def _id(plan: Plan, cell: Cell) -> str:
    """The numbers of the arm and the order."""
    return f"{list(plan.arms).index(cell[0])}-{cell[1]}"


def _records(run: Record) -> dict[str, TaskRecord]:
    return {id: _record(run.head, row) for id, row in run.rows.items()}


def _record(head: Mapping[str, Any], row: Mapping[str, Any]) -> TaskRecord:
    try:
        of_cell = {"arm": head["arm"], "order": head["order"], "signal": head.get("signal")}
        return TaskRecord.model_validate({**row, **of_cell})
    except pydantic.ValidationError:
        raise InputError(f"run {head['run_id']}: has a row that is not a task record; pass another folder") from None


def _differences(stored: Any, plan: Any, key: str) -> Iterator[tuple[str, Any, Any]]:
    """Yield the parts of ``plan`` that differ in ``stored``: key, stored and planned value."""
    if isinstance(plan, dict) and isinstance(stored, dict) and (not key or plan.keys() == stored.keys()):
        for name, value in plan.items():
            yield from _differences(stored.get(name), value, f"{key}.{name}".lstrip("."))
    elif stored != plan:
        yield key, stored, plan


def _leaves(value: Any, key: str) -> Iterator[tuple[str, str]]:
    """Yield key and text of each value that is neither a table nor empty."""
    if isinstance(value, Mapping):
        for name, each in value.items():
            yield from _leaves(each, f"{key}.{name}".lstrip("."))
    elif value:
        yield key, str(value)
