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
"""What SQLite, or a bank, adds to the name of a database for the files beside it."""


@contextmanager
def atomic_write(path: str | Path, *, error: type[RBError] = RBError) -> Iterator[BinaryIO]:
    """Open a file to write to, which replaces ``path`` when the block ends, on disk; if it raises, nothing changes.

    A link is followed, and an existing file passes on its permissions.

    Raises:
        InputError: ``path`` is a folder or a database, or its folder does not exist.
        RBError: The disk refuses (the type is ``error``).
    """
    target = _target(Path(path))
    existing = target if os.path.exists(target) else None
    try:
        with making(target, private=existing is not None) as unfinished:
            with unfinished.open("wb") as file:
                yield file
            put(unfinished, target, like=existing)
    except OSError as exc:
        raise error(f"{path}: cannot be written: {exc.strerror or exc}; free space or give another path") from exc


@contextmanager
def making(target: Path, *, private: bool = True) -> Iterator[Path]:
    """An empty file beside ``target``, to be written and then ``put`` there; removed when the block ends.

    Args:
        target: Where the file will go.
        private: Only the owner may read it until ``put`` gives it other permissions.
    """
    unfinished = target.with_name(f".rb-dspy-{secrets.token_hex(8)}.part")
    try:
        os.close(os.open(unfinished, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600 if private else 0o666))
        yield unfinished
    finally:
        for end in ("", *_BESIDE):
            Path(f"{unfinished}{end}").unlink(missing_ok=True)


def put(unfinished: Path, to: Path, *, like: Path | None = None, least: int = 0, over: bool = True) -> None:
    """Rename ``unfinished`` to ``to`` in the same folder; the file and its name are on disk when this returns.

    Args:
        unfinished: A file from ``making``.
        to: Its new name; a link there is replaced, not followed.
        like: The file whose permissions it gets.
        least: Permissions that it gets besides.
        over: Replace an existing file; otherwise ``FileExistsError`` is raised.
    """
    with unfinished.open("rb+") as file:  # before its permissions may forbid that
        if like is not None:
            os.chmod(unfinished, stat.S_IMODE(like.stat().st_mode) | least)
        os.fsync(file.fileno())
    if not over:
        to.touch(exist_ok=False)
    unfinished.replace(to)
    sync_folder(to.parent)


def sync(path: Path) -> None:
    """Bring the content of a file to disk; for its name see ``sync_folder``."""
    with path.open("rb+") as file:
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Bring the names in ``folder`` to disk, if the system can sync folders. Raises ``OSError`` if the disk refuses."""
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
    """Whether ``path`` is an SQLite database, or a file that SQLite keeps beside one."""
    # The file itself last: opening a file beside an open database would release the locks of this process.
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
    """Where the file goes: the path itself, or what it links to."""
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
