"""What several tests of files begin with."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from rb_dspy.bank.sqlite.store import SqliteStore
from tests.bank.store_cases import a_store


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "bank.sqlite"


@pytest.fixture
def store(path: Path) -> Iterator[SqliteStore]:
    made = a_store(path)
    yield made
    made.close()
