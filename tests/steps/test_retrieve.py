"""What a program's own step retrieves."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from rb_dspy.bank import MemoryBank
from rb_dspy.config import RetrieveConfig
from rb_dspy.protocols import Vectors
from rb_dspy.schema import Task
from rb_dspy.steps import Retrieve
from rb_dspy.testing import HashEmbedder


class Listening(HashEmbedder):
    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def embed(self, texts: Sequence[str]) -> Vectors:
        self.texts += texts
        return super().embed(texts)


@pytest.mark.parametrize("own_lessons", [False, True])
@pytest.mark.parametrize(("key", "query"), [("", "Open the door."), ("a door", "a door")])
def test_a_query_is_embedded_after_its_prefix_and_lessons_without(key: str, query: str, own_lessons: bool) -> None:
    embedder = Listening()
    bank = MemoryBank.open(":memory:", scope="s", embedder=embedder)
    item = bank.add("Doors", "Open them.")
    task = Task(id="t", instruction="Open the door.", key=key)
    for prefix in ("", "Find: "):
        stored = list(embedder.texts)
        assert not any("Find: " in text for text in stored)
        step = Retrieve(RetrieveConfig(query_prefix=prefix, min_score=-1.0))
        assert step(task, bank, own_lessons).items == (item,)
        assert embedder.texts[len(stored) :] == [prefix + query]
