"""Files that are there whole or not at all, and never in the place of a bank."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from rb_dspy.errors import InputError, RBError

_BESIDE = ("-wal", "-shm", "-journal", ".lock", ".lost")
"""What the names of files end in that SQLite, or a bank, keeps beside a database."""


@contextmanager
def replaced(path: str | Path, *, error: type[RBError] = RBError) -> Iterator[BinaryIO]:
    """A file to write to, which is at ``path`` when the block ends, synced; where it raises, all is as it was.

    A link is followed, and a file that was there gives its permissions. Raises ``InputError`` for a place that cannot
    hold a file or holds a database, ``error`` where the disk refuses.
    """
    try:
        target = _target(Path(path))
        aside = target.with_name(f".rb-dspy-{secrets.token_hex(8)}.part")
        try:
            with aside.open("xb") as file:
                if target.exists():
                    shutil.copymode(target, aside)  # what was private stays so
                yield file
                file.flush()
                os.fsync(file.fileno())
            aside.replace(target)
        finally:
            aside.unlink(missing_ok=True)
        sync_folder(target.parent)
    except OSError as exc:
        raise error(f"{path}: cannot be written: {exc.strerror or exc}; what was there is as before") from exc


def of_database(path: Path) -> bool:
    """Whether a file is an SQLite database, or would lie beside one as a part of it. ``path``: where links lead to."""
    name = path.name
    beside = [path.with_name(name.removesuffix(end)) for end in _BESIDE if name.endswith(end) and name != end]
    return any(map(_is_database, [*beside, path]))  # the file itself last: see below


def sync_folder(folder: Path) -> None:
    """Make what was renamed in ``folder`` durable, where folders can be synced."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


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
