"""A copy of a bank's file while others may be writing to it: with all that is durable when it is begun."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import sqlite3
from functools import partial
from pathlib import Path

from sqlalchemy.pool import StaticPool

from rb_dspy.bank.sqlite import files as sqlite, look
from rb_dspy.errors import InputError
from rb_dspy.files import sync_folder


def copied(path: Path, to: Path) -> None:
    """Copy the bank at ``path``, with what its log holds, to the new file ``to``: whole, on disk when it returns.

    Writers are not held up, and nothing that they add meanwhile is in it. Raises ``InputError`` where there is no bank,
    or something at ``to``; ``CorruptBank`` for what is no bank, ``StorageError`` where the disk refuses.
    """
    if not path.is_file():
        raise InputError(f"{path}: no such file; expected a bank")
    _refuse_what_is_there(to)
    made = to.with_name(f".rb-dspy-{secrets.token_hex(8)}.part")
    with sqlite.translated(f"{path}, copied to {to}"):
        with sqlite.translated(str(path)):
            look.outdated(path, partial(sqlite.engine_of, pool=StaticPool, durable=False), create=False)
        try:
            os.close(os.open(made, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
            shutil.copymode(path, made)  # what is private stays so
            with (
                contextlib.closing(sqlite3.connect(look.uri(path), uri=True)) as source,
                contextlib.closing(sqlite3.connect(made)) as target,
            ):
                source.backup(target)
                target.execute("PRAGMA journal_mode = DELETE")  # one file, whole without a log beside it
            with made.open("rb+") as file:
                os.fsync(file.fileno())
            _put(made, to)
        finally:
            made.unlink(missing_ok=True)
        sync_folder(to.parent)


def _put(made: Path, to: Path) -> None:
    """Give the copy its name, and what came to be there meanwhile stays: a link is made only where nothing is."""
    try:
        os.link(made, to)
    except OSError:  # it is there, or the file system has no links; of those that have none there is no such promise
        _refuse_what_is_there(to)
        os.rename(made, to)


def _refuse_what_is_there(to: Path) -> None:
    if os.path.lexists(to):
        raise InputError(f"{to}: is there already; give a path where nothing is")
