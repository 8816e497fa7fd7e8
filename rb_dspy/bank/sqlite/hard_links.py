"""A bank's file has one name: SQLite keeps the log, and what readers and writers agree on, beside the name.

By two hard links one file has two logs, and the lock of neither holds the other. What is written by one is lost to the
other, and sooner or later the file is damaged (sqlite.org/howtocorrupt.html, 2.5).
"""

from __future__ import annotations

import os
from pathlib import Path

from rb_dspy.errors import StorageError

REMEDY = "keep the name that has a -wal file beside it, if one has, and remove the others or make them copies"


def several(path: Path) -> str:
    """What is wrong where more than one hard link leads to the file; empty where one does, or there is no file."""
    try:
        # By name: opening and closing the file here would drop the locks that SQLite holds on it for this process.
        links = os.stat(path).st_nlink
    except OSError:
        return ""  # opening it says why
    if links < 2:  # some file systems do not count
        return ""
    return f"has {links} hard links, expected one: SQLite keeps a log for each, and one's is lost to the others"


def refuse(path: Path, location: str) -> None:
    """Raises ``StorageError`` where more than one hard link leads to the file.

    For readers, too, wherever anything can be written: what they hold by one name keeps nobody from writing by another,
    and the last to close copies its own log into the file. A backup of links is read where nothing can be written, or
    from a copy.
    """
    if what := several(path):
        raise StorageError(f"{location}: {what}; {REMEDY}")
