"""A copy of a file as it was before its schema changed."""

from __future__ import annotations

import contextlib
import filecmp
import sqlite3
from pathlib import Path

from rb_dspy.bank.sqlite import failpoints
from rb_dspy.errors import StorageError
from rb_dspy.files import making, put


def made(connection: sqlite3.Connection, path: Path, version: int) -> Path:
    """Copy the database to ``<path>.backup-v<version>``, whole and on disk when it returns; its path.

    A copy that is there already is never written over: the next one is called ``…-2``, unless it would be the same.
    Raises ``StorageError`` where it cannot be made.
    """
    target = Path(f"{path}.backup-v{version}")
    try:
        with making(target) as unfinished:
            with contextlib.closing(sqlite3.connect(unfinished)) as copy:
                connection.backup(copy)
                copy.execute("PRAGMA journal_mode = DELETE")  # one file, whole without a log beside it
            number = 1
            while target.exists() and not filecmp.cmp(unfinished, target, shallow=False):
                number += 1
                target = Path(f"{path}.backup-v{version}-{number}")
            put(unfinished, target, like=path)
    except (OSError, sqlite3.Error) as exc:
        raise StorageError(
            f"{path}: its schema is older and cannot be brought up to date without a backup, which failed ({exc});"
            " make room and see that its folder can be written"
        ) from exc
    failpoints.reached("after-backup")
    return target
