"""Opening SQLite so that what it acknowledges is kept, and saying in one line why it will not open."""

from __future__ import annotations

import contextlib
import errno
import os
import sqlite3
import time
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

import sqlalchemy as sa
from sqlalchemy.pool import QueuePool, StaticPool

from rb_dspy.bank.commands import bank_options, quoted
from rb_dspy.bank.sqlite import backup, hard_links, look
from rb_dspy.bank.sqlite.lock import FileLock
from rb_dspy.bank.sqlite.log import log_of
from rb_dspy.bank.sqlite.migrations import MIGRATIONS, migrate
from rb_dspy.bank.sqlite.original import Original
from rb_dspy.bank.sqlite.remedies import FROM_A_COPY, RESTORE, of_bank
from rb_dspy.errors import BankError, CorruptBank, StorageError
from rb_dspy.text import summary_line

WAIT_SECONDS = 60.0
"""How long a writer waits for another process's writer."""

_PAGE = 4096
"""Five 384-d vectors fill a page of this size to 97 %, and an append writes 16 pages or so to the log: of 8,192 bytes
they were 72 % more to sync, with which only vectors of more than some 500 dimensions would fill their pages better."""

_LONGEST = 512
"""Bytes of the longest path that SQLite takes."""

_REASONS = {
    sqlite3.SQLITE_BUSY: (StorageError, "another process keeps it locked; end that process or wait"),
    sqlite3.SQLITE_LOCKED: (StorageError, "another connection keeps it locked; try again"),
    sqlite3.SQLITE_FULL: (StorageError, "the disk is full; what was stored before is safe"),
    sqlite3.SQLITE_READONLY: (StorageError, "it cannot be written; check the permissions of the file and its folder"),
    sqlite3.SQLITE_CANTOPEN: (StorageError, "it cannot be opened; check the path and the permissions"),
    sqlite3.SQLITE_PERM: (StorageError, "the permissions do not allow it"),
    sqlite3.SQLITE_IOERR: (
        StorageError,
        "reading or writing it failed; check the disk; what was stored before is safe",
    ),
    sqlite3.SQLITE_NOTADB: (CorruptBank, "not a bank, nor any SQLite database; give another path"),
    sqlite3.SQLITE_CORRUPT: (
        CorruptBank,
        f"the file is damaged or cut short; restore it from a copy ({RESTORE})",
    ),
    sqlite3.SQLITE_ERROR: (
        CorruptBank,
        f"its tables are not those of a bank; restore it from a copy ({RESTORE})",
    ),
}


_HINTS = {
    **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), "check the permissions"),
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "make room; what was stored before is safe"),
    errno.EIO: "check the disk; what was stored before is safe",
    errno.ENAMETOOLONG: "give a shorter one",
}

DAMAGE = (TypeError, ValueError, AttributeError, LookupError, OverflowError, zlib.error)
"""What a cell raises that holds a value of another type than was stored, where nothing else is made of it.

pydantic's errors are ValueErrors.
"""


def leniently(data: bytes) -> str:
    """A text of a file, with wrong letters where it is no UTF-8; its digest gives it away."""
    return data.decode("utf-8", "replace")


def short(exc: Exception) -> str:
    """What an error is and says, on one line."""
    return f"{type(exc).__name__}: {summary_line(exc, 200)}"


class translated:
    """Turn what SQLite or the file system raises into one line of ``StorageError`` or ``CorruptBank``.

    No generator, since every read and every write passes here and most raise nothing.
    """

    def __init__(self, location: str) -> None:
        self._location = location

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, Exception) and (said := _said(self._location, error)) is not None:
            raise said from error


class readable(translated):
    """``translated``, and ``CorruptBank`` for what damaged rows raise: only rows may raise ``DAMAGE`` in here."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # UnicodeEncodeError is of what a caller asked for: no row gives such a text.
        if isinstance(error, DAMAGE) and not isinstance(error, UnicodeEncodeError):
            raise CorruptBank(
                f"{self._location}: a damaged row is in the way ({short(error)});"
                f" rb-dspy bank doctor{bank_options(self._location)} says more"
            ) from error
        super().__exit__(kind, error, trace)


def _said(location: str, exc: Exception) -> BankError | None:
    """What an error of SQLite's or the file system's is to a user; None for any other."""
    if isinstance(exc, OSError):
        return StorageError(f"{location}: {_in_the_way(location, exc)}")
    if isinstance(exc, UnicodeDecodeError):  # of SQLite's own words about damaged tables
        return CorruptBank(f"{location}: a text is damaged ({short(exc)}); {of_bank(FROM_A_COPY, location)}")
    cause = (exc.orig or exc) if isinstance(exc, sa.exc.DBAPIError) else exc
    if not isinstance(exc, sa.exc.DBAPIError | sqlite3.Error):
        return None
    code = getattr(cause, "sqlite_errorcode", None)
    if code is None and "Could not decode" in str(cause):
        return CorruptBank(f"{location}: a text is damaged ({cause}); {of_bank(FROM_A_COPY, location)}")
    if code is None:
        return None  # a misuse of sqlite3: ours to fix, not the user's
    kind, reason = _REASONS.get(code & 0xFF, (StorageError, "SQLite refused"))
    return kind(f"{location}: {of_bank(reason, location)} ({summary_line(cause)})")


def _in_the_way(location: str, exc: OSError) -> str:
    """What the system refused, by the name of the file where it is another one: a lock, say, that somebody left."""
    named = exc.filename if isinstance(exc.filename, str) else location
    other = f"{named} " if os.path.basename(named) != os.path.basename(location) else ""
    hint = _HINTS.get(exc.errno or 0, "check the path")
    return f"{other}cannot be used: {exc.strerror or exc}; {hint}"


def on_file(path: Path, lock: FileLock, original: Original, *, create: bool) -> sa.Engine:
    """The bank in ``path``, brought up to date; made when ``create``, folders included.

    A file of an older schema is copied beside itself first (``backup.made``), then changed in one transaction. Where
    this user may not write the file, or nothing may be created and nothing can be written, it is only read, and nothing
    is left beside it.
    ``original`` is told of the file, and asked after each connection that is made: no connection is to another one.

    Raises ``StorageError`` where there is none, it cannot be read or written, or it has several hard links,
    ``CorruptBank`` where the file is something else, ``SchemaTooNew`` where this version is too old for it. A file that
    is refused is left as it was, to the byte.
    """
    location = str(path)
    with translated(location):
        _check_length(path)
        fresh = not path.exists() or (path.is_file() and path.stat().st_size == 0)
        if path.exists() and not path.is_file():
            raise StorageError(f"{location}: not a file; expected a bank, or a path where one can be made")
        if fresh and not create:
            raise StorageError(
                f"{location}: no bank there; give the path of one, or make it: rb-dspy run and rb-dspy bank import"
                f" do, with --bank {quoted(location)}, and MemoryBank.open in Python"
            )
        if fresh:
            path.parent.mkdir(parents=True, exist_ok=True)
        reads = not fresh and not os.access(path, os.W_OK)
        create = create and not reads
        if create or _writable(path):
            hard_links.refuse(path, location)
        outdated = fresh or look.outdated(path, partial(engine_of, pool=StaticPool, durable=False), create=create)
        how = f"mode={'rwc' if create else 'rw'}"
        if reads:
            how = look.for_readers(path)
        elif not create and not _writable(path):
            how = "mode=ro&immutable=1"
        if outdated and "mode=ro" in how:
            raise StorageError(
                f"{location}: of an older schema, and it cannot be brought up to date where nothing can be written;"
                " copy it to another folder and open that"
            )
        engine = engine_of(f"{path.absolute().as_uri()}?{how}", QueuePool, opened=original.check)
        try:
            if outdated:
                with lock:
                    prepare(engine, path)
            original.remember(still="immutable" in how, written="mode=ro" not in how)
        except BaseException:
            engine.dispose()
            raise
        return engine


def _check_length(path: Path) -> None:
    """Raises ``OSError`` where there is no room for the names of the files that are kept beside it."""
    longest = f"{os.path.realpath(path)}-journal"
    if len(os.fsencode(longest)) > _LONGEST:
        raise OSError(errno.ENAMETOOLONG, f"{os.strerror(errno.ENAMETOOLONG)} for SQLite", os.fspath(path))
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        os.lstat(longest)


def emptied_log(connection: sqlite3.Connection) -> None:
    """Copy the log into the file that ``connection`` was opened on, and empty it, where nobody else reads that.

    For a file that is no longer at its path: what was acknowledged is in it then, wherever it was moved to, and whoever
    opens the file that took its place does not find a log beside it that is another one's.
    """
    with contextlib.suppress(sqlite3.Error):  # then it stays where it is, beside a file that is another one
        connection.execute("PRAGMA busy_timeout = 0")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def size_on_disk(path: Path) -> int:
    """Bytes of the file and of its write-ahead log."""
    # By name: opening and closing the file here would drop the locks that SQLite holds on it for this process.
    return sum(file.stat().st_size for file in (path, log_of(path)) if file.exists())


def _writable(path: Path) -> bool:
    """Whether SQLite can write the file and make its side files, or a log that counts is there already."""
    log = log_of(path)
    if log.exists() and log.stat().st_size:
        return True
    return os.access(path, os.W_OK) and os.access(log.parent, os.W_OK)


def prepare(engine: sa.Engine, path: Path, *, keep: bool = True) -> None:
    """Write-ahead logging, and the tables; what is of an older schema is copied before, where it is to be kept."""
    deadline = time.monotonic() + WAIT_SECONDS
    with contextlib.closing(raw(engine)) as connection:
        while True:  # SQLite does not wait when two processes change the journal of a new file at once
            try:
                connection.execute(f"PRAGMA page_size = {_PAGE}")
                connection.execute("PRAGMA journal_mode = WAL")
                break
            except sqlite3.OperationalError as exc:
                if exc.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                    raise
                time.sleep(0.01)
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if keep and version and version < len(MIGRATIONS):
            backup.made(connection, path, version)
    with engine.connect().execution_options(immediate=True) as migrating:
        # Rows whose parents are damaged or gone are moved as they are: ``check`` tells of them, and the others can be
        # read. Nothing happens to this setting inside a transaction.
        driver(migrating).execute("PRAGMA foreign_keys = OFF")
        try:
            with migrating.begin():
                migrate(migrating, str(path))
        finally:
            driver(migrating).execute("PRAGMA foreign_keys = ON")
    if version:  # the log holds the whole file once more
        with contextlib.closing(raw(engine)) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def raw(engine: sa.Engine) -> sqlite3.Connection:
    """A connection of its own, out of the engine's pool: what is hot cannot pay for SQLAlchemy's bookkeeping."""
    pooled = engine.raw_connection()
    connection = pooled.driver_connection
    pooled.detach()
    if not isinstance(connection, sqlite3.Connection):
        raise TypeError(f"{connection!r}: expected a connection of sqlite3")
    return connection


def driver(connection: sa.Connection) -> sqlite3.Connection:
    """The connection below one of SQLAlchemy's."""
    found = connection.connection.driver_connection
    if not isinstance(found, sqlite3.Connection):
        raise TypeError(f"{found!r}: expected a connection of sqlite3")
    return found


def engine_of(
    database: str, pool: type[sa.Pool], *, durable: bool = True, opened: Callable[[], None] | None = None
) -> sa.Engine:
    """An engine whose transactions begin when SQLAlchemy says so; ``immediate`` ones take the write lock at once.

    ``opened`` is called before each connection is made, which may make a file, and after, before it reads; where it
    raises there is none.
    """

    def connect() -> sqlite3.Connection:
        if opened is not None:
            opened()
        connection = sqlite3.connect(
            database, uri=True, timeout=WAIT_SECONDS, isolation_level=None, check_same_thread=False
        )
        if opened is not None:
            try:
                opened()
            except BaseException:
                connection.close()
                raise
        if durable:
            # FULL: a commit that was acknowledged survives a power cut. NORMAL by itself lost 7 % of them when
            # measured; the connection that writes has that, and ``log`` makes up for it.
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute("PRAGMA foreign_keys = ON")
            connection.execute("PRAGMA wal_autocheckpoint = 0")  # ``Writer`` does it, under the file lock
        return connection

    options: dict[str, Any] = {"pool_size": 8, "max_overflow": -1} if pool is QueuePool else {}
    engine = sa.create_engine("sqlite://", creator=connect, poolclass=pool, **options)

    def begin(connection: sa.Connection) -> None:
        # A deferred transaction that writes after it has read fails when another process wrote in between.
        immediate = connection.get_execution_options().get("immediate")
        connection.exec_driver_sql("BEGIN IMMEDIATE" if immediate else "BEGIN")

    sa.event.listen(engine, "begin", begin)
    return engine
