"""Every kind of store, for tests of what is the same in all of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rb_dspy.bank import MemoryBank
from rb_dspy.bank.store.postgres import PostgresDatabase
from tests.bank.helpers import open_bank
from tests.bank.postgres_server import PostgresServer

STORES = ["memory", "file", "postgres"]


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    server = PostgresServer()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def postgres_template(postgres_server: PostgresServer) -> str:
    """A database with the tables of a bank: copying it is faster than making them."""
    name = postgres_server.new_database()
    PostgresDatabase(postgres_server.url(name)).close()
    return name


@pytest.fixture
def postgres_url(postgres_server: PostgresServer, postgres_template: str) -> Iterator[str]:
    """A database with an empty bank."""
    name = postgres_server.new_database(postgres_template)
    yield postgres_server.url(name)
    postgres_server.drop(name)


@pytest.fixture
def bare_url(postgres_server: PostgresServer) -> Iterator[str]:
    """A database without a bank."""
    name = postgres_server.new_database()
    yield postgres_server.url(name)
    postgres_server.drop(name)


def _url(store: str, request: pytest.FixtureRequest) -> str | Path | None:
    if store == "postgres":
        return str(request.getfixturevalue("postgres_url"))
    return None if store == "memory" else Path(request.getfixturevalue("tmp_path")) / "bank.sqlite"


@pytest.fixture(params=STORES)
def place(request: pytest.FixtureRequest) -> str | Path | None:
    """Where a bank may be made; None for one in memory."""
    return _url(request.param, request)


@pytest.fixture(params=STORES[1:])
def url(request: pytest.FixtureRequest) -> str | Path | None:
    """Where a bank may be made that others can open too."""
    return _url(request.param, request)


@pytest.fixture(params=["memory", "file", "fork", "postgres"])
def bank(request: pytest.FixtureRequest) -> Iterator[MemoryBank]:
    """An empty bank; ``fork``: that of an empty bank in a file."""
    with open_bank(_url("file" if request.param == "fork" else request.param, request)) as opened:
        yield opened.fork() if request.param == "fork" else opened
