"""A bank belongs to one embedder, and takes no vector that is none."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from rb_dspy.bank.embedding import embed
from rb_dspy.errors import EmbedderMismatch, InputError, InvalidVector
from rb_dspy.testing.embedder import HashEmbedder
from tests.bank.helpers import a_task, add, open_bank


class Fixed:
    """Answers what it was given."""

    id = "fixed"
    dimension = 3

    def __init__(self, answer: object) -> None:
        self.answer = answer

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer  # type: ignore[return-value]


@pytest.mark.parametrize("other", [HashEmbedder(salt="x"), HashEmbedder(32)])
def test_another_embedder_is_refused_with_both_names(url: str | Path, other: HashEmbedder) -> None:
    with open_bank(url) as bank:
        add(bank)
    before = url.read_bytes() if isinstance(url, Path) else b""
    for create in (True, False):
        with pytest.raises(EmbedderMismatch) as caught:
            open_bank(url, "s" if not create else "new", embedder=other, create=create)
        assert "hash-64 (64 dimensions)" in str(caught.value)
        assert f"{other.id} ({other.dimension})" in str(caught.value)
    assert (url.read_bytes() if isinstance(url, Path) else b"") == before
    with open_bank(url) as bank:
        assert bank.scopes() == ["s"]


class Counting:
    """Hands on what it does not have itself."""

    def __init__(self, embedder: HashEmbedder) -> None:
        self.embedder = embedder
        self.texts = 0

    def __getattr__(self, name: str) -> object:
        return getattr(self.embedder, name)

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        self.texts += len(texts)
        return self.embedder.embed(texts)


def test_an_embedder_may_hand_on_what_another_has() -> None:
    """Whatever the version of Python, whose own look at protocols sees it only up to 3.11."""
    counting = Counting(HashEmbedder())
    with open_bank(embedder=counting) as bank:
        add(bank)
        assert bank.stats().embedder == "hash-64"
        assert bank.reindex(counting) == 0
    assert counting.texts == 2
    with pytest.raises(InputError, match="expected an object with id, dimension and embed"):
        open_bank(embedder=type("Half", (), {"id": "half", "embed": counting.embed})())


BAD = {
    "nan": np.array([[1, 0, 0], [np.nan, 0, 0]]),
    "infinite": np.array([[np.inf, 0, 0], [1, 0, 0]]),
    "zero": np.array([[0, 0, 0], [1, 0, 0]]),
    "narrow": np.ones((2, 2)),
    "short": np.ones((1, 3)),
    "flat": np.ones(6),
    "ragged": [[1.0, 2.0, 3.0], [1.0]],
    "words": [["a", "b", "c"]] * 2,
    "none": None,
}


@pytest.mark.parametrize("answer", BAD.values(), ids=BAD)
def test_vectors_that_are_none(answer: object) -> None:
    bank = open_bank(embedder=Fixed(answer))
    with pytest.raises(InvalidVector, match="fixed") as caught:
        add(bank)
    assert "\n" not in str(caught.value)
    assert bank.experiences() == []
    assert (len(bank), bank.stats().experiences, bank.seen_tasks()) == (0, 0, set())


def test_query_vectors_are_checked_too() -> None:
    embedder = Fixed(np.eye(3)[:2])
    bank = open_bank(embedder=embedder)
    add(bank)
    embedder.answer = np.array([[np.nan, 0, 0]])
    with pytest.raises(InvalidVector):
        bank.retrieve("x")


def test_nothing_is_stored_when_embedding_fails() -> None:
    embedder = Fixed(ConnectionError("gone"))
    with open_bank(embedder=embedder) as bank:
        with pytest.raises(ConnectionError, match="gone"):
            add(bank)
        assert bank.experiences() == []
        embedder.answer = np.eye(3)[:2]
        assert add(bank).seq == 1
        embedder.answer = ConnectionError("gone")
        assert add(bank).seq == 1  # stored already: needs no embedding


def test_rows_of_other_lengths_are_scaled() -> None:
    embedder = Fixed(np.array([[3.0, 0, 0], [0, 0.001, 0]]))
    with open_bank(embedder=embedder) as bank:
        add(bank)
        embedder.answer = np.array([[1e30, 0, 0]])
        assert bank.retrieve("x")[0].score == pytest.approx(1.0)


@given(arrays(np.float64, array_shapes(min_dims=1, max_dims=3, max_side=4), elements=st.floats(width=64)))
def test_only_unit_rows_of_the_right_shape_pass(answer: np.ndarray) -> None:
    texts = [a_task().instruction] * 2
    try:
        rows = embed(Fixed(answer), texts)
    except InvalidVector:
        return
    assert rows.shape == (2, 3)
    assert rows.dtype == np.float32
    assert np.allclose(np.linalg.norm(rows, axis=1), 1, atol=1e-5)
