"""A copy of a bank's file while others may be writing to it: with all that is durable when it is begun."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from functools import partial
from pathlib import Path

from sqlalchemy.pool import StaticPool

from rb_dspy.bank.sqlite import files as sqlite, look
from rb_dspy.errors import InputError
from rb_dspy.files import making, put


def copied(path: Path, to: Path) -> None:
    """Copy the bank at ``path``, with what its log holds, to the new file ``to``: whole, on disk when it returns.

    Writers are not held up, and nothing that they add meanwhile is in it. Raises ``InputError`` where there is no bank,
    or something at ``to``; ``CorruptBank`` for what is no bank, ``StorageError`` where the disk refuses.
    """
    if not path.is_file():
        raise InputError(f"{path}: no such file; expected a bank")
    if os.path.lexists(to):
        raise _is_there(to)
    with sqlite.translated(f"{path}, copied to {to}"):
        with sqlite.translated(str(path)):
            look.outdated(path, partial(sqlite.engine_of, pool=StaticPool, durable=False), create=False)
        with making(to) as made:
            with (
                contextlib.closing(sqlite3.connect(look.uri(path), uri=True)) as source,
                contextlib.closing(sqlite3.connect(made)) as target,
            ):
                source.backup(target)
                target.execute("PRAGMA journal_mode = DELETE")  # one file, whole without a log beside it
            try:
                put(made, to, like=path, over=False)  # private as the bank
            except FileExistsError:
                raise _is_there(to) from None


def _is_there(to: Path) -> InputError:
    return InputError(f"{to}: is there already; give a path where nothing is")
