"""Every kind of store, for tests of what is the same in all of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rb_dspy.bank import MemoryBank
from tests.bank.helpers import open_bank
from tests.bank.postgres_server import PostgresServer


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    server = PostgresServer()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def _shared_url(postgres_server: PostgresServer) -> str:
    url = postgres_server.url(postgres_server.new_database())
    open_bank(url).close()
    return url


@pytest.fixture
def postgres_url(postgres_server: PostgresServer, _shared_url: str) -> str:
    """A database with an empty bank."""
    postgres_server.empty(_shared_url)
    return _shared_url


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


@pytest.fixture(params=["memory", "file", "postgres"])
def place(request: pytest.FixtureRequest) -> str | Path | None:
    """Where a bank may be made; None for one in memory."""
    return _url(request.param, request)


@pytest.fixture(params=["file", "postgres"])
def url(request: pytest.FixtureRequest) -> str | Path | None:
    """Where a bank may be made that others can open too."""
    return _url(request.param, request)


@pytest.fixture(params=["file", "fork", "postgres"])
def bank(request: pytest.FixtureRequest) -> Iterator[MemoryBank]:
    """An empty bank; ``fork``: that of an empty bank in memory, whose own rows are in memory too."""
    with open_bank(_url({"fork": "memory"}.get(request.param, request.param), request)) as opened:
        yield opened.fork() if request.param == "fork" else opened
