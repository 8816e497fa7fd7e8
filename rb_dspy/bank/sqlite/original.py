"""Whether the file at a path is still the one that was opened."""

from __future__ import annotations

import os
from pathlib import Path

from rb_dspy.bank.sqlite.log import log_of
from rb_dspy.errors import StorageError


class Original:
    """A file as it was when ``remember`` was called; before that, ``check`` says nothing.

    SQLite's log lies beside the file by name: written on after another file took its place, it would be mixed into that
    one, and what was acknowledged would be in neither. The file is only looked up, never opened: closing it would drop
    the locks that SQLite holds on it for this process.
    """

    def __init__(self, path: Path, location: str) -> None:
        self._path = os.fspath(path)
        self._location = location
        self._known: tuple[int, ...] | None = None
        self._log = os.fspath(log_of(path))
        self.still = False
        self.written = True

    def remember(self, *, still: bool, written: bool = True) -> None:
        """``still``: it is read without locks, and must not change either. ``written``: else it is only read."""
        self.still = still
        self.written = written
        self._known = self._found()

    def check(self) -> None:
        """Raises ``StorageError`` where another file is there now, or none."""
        if self._known is not None and self._found() != self._known:
            what = "changed, replaced or removed" if self.still else "replaced or removed"
            raise StorageError(f"{self._location}: the file was {what} while it was open; open it again")

    def check_written(self) -> None:
        """Raises ``StorageError`` where it is only read."""
        if not self.written:
            raise StorageError(
                f"{self._location}: it is only read, since it cannot be written; check the permissions of the file and"
                " its folder"
            )

    def there(self) -> bool:
        """Whether it is still at its path."""
        return self._found() == self._known

    def _found(self) -> tuple[int, ...]:
        try:
            found = os.stat(self._path)
        except OSError:
            return ()
        if self.still:
            return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, self._logged()
        return found.st_dev, found.st_ino

    def _logged(self) -> int:
        """Whether something is in the log, which what is read without locks does not see."""
        try:
            return int(os.stat(self._log).st_size > 0)
        except OSError:
            return 0
