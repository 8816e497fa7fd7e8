"""What an event loop that was interrupted leaves behind is thrown away in the test that made it."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _nothing_left_of_an_event_loop(request: pytest.FixtureRequest) -> Iterator[None]:
    """Else a later garbage collection logs it: in the middle of a parse, CPython 3.11 makes a ``SystemError`` of it."""
    yield
    if "asyncio" in request.node.name:
        gc.collect()
