"""Files that are there whole or not at all, and never in the place of a bank.

Whatever is written as one file is made aside, beside its place, and then put there: synced, renamed, its folder synced.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from rb_dspy.errors import InputError, RBError

_BESIDE = ("-wal", "-shm", "-journal", ".lock", ".lost")
"""What the names of files end in that SQLite, or a bank, keeps beside a database."""

_RUN = re.compile(r"\.run-[0-9a-f]{12}-[0-9a-f]{12}\.lock$")
"""What the lock of a run at work on a bank ends in."""

_MADE = re.compile(rf"\.rb-dspy-[0-9a-f]{{16}}\.part({'|'.join(map(re.escape, _BESIDE))})?")
"""Names of what is made aside, and of what SQLite keeps beside it."""

_STRAY = 86_400
"""Seconds without a write after which a file in the making was left by a process that died."""

_NO_FOLDERS = {errno.EACCES, errno.EISDIR, errno.EBADF, errno.EINVAL, errno.ENOTSUP}
"""What says that a folder cannot be synced here: Windows opens none, some may be written and not read, and some file
systems know no such thing."""


class Unsynced(OSError):
    """A file was put into its place, and a power cut may undo that: its folder could not be synced."""


@contextmanager
def replaced(path: str | Path, *, error: type[RBError] = RBError) -> Iterator[BinaryIO]:
    """A file to write to, which is at ``path`` when the block ends, on disk; where it raises, all is as it was.

    A link is followed, and a file that was there gives its permissions. Raises ``InputError`` for a place that cannot
    hold a file or holds a database, ``error`` where the disk refuses.
    """
    try:
        target = _target(Path(path))
        there = target.exists()
        with making(target, private=there) as made:
            with made.open("wb") as file:
                yield file
            put(made, target, like=target if there else None)
    except OSError as exc:
        left = (
            "it is there, and may not be after a power cut"
            if isinstance(exc, Unsynced)
            else "what was there is as before"
        )
        raise error(f"{path}: cannot be written: {exc.strerror or exc}; {left}") from exc


@contextmanager
def making(target: Path, *, private: bool = True) -> Iterator[Path]:
    """The path of an empty file beside ``target``, to be written and then ``put`` there; gone when the block ends.

    ``private``: nobody else may read it until ``put`` gives it other permissions; else it has those of any new file.
    What processes that were killed left in this folder is removed. Raises ``OSError``.
    """
    _sweep(target.parent)
    made = target.with_name(f".rb-dspy-{secrets.token_hex(8)}.part")
    try:
        os.close(os.open(made, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600 if private else 0o666))
        yield made
    finally:
        for end in ("", *_BESIDE):
            Path(f"{made}{end}").unlink(missing_ok=True)


def put(
    made: Path, to: Path, *, like: Path | None = None, owner: bool = True, least: int = 0, over: bool = True
) -> None:
    """Give ``made`` the name ``to`` in the same folder; the file and its name are on disk when this returns.

    ``like``: the file whose permissions it gets, with those of ``least``, and with ``owner`` whose owner, where that is
    this user's to do. Without ``over`` what is at ``to`` stays, and ``FileExistsError`` is raised. A link at ``to`` is
    replaced, not followed. Raises ``OSError``: ``Unsynced`` where it is at ``to``, else all is as it was.
    """
    with made.open("rb+") as file:  # before its permissions may forbid that
        if like is not None:
            _take_after(made, like.stat(), owner, least)
        os.fsync(file.fileno())
    if over:
        made.replace(to)
    else:
        _put_first(made, to)
    try:
        sync_folder(to.parent)
    except OSError as exc:
        raise Unsynced(exc.errno, exc.strerror, str(to.parent)) from exc


def sync(path: Path) -> None:
    """Bring a file to disk; not its name, see ``sync_folder``."""
    with path.open("rb+") as file:
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Bring the names in ``folder`` to disk, where folders can be synced. Raises ``OSError`` where the disk refuses."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as exc:
        if exc.errno not in _NO_FOLDERS:
            raise


def of_database(path: Path) -> bool:
    """Whether a file is an SQLite database, or would lie beside one as a part of it. ``path``: where links lead to."""
    name = _RUN.sub(".lock", path.name)
    beside = [path.with_name(name.removesuffix(end)) for end in _BESIDE if name.endswith(end) and name != end]
    return any(map(_is_database, [*beside, path]))  # the file itself last: see below


def _take_after(made: Path, like: os.stat_result, owner: bool, least: int) -> None:
    if owner and hasattr(os, "chown"):
        with suppress(OSError):  # root's to do, or nobody's
            os.chown(made, like.st_uid, like.st_gid)
    os.chmod(made, stat.S_IMODE(like.st_mode) | least)


def _put_first(made: Path, to: Path) -> None:
    """A link is made only where nothing is."""
    try:
        os.link(made, to)
    except FileExistsError:
        raise
    except OSError as exc:  # the file system has no links, and of those that have none there is no such promise
        if os.path.lexists(to):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(to)) from exc
        made.rename(to)
    else:
        made.unlink()  # before the folder is synced: with two names no bank is opened


def _sweep(folder: Path) -> None:
    """Remove what processes that died left in the making."""
    with suppress(OSError), os.scandir(folder) as found:  # it may be written and not read
        for each in found:
            if _MADE.fullmatch(each.name):
                with suppress(OSError):  # another user's, or gone already
                    if time.time() - each.stat(follow_symlinks=False).st_mtime > _STRAY:
                        os.unlink(each)


def _is_database(path: Path) -> bool:
    if Path(f"{path}-shm").exists():
        return True  # and open: closing it here would drop the locks that SQLite holds on it for this process
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(16) == b"SQLite format 3\0"


def _target(path: Path) -> Path:
    """Where the file goes: the path itself, or what it links to."""
    if "\0" in str(path):
        raise InputError(f"{str(path)!r}: a path holds no NUL; expected the name of a file")
    if path.is_dir() or (path.exists() and not path.is_file()):
        raise InputError(f"{path}: {'a folder' if path.is_dir() else 'no file'}; expected the name of a file")
    if not path.parent.is_dir():
        raise InputError(f"{path.parent}: no such folder; make it, or give another path")
    target = Path(os.path.realpath(path))  # ``resolve`` raises what is no error of ours for links in a circle
    if target.is_symlink():
        raise InputError(f"{path}: a link that leads back to itself; expected the name of a file")
    if of_database(target):
        raise InputError(f"{path}: a database, perhaps a bank, or a file of one; expected the name of another file")
    return target
