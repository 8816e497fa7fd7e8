"""Whether the file at a path is still the one that was opened."""

from __future__ import annotations

import os
from pathlib import Path

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
        self.still = False

    def remember(self, *, still: bool) -> None:
        """``still``: it is read without locks, so its content must not change either."""
        self.still = still
        self._known = self._found()

    def check(self) -> None:
        """Raises ``StorageError`` where another file is there now, or none."""
        if self._known is not None and self._found() != self._known:
            what = "changed, replaced or removed" if self.still else "replaced or removed"
            raise StorageError(f"{self._location}: the file was {what} while it was open; open it again")

    def there(self) -> bool:
        """Whether it is still at its path."""
        return self._found() == self._known

    def _found(self) -> tuple[int, ...]:
        try:
            found = os.stat(self._path)
        except OSError:
            return ()
        if self.still:
            return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
        return found.st_dev, found.st_ino
