"""What all tests of the command line share."""

from __future__ import annotations

import pytest

from rb_dspy.cli import common


@pytest.fixture(autouse=True)
def _as_wide_as_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """A console keeps the ``COLUMNS`` that it was made under, and workers of pytest-xdist are started with some."""
    for console in (common.out, common.err):
        monkeypatch.setattr(console, "_width", None)
