"""Files that are complete or absent, and never replace a bank.

A file is written under another name in its folder, synced, renamed, and the folder is synced.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from rb_dspy.errors import InputError, RBError

_BESIDE = ("-wal", "-shm", "-journal", ".lock")
"""Suffixes that SQLite or a bank adds to a database's name for the files next to it."""


@contextmanager
def atomic_write(path: str | Path, *, error: type[RBError] = RBError) -> Iterator[BinaryIO]:
    """Open a new file that replaces ``path`` when the block ends, and sync it; if the block raises, nothing changes.

    A link is followed. A new file is for its owner only; the permissions of an existing one stay.

    Raises:
        InputError: ``path`` is a folder or a database, or its folder does not exist.
        RBError: The file cannot be written (the type is ``error``).
    """
    target = _target(Path(path))
    unfinished = target.with_name(f".rb-dspy-{secrets.token_hex(8)}.part")
    exists = os.path.exists(target)
    try:
        descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            yield file
            if exists:
                os.chmod(unfinished, stat.S_IMODE(target.stat().st_mode))
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(target)
        _sync_folder(target.parent)
    except OSError as exc:
        raise error(f"{path}: cannot be written: {exc.strerror or exc}; free space or give another path") from exc
    finally:
        unfinished.unlink(missing_ok=True)


def make_folder(path: Path, *, error: type[RBError] | None = None) -> None:
    """Make ``path`` and the folders above it, for their owner only; existing ones stay as they are.

    Raises ``error`` if that fails; without ``error`` the ``OSError``.
    """
    try:
        for folder in (*reversed(path.parents), path):
            folder.mkdir(mode=0o700, exist_ok=True)
    except OSError as exc:
        if error is None:
            raise
        raise error(f"{path}: cannot be created: {exc.strerror}; pass another folder") from exc


def _sync_folder(folder: Path) -> None:
    """Sync the names in ``folder`` to disk, if the system can sync folders."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as exc:
        if exc.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EACCES, errno.EPERM, errno.EBADF, errno.EISDIR):
            raise


def is_database(path: Path) -> bool:
    """Whether ``path`` is an SQLite database, or a file that SQLite or a bank stores next to one."""
    # Check the file itself last: opening a file of an open database would release the locks of this process.
    names = [*(str(path).removesuffix(end) for end in _BESIDE if path.name.endswith(end)), str(path)]
    return any(map(_is_database, map(Path, names)))


def _is_database(path: Path) -> bool:
    if os.path.exists(f"{path}-shm"):
        return True  # open; reading it here would release the locks that SQLite holds on it for this process
    if not os.path.isfile(path):
        return False
    with path.open("rb") as file:
        return file.read(16) == b"SQLite format 3\0"


def _target(path: Path) -> Path:
    """Return the file to write: the path itself, or the target of its link."""
    if "\0" in str(path):
        raise InputError(f"{str(path)!r}: the path contains NUL; give another path")
    if os.path.isdir(path):
        raise InputError(f"{path}: is a folder; expected the name of a file")
    target = Path(os.path.realpath(path))
    if not target.parent.is_dir():
        raise InputError(f"{target.parent}: no such folder; create it, or give another path")
    if os.path.exists(target) and not os.path.isfile(target):
        raise InputError(f"{path}: is a device or a pipe; expected the name of a file")
    if is_database(target):
        raise InputError(f"{path}: is a database, perhaps a bank; give another path")
    return target
