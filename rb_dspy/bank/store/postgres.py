"""PostgreSQL with pgvector: a bank in the schema ``rb_dspy`` of a database, for programs on many machines."""

from __future__ import annotations

import os
import re
import select
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from typing import Any

import sqlalchemy
from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url, text

from rb_dspy.bank.store import embedders, tables
from rb_dspy.bank.store.base import UNITS, Unit
from rb_dspy.bank.store.migration import migrate
from rb_dspy.errors import InputError, MissingDependency, SchemaTooNew, StorageError
from rb_dspy.text import UNSPACED, summary_line

SCHEMA_NAME = "rb_dspy"
"""The PostgreSQL schema that holds the tables, so that their names do not collide with other tables."""

MAX_EXACT = 10_000
"""Up to this number in a scope, vectors are compared one by one, which is exact; above, by an index. Below, it is not
made: it takes longer to keep than all else of an append.
"""

MAX_INDEXED = 4_000
"""Dimensions that pgvector can index in half precision; longer vectors are compared one by one."""

_LOCKS = 0x72624232
"""First key of our advisory locks ("rbB2"); the second is a scope's id, or 0 for the whole bank."""

_TIMEOUT = 60
"""Seconds that a statement waits for a lock."""

_TYPES = {"serial": "SERIAL", "bytes": "BYTEA", "vector": "halfvec", "real": "DOUBLE PRECISION"}
_CONNECT_TIMEOUT = 10
"""Seconds that a new connection may take, unless the URL sets ``connect_timeout``."""

_EF_SEARCH = 200
"""Candidates of an index search; pgvector's default of 40 misses more of the nearest rows."""

_OLDEST_PGVECTOR = (0, 8)
"""The oldest pgvector that continues an index search until enough rows pass a filter."""

_MOST_CHARACTERS = 100_000
"""Maximum characters of a text searched by words; PostgreSQL limits the words of a row to 1 MB."""


class PostgresDatabase:
    """The bank in a PostgreSQL database.

    All reads of one block see one state. Writers of one scope take turns by an advisory lock; writers of different
    scopes do not wait for each other once the bank has an embedder. A write to the whole bank excludes all others.
    """

    def __init__(self, url: str, *, create: bool = True) -> None:
        """Connect, as ``MemoryBank.open`` says; create the tables if they are missing and ``create`` is True."""
        target = _parsed(url)
        self.location = _location(target)
        self._closed = False
        self._process = os.getpid()
        self._turn = threading.RLock()
        self._current = threading.local()
        self._has_embedder = False
        self._is_large = False
        self._is_indexed = False
        self._engine = _engine(target)
        reads: dict[str, Any] = {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True}
        self._reads = self._engine.execution_options(**reads)
        self._writes = self._engine.execution_options(isolation_level="READ COMMITTED")
        self._single = self._engine.execution_options(isolation_level="AUTOCOMMIT")
        try:
            with self.reading() as connection:
                schema = self._schema(connection)
            if not schema and not create:
                raise StorageError(f"{self.location}: has no bank; check the address, or open it with create=True")
            if not schema:
                self._make_tables()
            elif schema < tables.SCHEMA:
                self._migrate()
        except BaseException:
            self._engine.dispose()
            raise

    @contextmanager
    def reading(self, *, once: bool = False) -> Iterator[Connection]:
        self._check_open()
        current = getattr(self._current, "connection", None)
        if current is not None:
            yield current
            return
        with self._transaction(self._single if once else self._reads) as connection:
            yield connection

    @contextmanager
    def writing(self, scope_id: int | None = None) -> Iterator[Connection]:
        self._check_open()
        with self._turn, self._transaction(self._writes) as connection:
            # All scopes take turns until the first vectors bind the bank to their embedder, and in the write that
            # makes the index: the first one after a scope has become large.
            exclusive = scope_id is None or not self._has_embedder or (self._is_large and not self._is_indexed)
            connection.execute(_LOCK_BANK if exclusive else _LOCK_SCOPE, {"scope": scope_id})
            yield connection
            if not self._is_large:
                self._is_large = (connection.execute(_LARGEST).scalar_one() or 0) > MAX_EXACT
            embedder = embedders.embedder_of(connection) if exclusive else None
            if embedder is not None and self._is_large:
                self._index_vectors(connection, *embedder)
        self._has_embedder |= embedder is not None
        self._is_indexed |= embedder is not None and self._is_large

    def close(self) -> None:
        self._closed = True
        if self._process == os.getpid():
            self._engine.dispose()

    def vacuum(self) -> None:
        """Rewrite the tables, their indexes and statistics without deleted data.

        The server's write-ahead log, replicas and backups are not changed. Raises ``StorageError`` if others have been
        using a table for a minute.
        """
        self._check_open()
        with self._translated(), self._single.connect() as connection:
            for name in tables.NAMES:
                connection.exec_driver_sql(f"VACUUM (FULL, ANALYZE) {SCHEMA_NAME}.{name}")

    def check(self) -> list[str]:
        """Return no problems: the server checks its files itself."""
        return []

    def bytes_on_disk(self) -> int:
        """Size of the tables with their indexes."""
        with self.reading() as connection:
            return int(connection.execute(_SIZE).scalar_one())

    def _check_open(self) -> None:
        if self._closed:
            raise StorageError(f"{self.location}: this bank is closed; open it again")
        if self._process != os.getpid():
            raise StorageError(f"{self.location}: opened before a fork; open it again in this process")

    def _schema(self, connection: Connection) -> int:
        """The version of the tables; 0 if there are none. Raises ``SchemaTooNew``."""
        if not connection.execute(_EXISTS).scalar_one():
            return 0
        meta = embedders.meta(connection)
        self._has_embedder = "embedder" in meta
        schema = int(meta["schema"])
        if schema > tables.SCHEMA:
            raise SchemaTooNew(
                f"{self.location}: bank schema {schema}; this one knows {tables.SCHEMA}: upgrade rb_dspy"
            )
        return schema

    def _make_tables(self) -> None:
        with self.writing() as connection:
            if connection.execute(_EXISTS_NOW).scalar_one():  # another process was first
                return
            if not connection.execute(_SCHEMA_EXISTS).scalar_one():
                connection.exec_driver_sql(f"CREATE SCHEMA {SCHEMA_NAME}")
            self._require_pgvector(connection)
            for definition in tables.definitions(**_TYPES):
                connection.exec_driver_sql(definition)
            _index_words(connection)
            embedders.set_meta(connection, schema=tables.SCHEMA, epoch=0)

    def _migrate(self) -> None:
        """Bring an older bank to this schema; its tables stay as copies in a schema of their own."""
        with self.writing() as connection:
            if self._schema(connection) == tables.SCHEMA:  # another process was first
                return
            connection.exec_driver_sql(f"CREATE SCHEMA {SCHEMA_NAME}_schema_1")
            names = connection.execute(_TABLES).scalars().all()
            for name in names:
                copy = f"{SCHEMA_NAME}_schema_1.{name}"
                connection.exec_driver_sql(f"CREATE TABLE {copy} AS TABLE {SCHEMA_NAME}.{name}")
            migrate(connection, **_TYPES)

    def _require_pgvector(self, connection: Connection) -> None:
        needed = ".".join(map(str, _OLDEST_PGVECTOR))
        try:
            connection.exec_driver_sql("CREATE EXTENSION IF NOT EXISTS vector SCHEMA public")
        except sqlalchemy.exc.DBAPIError as exc:
            if exc.connection_invalidated:
                raise
            raise StorageError(
                f"{self.location}: needs pgvector {needed} or newer ({summary_line(exc.orig or exc, 150)}); install it"
                " on the server, or ask its administrator to, and to run CREATE EXTENSION vector in this database"
            ) from exc
        version = str(connection.execute(_VERSION).scalar_one())
        if tuple(map(int, version.split(".")[:2])) < _OLDEST_PGVECTOR:
            raise StorageError(
                f"{self.location}: has pgvector {version}, needs {needed} or newer; upgrade it, then run"
                " ALTER EXTENSION vector UPDATE"
            )

    def _index_vectors(self, connection: Connection, embedder: str, dimension: int) -> None:
        """Create missing indexes of this embedder's vectors, and drop the indexes of other embedders."""
        from psycopg.sql import SQL, Identifier, Literal

        digest = sha256(f"{embedder}\0{dimension}".encode()).hexdigest()[:12]
        names = {f"vectors_nearest_{unit}_{digest}": unit for unit in UNITS if dimension <= MAX_INDEXED}
        existing = set(connection.execute(_INDEXES).scalars())
        statements = [
            SQL(
                "CREATE INDEX {} ON vectors USING hnsw ((CAST(data AS halfvec({}))) halfvec_ip_ops)"
                " WHERE unit = {} AND embedder = {}"
            ).format(Identifier(name), Literal(dimension), Literal(unit), Literal(embedder))
            for name, unit in names.items()
            if name not in existing
        ]
        # last, because it locks readers out until the commit
        statements += [SQL("DROP INDEX {}").format(Identifier(SCHEMA_NAME, name)) for name in existing - names.keys()]
        for statement in statements:
            connection.exec_driver_sql(statement.as_string(None).replace("%", "%%"))

    @contextmanager
    def _transaction(self, engine: Engine) -> Iterator[Connection]:
        before = getattr(self._current, "connection", None)
        with self._translated(), engine.begin() as connection:
            self._current.connection = connection
            try:
                yield connection
            finally:
                self._current.connection = before

    @contextmanager
    def _translated(self) -> Iterator[None]:
        import psycopg

        try:
            yield
        except (sqlalchemy.exc.DBAPIError, psycopg.Error) as exc:
            cause = exc.orig if isinstance(exc, sqlalchemy.exc.DBAPIError) else exc
            if not isinstance(cause, psycopg.Error):
                raise  # an error of the caller's own database
            raise StorageError(self._message(cause)) from exc

    def _message(self, cause: Exception) -> str:
        import psycopg

        if isinstance(cause, psycopg.errors.LockNotAvailable):
            return f"{self.location}: others have been using it for {_TIMEOUT} seconds; try again"
        message, hint = summary_line(cause, 300), ""
        if isinstance(cause, psycopg.OperationalError):
            refused = "FATAL" in message and not re.search(
                "starting up|shutting down|recovery|connection slots", message
            )
            hint = "; correct the address, or create the database" if refused else "; try again"
        return f"{self.location}: {message}{hint}"


_LOCK_BANK = text(f"SELECT pg_advisory_xact_lock({_LOCKS}, 0)")
_LOCK_SCOPE = text(f"SELECT pg_advisory_xact_lock_shared({_LOCKS}, 0), pg_advisory_xact_lock({_LOCKS}, :scope)")
_LARGEST = text("SELECT max(seq) FROM scopes")
_EXISTS = text(f"SELECT to_regclass('{SCHEMA_NAME}.meta') IS NOT NULL")
# After a lock, ask the catalog: to_regclass may answer from a cache that is older than what the lock waited for.
_EXISTS_NOW = text(
    f"SELECT EXISTS (SELECT FROM pg_catalog.pg_tables WHERE schemaname = '{SCHEMA_NAME}' AND tablename = 'meta')"
)
_SCHEMA_EXISTS = text(f"SELECT EXISTS (SELECT FROM pg_catalog.pg_namespace WHERE nspname = '{SCHEMA_NAME}')")
_TABLES = text(f"SELECT tablename FROM pg_tables WHERE schemaname = '{SCHEMA_NAME}'")
_VERSION = text("SELECT extversion FROM pg_extension WHERE extname = 'vector'")
_INDEXES = text(
    "SELECT indexname FROM pg_indexes"
    f" WHERE schemaname = '{SCHEMA_NAME}' AND starts_with(indexname, 'vectors_nearest_')"
)
_SIZE = text(
    "SELECT coalesce(sum(pg_total_relation_size(pg_class.oid)), 0) FROM pg_class"
    f" WHERE relnamespace = to_regnamespace('{SCHEMA_NAME}') AND relkind = 'r'"
)

_SESSION = f"""
SELECT set_config('search_path', concat_ws(', ', '{SCHEMA_NAME}', 'public', (
           SELECT quote_ident(nspname) FROM pg_extension JOIN pg_namespace ON pg_namespace.oid = extnamespace
           WHERE extname = 'vector')), false),
       set_config('lock_timeout', '{_TIMEOUT}s', false),
       set_config('tcp_keepalives_idle', '{_TIMEOUT}', false),
       set_config('tcp_keepalives_interval', '10', false),
       set_config('tcp_keepalives_count', '3', false),
       set_config('hnsw.iterative_scan', 'strict_order', false),
       set_config('hnsw.ef_search', '{_EF_SEARCH}', false)
"""
"""Settings of a connection. pgvector may be in another schema than ``public``. The server must notice when a client's
machine is gone, because its transaction holds locks."""


def _index_words(connection: Connection) -> None:
    """Make the column with the words of each row, and its index."""
    for unit in UNITS:
        words = f"words tsvector GENERATED ALWAYS AS ({_words_of(unit)}) STORED"
        connection.exec_driver_sql(f"ALTER TABLE {unit}s ADD COLUMN {words}")
        connection.exec_driver_sql(f"CREATE INDEX {unit}s_terms ON {unit}s USING gin (words)")


def _words_of(unit: Unit) -> str:
    """The SQL expression for the words of a row; other characters than letters and digits separate them.

    A character of a script without spaces is a word: a pair of neighbors is found as a phrase.
    """
    columns = " || ' ' || ".join(tables.TEXTS[unit])
    single = rf"regexp_replace(left({columns}, {_MOST_CHARACTERS}), '([{UNSPACED}])', ' \1 ', 'g')"
    return rf"to_tsvector('english', regexp_replace({single}, '(\W|_)+', ' ', 'g'))"


def _parsed(url: str) -> URL:
    """Parse the URL. Raises ``InputError`` without quoting it, because it may contain a password."""
    try:
        parsed = make_url(url)
    except (sqlalchemy.exc.ArgumentError, ValueError):
        raise InputError(
            "bank: not a valid PostgreSQL URL; expected postgresql://user:password@host:port/database, with special"
            " characters of the password as %XX"
        ) from None
    return parsed.set(drivername="postgresql+psycopg")


def _location(url: URL) -> str:
    """The URL without the password, and with only those options that say where the database is."""
    query = {key: value for key, value in url.query.items() if key in ("host", "port", "user", "dbname")}
    shown = URL.create("postgresql", url.username, None, url.host, url.port, url.database, query)
    return str(shown).replace("%2F", "/")


def _engine(url: URL) -> Engine:
    try:
        import psycopg
        from pgvector.psycopg import register_vector
        from psycopg.types import TypeInfo
    except ImportError as exc:
        raise MissingDependency(
            "a bank in PostgreSQL needs psycopg and pgvector: run `pip install 'rb-dspy[postgres]'`"
        ) from exc
    if "connect_timeout" not in url.query:
        url = url.update_query_dict({"connect_timeout": str(_CONNECT_TIMEOUT)})
    engine = create_engine(url, pool_size=8, max_overflow=-1, use_native_hstore=False)

    @event.listens_for(engine, "checkout")
    def check(connection: psycopg.Connection[Any], record: Any, _: object) -> None:
        """A server that ends an idle connection writes to it; only then it costs a round trip to see if it works."""
        waiting = select.poll()
        if not connection.closed:
            waiting.register(connection.fileno(), select.POLLIN)
        if connection.closed or waiting.poll(0):
            try:
                connection.execute("SELECT 1")
                connection.rollback()
            except psycopg.Error as exc:
                raise sqlalchemy.exc.DisconnectionError from exc
        learn_type(connection, record)

    @event.listens_for(engine, "connect")
    def prepare(connection: psycopg.Connection[Any], record: Any) -> None:
        connection.execute(_SESSION)
        connection.commit()
        learn_type(connection, record)

    def learn_type(connection: psycopg.Connection[Any], record: Any) -> None:
        """Teach a connection the type of a vector, as soon as this or another process has made it."""
        if record.info.get("vectors"):
            return
        if TypeInfo.fetch(connection, "halfvec"):
            register_vector(connection)
            record.info["vectors"] = True
        connection.rollback()

    return engine
