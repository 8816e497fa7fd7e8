"""Connections for reading: as many as there are readers at once, kept for the next."""

from __future__ import annotations

import collections
import contextlib
import os
import sqlite3
import threading
from collections.abc import Callable
from typing import TypeVar

from rb_dspy.bank import refusals
from rb_dspy.bank.sqlite import files as sqlite
from rb_dspy.bank.sqlite.original import Original

T = TypeVar("T")

_CACHE_KILOBYTES = 16_000
"""Pages that a reader keeps: with SQLite's usual 2,000, looking up five lessons among ten thousand reads the file."""


class Readers:
    """Raw connections that ``connect`` makes. Safe to use from threads; nothing is ever written through them."""

    def __init__(self, location: str, connect: Callable[[], sqlite3.Connection], original: Original) -> None:
        self._location = location
        self._translated, self._readable = sqlite.translated(location), sqlite.readable(location)
        """Stateless: every query passes both."""
        self._original = original
        self._connect = connect
        self._idle: collections.deque[sqlite3.Connection] = collections.deque()
        self._closed = False
        self._process = os.getpid()
        self._watcher: sqlite3.Connection | None = None
        self._watching = threading.Lock()

    def read(self, query: Callable[[sqlite3.Connection], T]) -> T:
        """What ``query`` gives; all that it reads is one consistent view of the file. It may be called twice."""
        self.check()
        with self._readable:
            try:
                connection, fresh = self._idle.pop(), False
            except IndexError:
                connection, fresh = self._connect(), True
            try:
                if fresh:
                    self.check()  # again: it may have been closed since
                    connection.execute(f"PRAGMA cache_size = {-_CACHE_KILOBYTES}")
                connection.execute("BEGIN")
                found = query(connection)
                connection.execute("ROLLBACK")
            except BaseException as exc:
                # An error keeps cursors alive, and these what they saw: whoever came next would read the past.
                connection.close()
                if isinstance(exc, sqlite3.OperationalError) and "Could not decode" in str(exc):
                    return self.read_leniently(query)
                raise
            self._idle.append(connection)
            if self._closed:
                self._close_idle()
            return found

    def read_leniently(self, query: Callable[[sqlite3.Connection], T]) -> T:
        """The same, but a text that is no UTF-8 is read with wrong letters in it, so that its digest gives it away."""
        self.check()
        with self._readable, contextlib.closing(self._connect()) as connection:
            connection.text_factory = sqlite.leniently
            connection.execute("BEGIN")
            return query(connection)

    def version(self) -> int:
        """``PRAGMA data_version``, always of the same connection: another one whenever any other has committed.

        Raises ``StorageError`` where the file was replaced or removed: what is committed there is not seen here.
        """
        self.check()
        self._original.check()
        with self._watching, self._translated:
            self.check()  # again: once it is closed, nobody would close what is made here
            if self._watcher is None:
                self._watcher = self._connect()
            return int(self._watcher.execute("PRAGMA data_version").fetchone()[0])

    def empty_log(self) -> None:
        """See ``files.emptied_log``; for a file that is no longer at its path."""
        if self._watcher is not None:
            sqlite.emptied_log(self._watcher)
        elif self._idle:
            sqlite.emptied_log(self._idle[0])

    def close(self) -> None:
        """Close those that are idle; the others when their readers are done."""
        self._closed = True
        with self._watching:
            if self._watcher is not None:
                self._watcher.close()
                self._watcher = None
        self._close_idle()

    def check(self) -> None:
        """Raises ``StorageError`` after ``close``, in a forked process, and where a file without locks has changed."""
        if self._closed:
            raise refusals.closed(self._location)
        if self._process != os.getpid():
            raise refusals.left_behind(self._location)
        if self._original.still:
            self._original.check()

    def _close_idle(self) -> None:
        with contextlib.suppress(IndexError):
            while True:
                self._idle.pop().close()
