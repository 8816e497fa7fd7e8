"""Banks and exports of earlier versions."""

from __future__ import annotations

import shutil
import signal
import sqlite3
import threading
from pathlib import Path

import psycopg
import pytest

from rb_dspy.bank import MemoryBank
from rb_dspy.errors import StorageError
from tests.bank.helpers import open_bank, start
from tests.bank.postgres_server import PostgresServer

DATA = Path(__file__).parent / "data"


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A bank of schema 1, made by rb_dspy at b016443."""
    return shutil.copy(DATA / "schema-1.sqlite", tmp_path / "bank.sqlite")


def check(bank: MemoryBank) -> None:
    """That the scope ``one`` of the old bank is what it was."""
    assert bank.doctor() == []
    assert bank.stats().schema_version == 2
    assert {item.title: item.level for item in bank.items()} == {
        "Lesson 0 of t1": "learned",
        "Lesson 0 of t2": "learned",
        "Lesson 0 of t4": "learned",
        "Refunds": "owner",
    }
    edited = bank.items()[0]
    assert [change.kind for change in bank.history(edited.id)] == ["append", "edit"]
    assert bank.uses(edited.id).tasks == ["t2", "t4"]
    assert [use.label for use in bank.uses(edited.id)] == ["failure", "success"]
    assert [each.task.id for each in bank.pending()] == ["t6"]
    assert bank.pending()[0].shown == (edited,)
    assert [each.origin for each in bank.experiences()] == ["", "", "mail:7", "", "user"]
    assert len(bank.retrieve("sort the numbers", 9, unit="item")) == 4
    with bank.fork() as fork:
        fork.delete(edited.id)
        assert len(fork) == 3


def test_a_bank_of_schema_1_is_migrated_and_backed_up(old: Path) -> None:
    with open_bank(old, "one") as bank:
        check(bank)
        assert bank.reindex() == 1  # an experience without lessons can be found now
    with open_bank(old, "two") as bank:
        assert len(bank) == 1
    with open_bank(old, "one", at="before") as past:
        assert [item.title for item in past.items()] == ["Lesson 0 of t1", "Lesson 1 of t1", "Lesson 0 of t2"]
    copy = old.with_name("bank.sqlite.schema-1")
    with sqlite3.connect(copy) as connection:
        assert connection.execute("SELECT value FROM meta WHERE key = 'schema'").fetchone() == ("1",)
    assert not list(old.parent.glob("*.copying*"))
    with open_bank(copy, "one") as bank:  # and so can the copy
        check(bank)


def test_many_open_an_old_bank_at_once(old: Path) -> None:
    code = "import sys\nimport tests.bank.helpers as h\nprint(len(h.open_bank(sys.argv[1], 'one')))"
    processes = [start(code, str(old)) for _ in range(4)]
    assert [process.communicate(timeout=120)[0] for process in processes] == ["4\n"] * 4
    assert len(list(old.parent.glob("*.schema-1*"))) == 1


def test_a_migration_that_is_killed_is_repeated(old: Path) -> None:
    """Killed after the copy was made, before the commit."""
    code = """
import os, signal, sys
import rb_dspy.bank.store.sqlite as sqlite
real = sqlite.migrate
def migrate(connection, **types):
    real(connection, **types)
    os.kill(os.getpid(), signal.SIGKILL)
sqlite.migrate = migrate
import tests.bank.helpers as h
h.open_bank(sys.argv[1], "one")
"""
    process = start(code, str(old))
    process.communicate(timeout=120)
    assert process.returncode == -signal.SIGKILL
    with open_bank(old, "one") as bank:
        check(bank)
    assert len(list(old.parent.glob("*.schema-1*"))) == 2


def test_who_may_not_write_an_old_bank_is_told(old: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.access", lambda *args: False)
    with pytest.raises(StorageError, match="open it once with write access"):
        open_bank(old, "one")


def test_a_bank_of_schema_1_in_postgres(bare_url: str, postgres_server: PostgresServer) -> None:
    types = {"serial": "SERIAL", "bytes": "BYTEA", "vector": "halfvec"}
    with psycopg.connect(bare_url) as connection:
        connection.execute("CREATE EXTENSION vector; CREATE SCHEMA rb_dspy; SET search_path = rb_dspy, public")
        for statement in (DATA / "schema-1.sql").read_text().format(**types).split(";\n"):
            connection.execute(statement)  # type: ignore[arg-type]
        for unit, texts in (("experience", "instruction"), ("item", "title || ' ' || description || ' ' || content")):
            words = f"ADD COLUMN words tsvector GENERATED ALWAYS AS (to_tsvector('english', {texts})) STORED"
            connection.execute(f"ALTER TABLE {unit}s {words}")  # type: ignore[arg-type]
        _copy(sqlite3.connect(DATA / "schema-1.sqlite"), connection)
    opened: list[int] = []

    def count() -> None:
        with open_bank(bare_url, "one") as bank:
            opened.append(len(bank))

    threads = [threading.Thread(target=count) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert opened == [4, 4, 4]
    with open_bank(bare_url, "one") as bank:
        check(bank)
    with psycopg.connect(bare_url) as connection:
        kept = connection.execute("SELECT count(*) FROM rb_dspy_schema_1.exposures").fetchone()
        assert kept == (4,)


def _copy(old: sqlite3.Connection, new: psycopg.Connection) -> None:
    """Copy the rows of all tables."""
    for (table,) in old.execute("SELECT name FROM sqlite_master WHERE type = 'table' AND name <> 'sqlite_sequence'"):
        rows = old.execute(f"SELECT * FROM {table}")
        names = [column[0] for column in rows.description]
        for row in rows:
            values = dict(zip(names, row, strict=True))
            if table == "vectors":
                import numpy as np

                values["data"] = str(np.frombuffer(values["data"], "<f2").tolist())
            places = ", ".join("%s" for _ in names)
            new.execute(
                f"INSERT INTO {table} ({', '.join(names)}) VALUES ({places})",  # type: ignore[arg-type]
                list(values.values()),
            )
    for table, column in (("scopes", "id"), ("pending", "number")):
        new.execute(f"SELECT setval('rb_dspy.{table}_{column}_seq', (SELECT max({column}) FROM {table}))")  # type: ignore[arg-type]


def test_a_copy_of_schema_1_is_restored_as_it_is(tmp_path: Path) -> None:
    copy = tmp_path / "copy.sqlite"
    shutil.copy(DATA / "schema-1.sqlite", copy)
    before = copy.read_bytes()
    MemoryBank.restore(tmp_path / "bank.sqlite", copy=copy)
    assert copy.read_bytes() == before
    assert sorted(file.name for file in tmp_path.iterdir() if "schema" in file.name) == []
