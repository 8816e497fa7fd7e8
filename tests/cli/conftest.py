"""What all tests of the command line share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pytest

from rb_dspy.cli import common
from rb_dspy.embedder import SentenceTransformerEmbedder
from rb_dspy.protocols import Vectors


@pytest.fixture(autouse=True)
def _as_wide_as_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """A console keeps the ``COLUMNS`` that it was made under, and workers of pytest-xdist are started with some."""
    for console in (common.out, common.err):
        monkeypatch.setattr(console, "_width", None)


@pytest.fixture(autouse=True, scope="module")
def _a_text_is_embedded_once() -> Iterator[None]:
    """By the model itself; its vectors are then remembered. A compile embeds the same mails a hundred times."""
    known: dict[tuple[str, str], Vectors] = {}
    embed = SentenceTransformerEmbedder.embed

    def remembered(self: SentenceTransformerEmbedder, texts: Sequence[str]) -> Vectors:
        new = [text for text in dict.fromkeys(texts) if (self.id, text) not in known]
        for text, row in zip(new, embed(self, new), strict=True):
            known[self.id, text] = row
        return np.array([known[self.id, text] for text in texts], np.float32).reshape(-1, self.dimension)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SentenceTransformerEmbedder, "embed", remembered)
        yield
