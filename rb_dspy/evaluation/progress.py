"""The progress of an evaluation, and how its threads stop together."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from rb_dspy.evaluation.records import Journal, TaskRecord


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


class Counter:
    """Counts finished tasks, and tells threads when to stop."""

    def __init__(self, total: int, journal: Journal, on_progress: Callable[[Progress], object] | None) -> None:
        records = journal.all()
        self._done, self._total = len(records), total
        self._errors = sum(bool(record.error) for record in records)
        self._calls = sum(record.calls for record in records)
        self._tokens = sum(record.tokens for record in records)
        self._journal = journal
        self._on_progress = on_progress
        self._started = time.monotonic()
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._running = 0
        self._ended = threading.Condition()

    def add(self, record: TaskRecord) -> None:
        """Store a record and report progress."""
        with self._lock:
            self._journal.add(record)
            self._done += 1
            self._errors += bool(record.error)
            self._calls += record.calls
            self._tokens += record.tokens
            if self._on_progress is None:
                return
            self._on_progress(
                Progress(
                    done=self._done,
                    total=self._total,
                    arm=record.arm,
                    order=record.order,
                    task=record.task,
                    error=record.error,
                    errors=self._errors,
                    calls=self._calls,
                    tokens=self._tokens,
                    seconds=time.monotonic() - self._started,
                )
            )

    @contextmanager
    def running(self) -> Iterator[None]:
        """Stop the other cells before their next task if an error leaves the block."""
        with self._ended:
            self._running += 1
        try:
            self.check()
            yield
        except BaseException:
            self._stopped.set()
            raise
        finally:
            with self._ended:
                self._running -= 1
                self._ended.notify_all()

    def wait(self) -> None:
        """Stop all cells and wait for them, so that no thread outlives this evaluation."""
        self._stopped.set()
        with self._ended:
            self._ended.wait_for(lambda: not self._running)

    def check(self) -> None:
        """Raise ``Stopped`` if another cell failed."""
        if self._stopped.is_set():
            raise Stopped


class Stopped(Exception):
    """Another cell failed, so this one ends before its next task."""
