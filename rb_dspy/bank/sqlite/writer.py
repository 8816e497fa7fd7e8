"""Group commit: one thread of a process writes for all of its callers, and syncs the disk once for all that wait."""

from __future__ import annotations

import collections
import contextlib
import os
import sqlite3
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

from rb_dspy.bank import refusals
from rb_dspy.bank.sqlite import failpoints, files as sqlite
from rb_dspy.bank.sqlite.lock import FileLock
from rb_dspy.bank.sqlite.log import Log
from rb_dspy.bank.sqlite.original import Original
from rb_dspy.bank.sqlite.waiting import Result, Waiting, tell
from rb_dspy.errors import BankError, StorageError

Request = TypeVar("Request")

_GROUP = 256
"""Most requests of one transaction."""

_RETRY_MILLISECONDS = 500
"""How long SQLite waits for a program that locks the file without our lock, before this thread looks around again."""

_CACHE_KILOBYTES = 32_000
"""SQLite's page cache: with its usual 2,000 a long batch writes the pages of the indexes again and again."""


class Writer(Generic[Request]):
    """Takes requests from any thread, and performs them in order, many in one transaction.

    ``perform`` is given the connection, inside a transaction, and requests; it returns the outcome of each, and raises
    where none of them may be kept. It is called again, with one request at a time, where several could not be performed
    together, so it must change nothing but the database.

    The thread starts with the first request, sleeps while there is none, and ends with ``close``.
    """

    def __init__(
        self,
        path: Path,
        location: str,
        connect: Callable[[], sqlite3.Connection],
        original: Original,
        lock: FileLock,
        perform: Callable[[sqlite3.Connection, Sequence[Request]], Sequence[Result]],
    ) -> None:
        self._location = location
        self._log = Log(path, location)
        self._connect = connect
        self._original = original
        self._lock = lock
        self._perform = perform
        self._changed = threading.Condition()
        self._waiting: collections.deque[Waiting[Request]] = collections.deque()
        self._closed = False
        self._thread: threading.Thread | None = None
        self._connection: sqlite3.Connection | None = None
        self.process = os.getpid()

    def do(self, request: Request, meanwhile: Callable[[Callable[[], bool]], None] | None = None) -> Result:
        """What ``request`` gave, durable. Raises what it raised; then nothing of it is stored, unless the disk failed.

        ``meanwhile`` is called once the request stands in line, with what tells whether it is done.

        Raises ``StorageError`` when its turn has not come after ``sqlite.WAIT_SECONDS``, after ``close``, and in a
        forked process. A write that has begun is waited for, also when Ctrl-C is pressed meanwhile; one that has not is
        withdrawn.
        """
        if self.process != os.getpid():
            raise refusals.left_behind(self._location)
        self._original.check_written()
        waiting = Waiting(request)
        try:
            with self._changed:
                if self._closed:
                    raise refusals.closed(self._location)
                self._waiting.append(waiting)
                if self._thread is None or not self._thread.is_alive():
                    self._start()
                self._changed.notify_all()
            if meanwhile is not None:
                meanwhile(waiting.is_done)
            if not waiting.wait_done(sqlite.WAIT_SECONDS) and self._withdrawn(waiting):
                raise StorageError(f"{self._location}: another process keeps it locked; end that process or wait")
            while not waiting.wait_done(sqlite.WAIT_SECONDS):
                pass
        except BaseException:
            if not self._withdrawn(waiting):
                waiting.settle()
            raise
        outcome = waiting.outcome
        try:
            if isinstance(outcome, BaseException):
                raise outcome
            return outcome
        finally:
            del outcome, waiting  # an error that holds the frame that holds it would keep cursors alive

    def close(self) -> None:
        """Perform what waits, each for as long as its caller waits for it, and end the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(sqlite.WAIT_SECONDS)

    def empty_log(self) -> None:
        """See ``files.emptied_log``; for a file that is no longer at its path."""
        if self._connection is not None:
            sqlite.emptied_log(self._connection)

    def disconnect(self) -> None:
        """Close the connection, after ``close``."""
        connection, self._connection = self._connection, None
        self._log.close()
        if connection is not None:
            connection.close()

    def _run(self) -> None:
        try:
            while self._wanted():
                self._turn()
        except BaseException:
            with self._changed:
                self.disconnect()  # with whatever it had begun
                self._thread = None
                if self._waiting:
                    self._start()
            raise

    def _start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="rb_dspy bank writer", daemon=True)
        self._thread.start()

    def _turn(self) -> None:
        """One transaction, under the file lock. It is synced after that, so that the next process need not wait."""
        taken: list[Waiting[Request]] = []
        given: Sequence[Result] = ()
        outcomes: Sequence[Result] = ()
        told = False
        try:
            with sqlite.translated(self._location):
                with self._lock:
                    self._original.check()
                    connection = self._connected()
                    self._log.check(connection, self._connect)
                    if self._begun(connection):
                        taken += self._taken()
                        given = self._committed(connection, taken)
                        if self._log.is_long():
                            self._log.sync()
                            told = True
                            tell(taken, given, self._died)  # it is on disk, and the rest takes a while
                            self._log.shorten(connection)
                    refused = any(isinstance(outcome, Exception) for outcome in given)
                    if refused:
                        self._log.sync()
                        self.disconnect()  # an error keeps cursors alive, and these keep the connection in the past
                if not refused:
                    self._log.sync()
                outcomes = given
        except BankError as exc:  # no lock, no connection, no transaction, no disk: nobody can write
            taken = taken if told else taken or self._taken()
            outcomes = [each if isinstance(each, Exception) else exc for each in given] or [exc] * len(taken)
        finally:
            if not told:
                tell(taken, outcomes, self._died)

    def _connected(self) -> sqlite3.Connection:
        if self._connection is None:
            self._connection = self._connect()
            self._connection.execute(f"PRAGMA busy_timeout = {_RETRY_MILLISECONDS}")
            self._connection.execute(f"PRAGMA cache_size = {-_CACHE_KILOBYTES}")
            self._log.open(self._connection)
        return self._connection

    def _died(self) -> StorageError:
        return StorageError(f"{self._location}: the thread that writes died; what waited was not stored, try again")

    def _wanted(self) -> bool:
        """Wait for requests; False when the bank is closed and there are none."""
        with self._changed:
            while True:
                while self._waiting and self._waiting[0].withdrawn:
                    self._waiting.popleft()
                if self._waiting or self._closed:
                    return bool(self._waiting)
                self._changed.wait()

    def _taken(self) -> list[Waiting[Request]]:
        """The next requests, less those that were withdrawn; from now on their callers wait for the outcome."""
        with self._changed:
            first = [self._waiting.popleft() for _ in range(min(_GROUP, len(self._waiting)))]
            taken = [waiting for waiting in first if not waiting.withdrawn]
            for waiting in taken:
                waiting.taken = True
        return taken

    def _withdrawn(self, waiting: Waiting[Request]) -> bool:
        """Withdraw it, unless it was taken."""
        with self._changed:
            if not waiting.taken:
                waiting.withdrawn = True
        return waiting.withdrawn

    def _begun(self, connection: sqlite3.Connection) -> bool:
        """Whether the transaction could begin; else it is tried again for as long as somebody waits."""
        failpoints.reached("before-begin")
        try:
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError as exc:
            if exc.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY:
                raise
            return False
        return True

    def _committed(self, connection: sqlite3.Connection, taken: Sequence[Waiting[Request]]) -> Sequence[Result]:
        """The outcomes of requests, committed and not synced yet; the transaction has begun."""
        try:
            with sqlite.translated(self._location):
                outcomes = self._perform(connection, [waiting.request for waiting in taken]) if taken else ()
                failpoints.reached("before-commit")
                connection.execute("COMMIT")
                failpoints.reached("after-commit")
            return outcomes
        except Exception as exc:  # noqa: BLE001 (whatever a request raises is its caller's)
            if connection.in_transaction:
                with contextlib.suppress(sqlite3.Error):  # SQLite may have done it already
                    connection.execute("ROLLBACK")
            if len(taken) == 1:
                return [exc]
        alone: list[Result] = []
        for waiting in taken:  # each by itself, so that what one of them broke fails nobody else
            try:
                with sqlite.translated(self._location):
                    connection.execute("BEGIN IMMEDIATE")
            except BankError as exc:
                alone.append(exc)
            else:
                alone += self._committed(connection, [waiting])
        return alone
