"""The progress of an evaluation, and how its threads stop together."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from rb_dspy.concurrency import check_cancelled
from rb_dspy.evaluation.plan import Cell
from rb_dspy.evaluation.records import Records
from rb_dspy.pace import in_notebook
from rb_dspy.stream import TaskResult
from rb_dspy.text import counted


@dataclass(frozen=True)
class Progress:
    """The progress of an evaluation. It omits success, so that nobody stops an evaluation because it looks good."""

    done: int
    """Tasks that are done, over all arms and orders."""
    total: int
    arm: str
    """The arm of the task that was just done."""
    order: int
    task: str
    error: str
    """Why that task broke; empty if it did not."""
    errors: int
    calls: int
    tokens: int
    seconds: float
    """Seconds since this call of ``evaluate``."""

    @property
    def about(self) -> str:
        """The cell and the errors, in a few words."""
        return f"{self.arm}, order {self.order + 1}" + (f", {counted(self.errors, 'error')}" if self.errors else "")


class Counter:
    """Stores finished tasks, reports progress, and tells threads when to stop."""

    def __init__(
        self,
        total: int,
        records: Records,
        on_progress: Callable[[Progress], object] | None,
        on_result: Callable[[str, TaskResult], object] | None,
    ) -> None:
        self._total = total
        self._records = records
        self._on_progress = on_progress or in_notebook()
        self._on_result = on_result
        self._started = time.monotonic()
        self._lock = threading.Lock()
        self._stopped = False

    def add(self, cell: Cell, result: TaskResult) -> None:
        """Take a result and report progress; if that fails, the other cells stop too."""
        with self._lock:
            try:
                self._add(cell, result)
            except BaseException:
                self.stop()  # before another cell reports, so that it starts no other task
                raise

    def _add(self, cell: Cell, result: TaskResult) -> None:
        record = self._records.add(cell, result)
        if self._on_result is not None:
            self._on_result(cell[0], result)
        if self._on_progress is None:
            return
        records = self._records.all()
        self._on_progress(
            Progress(
                done=len(records),
                total=self._total,
                arm=record.arm,
                order=record.order,
                task=record.task,
                error=record.error,
                errors=sum(bool(each.error) for each in records),
                calls=sum(each.calls for each in records),
                tokens=sum(each.tokens for each in records),
                seconds=time.monotonic() - self._started,
            )
        )

    def stop(self) -> None:
        """Stop all cells before their next task."""
        self._stopped = True

    def check(self) -> None:
        """Raise ``Stopped`` if another cell failed, ``Cancelled`` after Ctrl-C."""
        check_cancelled()
        if self._stopped:
            raise Stopped


class Stopped(Exception):
    """Another cell failed, so this one ends before its next task."""
