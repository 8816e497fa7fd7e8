"""The file lock where there is no ``flock``: the ``filelock`` library, which looks again and again."""

from __future__ import annotations

import contextlib
from pathlib import Path
from types import TracebackType
from typing import Self

import filelock


class FileLock:
    """See ``lock_posix.FileLock``."""

    def __init__(self, path: Path, of: Path | None = None) -> None:
        self._path = path
        self._lock = filelock.FileLock(path, thread_local=False)

    def __enter__(self) -> Self:
        """Raises ``OSError`` where the file cannot be made."""
        self._lock.acquire()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.release()

    def take(self, seconds: float) -> bool:
        """Take the lock if it can be had within so many seconds; then call ``remove``."""
        try:
            self._lock.acquire(timeout=seconds)
        except (filelock.Timeout, OSError):
            return False
        return True

    def remove(self) -> None:
        """Let go of it, and take the file away if nobody else has it open."""
        self._lock.release()
        with contextlib.suppress(OSError):
            self._path.unlink(missing_ok=True)

    def forget(self) -> None:
        """Close the file."""
        self._lock.release(force=True)


def in_use(path: Path) -> bool:  # noqa: ARG001
    """See ``lock_posix.in_use``. Nobody knows; but a file that is open cannot be moved there."""
    return False
