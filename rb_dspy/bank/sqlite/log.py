"""SQLite's write-ahead log, synced by us, after the file lock: processes do not wait for each other's disk.

``synchronous = FULL`` syncs the log inside the transaction, so whoever writes next waits for that, too. NORMAL leaves
this one sync out and keeps all others (the log's header, and everything around copying it into the database); ``sync``
makes up for it before anybody is told that a write is stored. So what is acknowledged survives a power cut, as with
FULL, and one sync is enough for all that was written before it began. What differs: others may see a write just before
it is acknowledged.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Callable
from pathlib import Path

from rb_dspy.bank.sqlite.remedies import FROM_A_COPY, of_bank
from rb_dspy.errors import CorruptBank, StorageError

_LONG_BYTES = 16_000_000
"""A log of more is copied into the database."""


def log_of(path: Path) -> Path:
    """Where SQLite keeps the log of the file at ``path``: it follows links, so beside what they lead to."""
    return Path(f"{os.path.realpath(path)}-wal")


class Log:
    """The log of the connection that writes."""

    def __init__(self, path: Path, location: str) -> None:
        self._path = os.fspath(log_of(path))
        self._mark = f"{os.path.realpath(path)}.lost"
        """A file that tells other processes, and those to come, that a sync of this log failed."""
        self._location = location
        self._long_bytes = _LONG_BYTES
        self._file: int | None = None
        self._lost = False
        self._closed = False

    def open(self, connection: sqlite3.Connection) -> None:
        """From now on a commit of this connection is on disk when ``sync`` was called after it."""
        self._closed = False
        connection.execute("PRAGMA user_version").fetchone()  # what is read first makes the log
        if connection.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
            return  # another program has switched it off: FULL, as it is, does it all
        # Closing this file drops no lock of SQLite's for this process: those lie on its other two.
        try:
            self._file = os.open(self._path, os.O_RDWR | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0))
        except OSError:
            return  # so does it where this cannot be done
        connection.execute("PRAGMA synchronous = NORMAL")

    def check(self, connection: sqlite3.Connection, connect: Callable[[], sqlite3.Connection]) -> None:
        """To be called before a transaction, under the file lock. Raises ``StorageError`` while the disk fails.

        After a sync that failed the system may take what is not on disk for written. So all of it goes into the
        database, and the log begins anew: what came after a hole in it would not be found again. Unless the hole is
        there already: then it raises ``CorruptBank``, and nothing is copied over what is sound.
        """
        if self._lost or os.path.exists(self._mark):
            with contextlib.closing(connect()) as fresh:  # one that writes does not read again what it wrote
                (found,) = fresh.execute("PRAGMA quick_check(1)").fetchone()
            if found != "ok":
                raise CorruptBank(
                    f"{self._location}: the disk failed and lost a part of it; {of_bank(FROM_A_COPY, self._location)}"
                )
            busy, _, _ = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            if busy:
                raise StorageError(
                    f"{self._location}: the disk failed, and a reader is in the way of mending; try again"
                )
            with contextlib.suppress(OSError):  # then the next one does it once more
                os.unlink(self._mark)
            self._lost = False

    def sync(self) -> None:
        """All that was committed before is on disk. Raises ``StorageError`` where it is not known to be."""
        if self._file is None:
            if self._closed:
                raise self._unknown("the bank was closed before the disk had it")
            return
        try:
            getattr(os, "fdatasync", os.fsync)(self._file)  # not on every system
        except OSError as exc:
            self._lost = True
            with contextlib.suppress(OSError):  # it need not get to the disk: after a power cut, what is there counts
                os.close(os.open(self._mark, os.O_WRONLY | os.O_CREAT, 0o666))
            raise self._unknown(f"the disk failed ({exc.strerror or exc})") from exc
        # The system tells of an error only those who had the file open at that time: others would sync across a hole.
        if os.path.exists(self._mark):
            raise self._unknown("the disk failed (another process could not sync)")

    def _unknown(self, why: str) -> StorageError:
        return StorageError(
            f"{self._location}: {why}, so it is not known whether this is stored; check the disk and do it again"
        )

    def is_long(self) -> bool:
        """Whether it is time to ``shorten`` it."""
        try:
            return os.stat(self._path).st_size >= self._long_bytes
        except OSError:
            return False

    def shorten(self, connection: sqlite3.Connection) -> None:
        """Copy a long log into the database, and begin it anew where no reader stands in the way."""
        # The file of a log that began anew keeps its size, so only growth shows that it is long again. TRUNCATE gives
        # the file back once it has crept up that way. Neither waits for those who read an old state.
        with contextlib.suppress(sqlite3.Error, OSError):  # all is safe in the log; the next one tries again
            how = "TRUNCATE" if os.stat(self._path).st_size > 4 * _LONG_BYTES else "PASSIVE"
            (timeout,) = connection.execute("PRAGMA busy_timeout").fetchone()
            connection.execute("PRAGMA busy_timeout = 0")
            connection.execute(f"PRAGMA wal_checkpoint({how})")
            connection.execute(f"PRAGMA busy_timeout = {timeout}")
            self._long_bytes = max(_LONG_BYTES, os.stat(self._path).st_size + _LONG_BYTES // 16)

    def close(self) -> None:
        """Before the connection is closed: who closes the last one takes the log away."""
        file, self._file = self._file, None
        if file is not None:
            self._closed = True
            with contextlib.suppress(OSError):  # what it may tell, the last sync told
                os.close(file)
