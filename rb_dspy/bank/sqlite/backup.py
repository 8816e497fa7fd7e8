"""A copy of a file as it was before its schema changed."""

from __future__ import annotations

import contextlib
import filecmp
import os
import sqlite3
from pathlib import Path

from rb_dspy.bank.sqlite import failpoints
from rb_dspy.errors import StorageError


def made(connection: sqlite3.Connection, path: Path, version: int) -> Path:
    """Copy the database to ``<path>.backup-v<version>``, whole and on disk when it returns; its path.

    A copy that is there already is never written over: the next one is called ``…-2``, unless it would be the same.
    Raises ``StorageError`` where it cannot be made.
    """
    target = Path(f"{path}.backup-v{version}")
    unfinished = Path(f"{target}.{os.getpid()}.tmp")
    try:
        unfinished.unlink(missing_ok=True)
        with contextlib.closing(sqlite3.connect(unfinished)) as copy:
            connection.backup(copy)
            copy.execute("PRAGMA journal_mode = DELETE")  # one file, whole without a log beside it
        _sync(unfinished)
        number = 1
        while target.exists() and not filecmp.cmp(unfinished, target, shallow=False):
            number += 1
            target = Path(f"{path}.backup-v{version}-{number}")
        os.replace(unfinished, target)
        _sync(target.parent)
    except (OSError, sqlite3.Error) as exc:
        with contextlib.suppress(OSError):
            unfinished.unlink(missing_ok=True)
        raise StorageError(
            f"{path}: its schema is older and cannot be brought up to date without a backup, which failed ({exc});"
            " make room and see that its folder can be written"
        ) from exc
    failpoints.reached("after-backup")
    return target


def _sync(path: Path) -> None:
    if os.name == "nt" and path.is_dir():
        return  # Windows has no way to sync a folder
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)
