"""What all scenarios share: a bank in memory, and an LM that answers over HTTP for the command line."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rb_dspy import MemoryBank
from rb_dspy.testing import HashEmbedder
from tests.served import cli as cli, served as served


@pytest.fixture
def bank() -> Iterator[MemoryBank]:
    with MemoryBank.open(None, scope="scenarios", embedder=HashEmbedder()) as opened:
        yield opened
