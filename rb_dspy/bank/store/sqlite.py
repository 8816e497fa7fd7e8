"""SQLite: a bank in a file, or in memory."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from filelock import FileLock

from rb_dspy.bank.store import embedders, tables
from rb_dspy.bank.store.migration import migrate
from rb_dspy.errors import CorruptBank, InputError, SchemaTooNew, StorageError
from rb_dspy.files import make_folder

APPLICATION = 0x72624232
"""SQLite application id of rb_dspy's files ("rbB2")."""

_POLL = 0.002
"""Seconds between two checks of the lock file."""

_PAGE = 512
"""Bytes of the smallest page. A shorter file is not a database, although SQLite treats it as an empty one."""

_IDLE = 8
"""Maximum number of idle connections that are kept open."""

_TYPES = {"serial": "INTEGER", "bytes": "BLOB", "vector": "BLOB", "real": "REAL"}
_TIMEOUT = 60.0
"""Seconds that a writer waits for the lock."""


class SqliteDatabase:
    """A database file, or one in memory if ``path`` is None.

    Readers share a pool of connections and see the last commit. Writers take turns by a lock file next to the bank and
    commit with ``synchronous=FULL``: committed data survives a power cut.
    """

    def __init__(self, path: Path | None = None, *, create: bool = True, read_only: bool = False) -> None:
        """Open the file, as ``MemoryBank.open`` says; ``read_only``: do not change it at all."""
        self.location = ":memory:" if path is None else str(path)
        self.path = path
        self._closed = False
        self._process = os.getpid()
        self._thread = threading.RLock()
        self._current = threading.local()
        self._writable = path is None or (_prepare(path, create=create) and not read_only)
        self._file = None if path is None else FileLock(f"{path}.lock", timeout=_TIMEOUT, poll_interval=_POLL)
        self._idle: list[sqlite3.Connection] = []
        try:
            if self._writable:
                self._make_tables()
        except BaseException:
            self.close()
            raise

    @contextmanager
    def reading(self, *, once: bool = False) -> Iterator[sqlite3.Connection]:
        """Open a read-only transaction, whose reads all see one state. Blocks of one thread nest.

        ``once``: for a single statement, which needs no transaction.
        """
        self._check_open()
        current = getattr(self._current, "connection", None)
        if current is not None:
            yield current
            return
        with self._thread if self.path is None else contextlib.nullcontext():  # in memory is only one connection
            self._check_open()
            if once:
                with self._translated(), self._connection() as connection:
                    yield connection
                return
            with self._transaction("BEGIN") as connection:
                yield connection

    @contextmanager
    def writing(self, scope_id: int | None = None) -> Iterator[sqlite3.Connection]:
        """Open a transaction that is committed at the end. Writers take turns."""
        self._check_open()
        if not self._writable:
            raise StorageError(
                f"{self.location}: read-only for this user; it needs write access to the file and its folder"
            )
        with self._turn(), self._transaction("BEGIN IMMEDIATE") as connection:
            yield connection

    def close(self) -> None:
        with self._thread if self.path is None else contextlib.nullcontext():  # wait for reads of the only connection
            self._closed = True
            if self._process == os.getpid():
                with contextlib.suppress(IndexError):
                    while True:
                        self._idle.pop().close()

    def backup(self, to: Path) -> None:
        """Copy the database to the new file ``to``. Others may write to the database meanwhile."""
        _make_file(to)
        try:
            with (
                self._translated(),
                contextlib.closing(_connect(to, writable=True)) as copy,
                self.reading() as connection,
            ):
                connection.backup(copy)
        except BaseException:
            for end in ("", "-wal", "-shm"):
                Path(f"{to}{end}").unlink(missing_ok=True)
            raise

    def vacuum(self) -> None:
        """Rewrite the file and its log without deleted data.

        Raises ``StorageError`` if others have been reading the bank for a minute, so that the log still has old pages.
        """
        with self._turn(), self._translated(), self._connection() as connection:
            connection.execute("VACUUM")
            busy = self.path is not None and connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]
        if busy:
            raise StorageError(f"{self.location}: its log was not emptied, because others were reading it; purge again")

    def check(self) -> list[str]:
        """Return the problems that SQLite finds in the file."""
        with self.reading() as connection:
            found = [row[0] for row in connection.execute("PRAGMA quick_check(20)")]
        return [] if found == ["ok"] else found

    def bytes_on_disk(self) -> int:
        if self.path is None:
            return 0
        files = [self.path, Path(f"{self.path}-wal")]
        return sum(file.stat().st_size for file in files if file.exists())

    def _check_open(self) -> None:
        if self._closed:
            raise StorageError(f"{self.location}: this bank is closed; open it again")
        if self._process != os.getpid():
            raise StorageError(f"{self.location}: opened before a fork; open it again in this process")

    def _make_tables(self) -> None:
        """Create the tables if they are missing, and bring older ones to this schema."""
        if self.path is None:
            with self._turn(), self._connection() as connection, _copying:
                _empty_bank().backup(connection)  # four times as fast as to make the tables
            return
        exists = "SELECT 1 FROM sqlite_master WHERE name = 'meta'"
        with self.reading() as connection:
            is_there = connection.execute(exists).fetchone()
            schema = embedders.meta(connection)["schema"] if is_there else ""
        if schema == "1":
            self._migrate()
        if is_there:
            return
        with self.writing() as connection:
            if connection.execute(exists).fetchone():  # another process was first
                return
            _define(connection)

    def _migrate(self) -> None:
        """Bring an older bank to this schema; a copy of its file stays beside it."""
        assert self.path is not None
        with self._turn():
            with self.reading() as connection:
                if embedders.meta(connection)["schema"] != "1":  # another process was first
                    return
            part = self.path.with_name(f"{self.path.name}.copying")
            part.unlink(missing_ok=True)  # left by a killed process
            self.backup(part)
            names = itertools.chain([""], map("-{}".format, itertools.count(2)))
            copies = (self.path.with_name(f"{self.path.name}.schema-1{end}") for end in names)
            part.rename(next(each for each in copies if not each.exists()))
            with self.writing() as connection:
                migrate(connection, **_TYPES)

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """Wait until no other thread and no other process writes."""
        with self._thread, contextlib.nullcontext() if self._file is None else _locked(self._file, self.location):
            yield

    @contextmanager
    def _transaction(self, begin: str) -> Iterator[sqlite3.Connection]:
        """Make a transaction the current one of this thread, so that it reads its own writes."""
        with self._translated(), self._connection() as connection, connection:
            connection.execute(begin)
            self._current.connection = connection
            try:
                yield connection
            finally:
                self._current.connection = None

    @contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        """Take an idle connection, or open one."""
        try:
            connection = self._idle.pop()
        except IndexError:
            connection = _connect(self.path, writable=self._writable)
        try:
            yield connection
        finally:
            # without write access, each connection checks again whether there is a log
            if self._writable and not self._closed and len(self._idle) < _IDLE:
                self._idle.append(connection)
            else:
                connection.close()

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.DatabaseError as exc:
            if type(exc) is sqlite3.DatabaseError:
                raise CorruptBank(f"{self.location}: {exc}; restore a backup (rb-dspy bank restore)") from exc
            full = getattr(exc, "sqlite_errorname", "").startswith(("SQLITE_FULL", "SQLITE_IOERR"))
            hint = "; free space on the disk and repeat" if full else ""
            raise StorageError(f"{self.location}: {exc}{hint}") from exc


def restore(path: Path, copy: Path) -> Path | None:
    """Replace the bank at ``path`` with ``copy``; returns the new path of the old bank, None if there was none."""
    if path.exists() and copy.exists() and os.path.samefile(path, copy):
        raise InputError(f"{copy}: is the bank itself; name a copy of it")
    source = SqliteDatabase(copy, create=False, read_only=True)  # raises if it is not a bank
    aside = None
    with (
        contextlib.closing(source),
        _locked(FileLock(f"{path}.lock", timeout=_TIMEOUT, poll_interval=_POLL), str(path)),
    ):
        _require_unused(path)
        try:
            new = path.with_name(f"{path.name}.restoring")
            new.unlink(missing_ok=True)  # left by a killed process
            source.backup(new)
            if path.exists():
                free = (path.with_name(f"{path.name}.before-{number}") for number in itertools.count(1))
                aside = next(each for each in free if not each.exists())
                os.link(path, aside)  # so that a bank exists at all times
                for end in ("-wal", "-shm"):
                    with contextlib.suppress(FileNotFoundError):
                        os.replace(f"{path}{end}", f"{aside}{end}")
            os.replace(new, path)
        except OSError as exc:
            raise StorageError(f"{path}: cannot be restored: {exc.strerror}") from exc
    return aside


def _require_unused(path: Path) -> None:
    """Raise ``StorageError`` if the bank is open anywhere; otherwise empty its log."""
    if not path.exists():
        return
    with contextlib.closing(sqlite3.connect(path, timeout=1, isolation_level=None)) as connection:
        try:
            connection.execute("PRAGMA journal_mode = DELETE")  # only the last connection can leave WAL
        except sqlite3.OperationalError as exc:
            raise StorageError(f"{path}: is in use ({exc}); close it everywhere first") from None
        except sqlite3.DatabaseError:
            pass  # damaged, so it may be replaced


def _define(connection: sqlite3.Connection) -> None:
    """Create the tables."""
    for definition in tables.definitions(**_TYPES):
        connection.execute(definition)
    embedders.set_meta(connection, schema=tables.SCHEMA, epoch=0)
    connection.execute(f"PRAGMA application_id = {APPLICATION}")


@cache
def _empty_bank() -> sqlite3.Connection:
    """An empty bank in memory, of which each other one in memory is a copy."""
    connection = _connect(None, writable=True)
    _define(connection)
    return connection


_copying = threading.Lock()


@contextmanager
def _locked(file: FileLock, location: str) -> Iterator[None]:
    """Hold the lock file. Raises ``StorageError`` if another process holds it too long, or it cannot be created."""
    try:
        file.acquire()
    except TimeoutError as exc:
        waited = f"another process has been writing for {_TIMEOUT:g} seconds"
        raise StorageError(f"{location}: {waited}; try again") from exc
    except OSError as exc:
        raise StorageError(f"{location}: its lock file cannot be used: {exc.strerror}") from exc
    try:
        yield
    finally:
        file.release()


def _make_file(path: Path) -> None:
    """Create a new, empty file for its owner only."""
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    except FileExistsError:
        raise InputError(f"{path}: already exists; name a new file") from None
    except OSError as exc:
        raise StorageError(f"{path}: cannot be created: {exc.strerror}") from exc


def _prepare(path: Path, *, create: bool) -> bool:
    """Check the file before anything is written; create it if it is missing. Returns whether it is writable."""
    try:
        if path.exists() and not path.is_file():
            raise StorageError(f"{path}: not a file; expected a bank")
        if path.exists() and path.stat().st_size:
            _look(path, create=create)
        elif not create:
            raise StorageError(f"{path}: no bank there; check the path")
        else:
            make_folder(path.parent)
            os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600))
    except OSError as exc:
        problem = "name too long; give a shorter one" if exc.errno == errno.ENAMETOOLONG else exc.strerror
        raise StorageError(f"{path}: cannot be used: {problem}") from exc
    return _is_writable(path)


def _is_writable(path: Path) -> bool:
    return os.access(path, os.W_OK) and os.access(path.resolve().parent, os.W_OK)


def _look(path: Path, *, create: bool) -> None:
    """Raise an error if this version cannot use the file as a bank; nothing is written to it."""
    try:
        with contextlib.closing(_connect(path, writable=False)) as connection:
            (application,) = connection.execute("PRAGMA application_id").fetchone()
            known = {row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
            first = application != APPLICATION and {"scopes", "experiences", "items"} <= known
            ours = application == APPLICATION and known >= {"meta", "scopes", "experiences", "items", "journal"}
            schema = connection.execute("SELECT value FROM meta WHERE key = 'schema'").fetchone() if ours else None
    except sqlite3.OperationalError as exc:
        raise StorageError(f"{path}: cannot be read: {exc}") from None
    except sqlite3.Error as exc:
        raise CorruptBank(f"{path}: not a bank, or damaged ({exc}); check the path, or restore a backup") from None
    if first:
        raise CorruptBank(
            f"{path}: a bank of the first edition; export it with that version (rb-dspy bank export) and import the"
            " file here (rb-dspy bank import)"
        )
    if not known and create and path.stat().st_size >= _PAGE:
        return  # another process is about to create its tables, or was killed before it did
    if not ours or schema is None:
        raise CorruptBank(f"{path}: a database, but not a bank; name another file")
    if int(schema[0]) < tables.SCHEMA and not _is_writable(path):
        raise StorageError(
            f"{path}: bank schema {schema[0]}, and this user may not bring the file to {tables.SCHEMA}; open"
            " it once with write access to the file and its folder"
        )
    if int(schema[0]) > tables.SCHEMA:
        raise SchemaTooNew(f"{path}: bank schema {schema[0]}; this one knows {tables.SCHEMA}: upgrade rb_dspy")


def _connect(path: Path | None, *, writable: bool) -> sqlite3.Connection:
    """Open a connection that begins no transactions by itself."""
    if path is None:
        name, uri = ":memory:", False
    elif writable:
        name, uri = str(path), False
    else:  # without a log, nothing can change under a reader that may not lock
        name, uri = f"{path.absolute().as_uri()}?mode=ro{'' if Path(f'{path}-wal').exists() else '&immutable=1'}", True
    connection = sqlite3.connect(name, timeout=_TIMEOUT, isolation_level=None, check_same_thread=False, uri=uri)
    if writable and path is not None:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA cache_size = -16000")
    connection.execute("PRAGMA secure_delete = ON")
    return connection
