"""A copy takes the place of a bank's file, and what was there is moved aside, never written over.

Copied over by hand, the file would keep the log of the bank that was there, where one lies beside it: SQLite would take
it for the copy's own and write its pages into it. So the log goes with the file that it belongs to.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from functools import partial
from pathlib import Path

from sqlalchemy.pool import QueuePool, StaticPool

from rb_dspy.bank.commands import bank_options
from rb_dspy.bank.index.sidecar import beside
from rb_dspy.bank.sqlite import check, failpoints, files as sqlite, look
from rb_dspy.bank.sqlite.lock import FileLock, in_use
from rb_dspy.bank.sqlite.store import open_here
from rb_dspy.errors import CorruptBank, InputError, StorageError
from rb_dspy.files import making, put, sync, sync_folder

_SIDES = ("-wal", "-shm", "-journal", ".lost")
"""What the names of files end in that belong to one file's state, beside it."""

_SECONDS = 5.0
"""How long to wait for the file lock."""


def restored(copy: Path, path: Path) -> Path | None:
    """Put ``copy``, with what its own log holds, in the place of the bank's file at ``path``, on disk when it returns.

    What was at ``path`` is moved aside whole, with its log and its indexes; its path now, None where there was nothing.
    ``copy`` is only read, brought up to date where its schema is older, and checked as ``doctor`` does. After a crash
    on the way ``path`` is what it was, or what it was to become, or is refused as having two hard links: do it again.

    Raises ``InputError`` where there is no copy, ``CorruptBank`` where it is damaged or no bank, ``SchemaTooNew``,
    ``StorageError`` where the bank is open, here or in another process, or the disk refuses; then all is as it was.
    """
    real = Path(os.path.realpath(path))
    with sqlite.translated(str(path)):
        if not copy.is_file():
            raise InputError(f"{copy}: no such file; expected a copy of a bank")
        if real.exists() and not real.is_file():
            raise StorageError(f"{path}: not a file; expected a bank, or a path where one can be put")
        if real.exists() and real.samefile(copy):
            raise InputError(f"{copy}: is the bank itself; expected a copy of it")
        real.parent.mkdir(parents=True, exist_ok=True)
        with making(real) as made:
            _make(made, copy, folder=real.parent)
            return _put(made, real, copy, str(path))


def _make(made: Path, copy: Path, *, folder: Path) -> None:
    """The copy as a bank of this version in one file, sound and on disk."""
    with sqlite.translated(f"{copy}, the copy"):
        look.outdated(copy, partial(sqlite.engine_of, pool=StaticPool, durable=False), create=False)
    with (
        sqlite.translated(f"{copy}, copied to {folder}"),
        contextlib.closing(sqlite3.connect(look.uri(copy), uri=True)) as source,
        contextlib.closing(sqlite3.connect(made)) as target,
    ):
        source.backup(target)
    with sqlite.readable(str(copy)):
        engine = sqlite.engine_of(f"{made.absolute().as_uri()}?mode=rw", QueuePool)
        try:
            sqlite.prepare(engine, made, keep=False)
        finally:
            engine.dispose()
        with contextlib.closing(sqlite3.connect(made)) as connection:
            connection.text_factory = sqlite.leniently
            found = [each for each in check.findings(connection, str(copy)) if each.severity == "error"]
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    if found:
        more = f" and {len(found) - 1:,} more" if len(found) > 1 else ""
        raise CorruptBank(
            f"{copy}: the copy is damaged ({found[0].where}: {found[0].what}{more}); give another one, or see what"
            f" rb-dspy bank doctor{bank_options(copy)} says of it; the bank is as it was"
        )
    sync(made)  # here already, since it may take long, and ``put`` holds the lock


def _put(made: Path, real: Path, copy: Path, location: str) -> Path | None:
    """Move what is there aside and ``made`` into its place, while nobody writes."""
    held = Path(f"{real}.lock")
    lock = FileLock(held, real)
    if not lock.take(_SECONDS):
        if held.exists() and not os.access(held, os.R_OK | os.W_OK):
            raise StorageError(f"{location}: {held} cannot be used; check its permissions")
        raise StorageError(f"{location}: another process keeps it locked; end that process or wait")
    try:
        if open_here(real):
            raise StorageError(f"{location}: it is open in this process; close it first")
        if real.exists() and in_use(real):
            raise StorageError(f"{location}: another process has it open; end that process or wait")
        return _exchanged(made, real, copy)
    finally:
        lock.remove()


def _exchanged(made: Path, real: Path, copy: Path) -> Path | None:
    aside = _aside(real)
    names = [(Path(f"{real}{end}"), Path(f"{aside}{end}")) for end in _SIDES]
    moves = [(old, new) for old, new in [*names, (beside(real), beside(aside))] if os.path.lexists(old)]
    there = real.exists()
    undo = contextlib.ExitStack()
    try:
        # While it has two names nobody opens it (see ``hard_links``): neither without the log that it had, nor would
        # anybody make a new one in its place.
        linked = there and _linked(real, aside, undo)
        failpoints.reached("restore-linked")
        for old, new in moves if linked or not there else [*moves, (real, aside)]:
            os.rename(old, new)
            undo.callback(os.rename, new, old)
        sync_folder(real.parent)
        failpoints.reached("restore-moved")
        # A copy may be there to be read only; a bank is written.
        put(made, real, like=aside if there else copy, least=0o600)
    except BaseException:
        if made.exists():  # else it is there already, and nothing of the old bank may come back beside it
            undo.close()
        raise
    return aside if there or moves else None


def _linked(real: Path, aside: Path, undo: contextlib.ExitStack) -> bool:
    """Give the file a second name; False on a file system that has no links."""
    if aside.exists():
        return True
    try:
        os.link(real, aside)
    except OSError:
        return False
    undo.callback(os.unlink, aside)
    sync_folder(real.parent)
    return True


def _aside(real: Path) -> Path:
    """A name that nothing has, or the one that a restore gave the same file when it was killed."""
    number = 1
    while True:
        aside = real.with_name(f"{real.name}.before-restore{f'-{number}' if number > 1 else ''}")
        free = not os.path.lexists(aside) or (real.exists() and aside.samefile(real))
        beside_it = [(Path(f"{real}{end}"), Path(f"{aside}{end}")) for end in _SIDES]
        beside_it.append((beside(real), beside(aside)))
        if aside.exists():
            taken = any(os.path.lexists(old) and os.path.lexists(new) for old, new in beside_it)
        else:
            taken = any(os.path.lexists(new) for _, new in beside_it)
        if free and not taken:
            return aside
        number += 1
