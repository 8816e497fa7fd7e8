"""Group commit: writes that wait for each other in threads share a transaction, because a commit waits for the disk."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Generic, TypeVar

from rb_dspy.bank.store.tables import Connection

Result = TypeVar("Result")


class _Job(Generic[Result]):
    """Work that waits for a transaction; then it has a result or an error."""

    def __init__(self, work: Callable[[Connection], Result]) -> None:
        self.work = work
        self.results: list[Result] = []
        self.error: Exception | None = None


class GroupCommit:
    """The writes of one scope. One thread at a time commits its own and all that waited for it."""

    def __init__(self, writing: Callable[[], AbstractContextManager[Connection]]) -> None:
        """``writing`` opens a transaction, which is committed at its end."""
        self._writing = writing
        self._waiting: list[_Job[Any]] = []
        self._adding = threading.Lock()
        self._turn = threading.Lock()

    def run(self, work: Callable[[Connection], Result]) -> Result:
        """Do ``work`` in a transaction, and return its result when that is committed.

        If the shared transaction fails, each work is repeated in one of its own, so only the one that fails raises.
        """
        job = _Job(work)
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
        return job.results[0]

    def _commit_waiting(self) -> None:
        """Do all work that waits now. What an interrupted thread has not done goes back to those that wait."""
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

    def _is_done(self, jobs: Sequence[_Job[Any]]) -> bool:
        """Do all of ``jobs`` in one transaction. False if nothing is stored because one of them failed."""
        results, begun = [], False
        try:
            with self._writing() as connection:
                begun = True
                for job in jobs:
                    results.append(job.work(connection))
        except Exception as exc:  # noqa: BLE001  their threads raise it, or the one that fails alone raises its own
            for job in () if begun else jobs:  # the bank cannot be written: nobody waits for that again
                job.error = exc
            return not begun
        for job, result in zip(jobs, results, strict=True):
            job.results.append(result)
        return True

    def _commit_alone(self, job: _Job[Any]) -> None:
        try:
            with self._writing() as connection:
                result = job.work(connection)
            job.results.append(result)
        except Exception as exc:  # noqa: BLE001  its own thread raises it
            job.error = exc
