"""A look at a file before it is opened: is it a bank, and up to date? Leaves no trace, neither in it nor beside it.

Through a read-only connection, since an ordinary one may write when it closes.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from pathlib import Path

import sqlalchemy as sa

from rb_dspy.bank.sqlite.log import log_of
from rb_dspy.bank.sqlite.migrations import pending
from rb_dspy.errors import CorruptBank

_log = logging.getLogger("rb_dspy.bank")

_SMALLEST = 512
"""Bytes of SQLite's smallest page. SQLite takes a shorter file for an empty database and would write over it."""

_NO_LOG = "where it is a copy, it lacks the log of a bank that was open: copy that by rb-dspy bank backup"

_AGAIN_SECONDS = 0.02
_STILL_SECONDS = 0.3
"""How long a file that cannot be read has to lie still until it counts as damaged."""


def outdated(path: Path, engine: Callable[[str], sa.Engine], *, create: bool) -> bool:
    """Whether the file lacks tables or migrations; ``engine`` makes one for a URI, and it is disposed of.

    Raises ``CorruptBank`` for what is no bank, ``SchemaTooNew``, and what SQLAlchemy raises for what cannot be read.
    """
    before, since = _signs(path), time.monotonic()
    while True:
        try:
            return _looked(path, engine, create=create)
        except (sa.exc.DBAPIError, CorruptBank):
            # It may be half of what another process writes there at this moment: the first to open a new bank, or the
            # last to close it. What is damaged stays as it is.
            time.sleep(_AGAIN_SECONDS)
            now = _signs(path)
            if now != before:
                before, since = now, time.monotonic()
            elif time.monotonic() - since > _STILL_SECONDS:
                raise


def uri(path: Path) -> str:
    """What SQLite reads the file by, and never writes it."""
    # `immutable` reads the file alone, without the locks and side files of write-ahead logging. Where there is a log, a
    # process has the bank open or died with it, and the log counts.
    how = "mode=ro" if log_of(path).exists() else "mode=ro&immutable=1"
    if not os.access(path, os.W_OK):
        how = for_readers(path)
    return f"{path.absolute().as_uri()}?{how}"


def for_readers(path: Path) -> str:
    """How SQLite opens the file for a user who may not write it, and leaves nothing beside it.

    By default it would make the files that those who have it open agree on, as this user's own, and keep out its owner.
    """
    log = log_of(path)
    live = (log.exists() and log.stat().st_size) or os.path.exists(f"{os.path.realpath(path)}-shm")
    return "mode=ro&readonly_shm=1" if live else "mode=ro&immutable=1"


def _signs(path: Path) -> tuple[object, ...]:
    """What changes when somebody writes the file."""
    try:
        found = path.stat()
    except OSError:
        return ()
    return log_of(path).exists(), found.st_ino, found.st_size, found.st_mtime_ns


def _looked(path: Path, engine: Callable[[str], sa.Engine], *, create: bool) -> bool:
    looking = engine(uri(path))
    try:
        with looking.connect() as connection:
            lacks = pending(connection, str(path))
            blank = not connection.exec_driver_sql("SELECT count(*) FROM sqlite_master").scalar_one()
    finally:
        looking.dispose()
    if blank and path.stat().st_size < _SMALLEST:
        raise CorruptBank(f"{path}: not a bank, nor anything that SQLite wrote; give another path")
    if blank and not create:
        raise CorruptBank(f"{path}: an SQLite file that holds nothing, and so no bank; {_NO_LOG}")
    if blank and not log_of(path).exists():  # else somebody is making the bank
        _log.warning("%s: an SQLite file that holds nothing, so that a new bank is made of it; %s", path, _NO_LOG)
    return lacks
