"""The file lock where there is ``flock``: whoever waits sleeps in the kernel."""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import threading
import time
import weakref
from pathlib import Path
from types import TracebackType
from typing import Self

_POLL_SECONDS = 0.01

_SHARED_FIRST, _SHARED_SIZE = 0x40000002, 510
"""Bytes that each connection of SQLite holds a lock on for as long as it has a file with a write-ahead log open."""


class FileLock:
    """A lock that processes, and stores of one process, take in turn; a ``with`` waits for it without end.

    The system lets go of it when its process ends, however it ends. Not to be entered twice, nor from two threads at
    once. The file is made where it is missing.
    """

    def __init__(self, path: Path, of: Path | None = None) -> None:
        """``of``: the file that it is the lock of; who may write that may take this."""
        self._path = path
        self._of = of
        self._file: int | None = None
        self._turn = threading.Lock()
        _locks.add(self)

    def __enter__(self) -> Self:
        """Raises ``OSError`` where the file cannot be made."""
        self._turn.acquire()
        try:
            self._take(wait=True)
        except BaseException:
            self._turn.release()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            fcntl.flock(self._file, fcntl.LOCK_UN)
        self._turn.release()

    def take(self, seconds: float) -> bool:
        """Take the lock if it can be had within so many seconds; then call ``remove``."""
        deadline = time.monotonic() + seconds
        if not self._turn.acquire(timeout=seconds):
            return False
        try:
            while not self._take(wait=False):
                if time.monotonic() > deadline:
                    break
                time.sleep(_POLL_SECONDS)
            else:
                return True
        except OSError:
            pass  # it cannot be made here, so nobody has it
        self._turn.release()
        return False

    def remove(self) -> None:
        """Take the file away, then let go of it; who waits for it finds that it is gone, and makes another."""
        with contextlib.suppress(OSError):  # another user's file, in a folder where each removes his own
            self._path.unlink(missing_ok=True)
        self.forget()
        self._turn.release()

    def forget(self) -> None:
        """Close the file without a word to those who share it: a forked child must not unlock for its parent."""
        file, self._file = self._file, None
        if file is not None:
            os.close(file)

    def _take(self, *, wait: bool) -> bool:
        while True:
            if self._file is None:
                self._file = self._opened()
            if not _lock(self._file, wait=wait):
                return False
            if os.fstat(self._file).st_nlink:
                return True
            self.forget()  # removed while this one waited

    def _opened(self) -> int:
        how = os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0)
        try:
            file = os.open(self._path, how, 0o666)
        except PermissionError:  # another user may be making it just now, who shares it a moment after that
            time.sleep(_POLL_SECONDS)
            file = os.open(self._path, how, 0o666)
        if self._of is not None:
            _share(file, self._of)
        return file


def _share(file: int, of: Path) -> None:
    """Give it the permissions of what it is the lock of, as SQLite gives the files that it keeps beside a database."""
    with contextlib.suppress(OSError):  # not made yet, or another user's lock, which stays as they left it
        wanted, found = os.stat(of), os.fstat(file)
        if os.geteuid() == 0 and (found.st_uid, found.st_gid) != (wanted.st_uid, wanted.st_gid):
            os.fchown(file, wanted.st_uid, wanted.st_gid)
        mode = wanted.st_mode & 0o666 | 0o600
        if stat.S_IMODE(found.st_mode) != mode:
            os.fchmod(file, mode)


def in_use(path: Path) -> bool:
    """Whether another process has the database open. Raises ``OSError`` for one that this user may not write.

    Not for one that this process has open itself: closing the file here drops the locks that SQLite holds on it.
    """
    file = os.open(path, os.O_RDWR | getattr(os, "O_CLOEXEC", 0))
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, _SHARED_SIZE, _SHARED_FIRST)
    except (BlockingIOError, PermissionError):  # which of the two is the system's choice
        return True
    finally:
        os.close(file)
    return False


def _lock(file: int, *, wait: bool) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


_locks: weakref.WeakSet[FileLock] = weakref.WeakSet()


def _forget_all() -> None:
    for lock in list(_locks):
        lock.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_all)
