"""Group commit: writes that wait for each other in threads share a transaction, because a commit waits for the disk."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager
from itertools import groupby
from typing import Any, TypeVar

from rb_dspy.bank.store.tables import Connection

Item = TypeVar("Item")
Result = TypeVar("Result")

Work = Callable[[Connection, Sequence[Item]], Sequence[Result]]
"""Writes items, and returns a result for each."""


class _Job:
    """An item that waits to be written; then it has a result or an error."""

    def __init__(self, key: Hashable, work: Work[Any, Any], item: Any) -> None:
        self.key = key
        self.work = work
        self.item = item
        self.results: list[Any] = []
        self.error: Exception | None = None


class GroupCommit:
    """The writes of one scope. One thread at a time commits its own and all that waited for it."""

    def __init__(self, writing: Callable[[], AbstractContextManager[Connection]]) -> None:
        """``writing`` opens a transaction, which is committed at its end."""
        self._writing = writing
        self._waiting: list[_Job] = []
        self._adding = threading.Lock()
        self._turn = threading.Lock()

    def run(self, key: Hashable, work: Work[Item, Result], item: Item) -> Result:
        """Write ``item`` in a transaction, and return the result when that is committed.

        ``work`` is called once for items of the same ``key`` that wait together. If the shared transaction fails, each
        item is written in one of its own, so only the one that fails raises.
        """
        job = _Job(key, work, item)
        with self._adding:
            self._waiting.append(job)
        try:
            with self._turn:
                if not job.results and job.error is None:
                    self._commit_waiting()
        finally:  # if this thread was interrupted, nobody may do it later
            with self._adding:
                self._waiting = [each for each in self._waiting if each is not job]
        if job.error is not None:
            raise job.error
        result: Result = job.results[0]
        return result

    def _commit_waiting(self) -> None:
        """Write all that waits now. What an interrupted thread has not written goes back to what waits."""
        with self._adding:
            jobs, self._waiting = self._waiting, []
        left = jobs
        try:
            if len(jobs) > 1 and self._is_done(jobs):
                left = []
            while left:
                self._commit_alone(left[0])
                left = left[1:]
        finally:
            with self._adding:
                self._waiting = [*left, *self._waiting]

    def _is_done(self, jobs: Sequence[_Job]) -> bool:
        """Write all of ``jobs`` in one transaction. False if nothing is stored because one of them failed."""
        groups = [list(group) for _, group in groupby(jobs, key=lambda job: job.key)]
        results: list[Any] = []
        begun = False
        try:
            with self._writing() as connection:
                begun = True
                for group in groups:
                    results += group[0].work(connection, [job.item for job in group])
        except Exception as exc:  # noqa: BLE001  their threads raise it, or the one that fails alone raises its own
            for job in () if begun else jobs:  # the bank cannot be written: nobody waits for that again
                job.error = exc
            return not begun
        for job, result in zip(jobs, results, strict=True):
            job.results.append(result)
        return True

    def _commit_alone(self, job: _Job) -> None:
        try:
            with self._writing() as connection:
                results = job.work(connection, [job.item])
            job.results.extend(results)
        except Exception as exc:  # noqa: BLE001  its own thread raises it
            job.error = exc
