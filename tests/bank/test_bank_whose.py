"""A file that has lost whose it is, or which scopes it has: who looks changes nothing, and doctor says what is gone."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from rb_dspy.bank import MemoryBank
from rb_dspy.errors import EmbedderMismatch
from rb_dspy.testing import HashEmbedder
from tests.bank.helpers import add, open_bank
from tests.bank.test_bank_mending import errors, run

LOST = {
    "both": "DELETE FROM meta",
    "embedder": "DELETE FROM meta WHERE key = 'embedder'",
    "dimension": "DELETE FROM meta WHERE key = 'dimension'",
    "damaged dimension": "UPDATE meta SET value = 'x' WHERE key = 'dimension'",
    "damaged embedder": "UPDATE meta SET value = x'00' WHERE key = 'embedder'",
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "bank.sqlite"
    with open_bank(path) as bank:
        for n in range(3):
            add(bank, f"t{n}", f"do thing {n}", lessons=2)
    return path


def meta(path: Path) -> dict[str, object]:
    """What a file says of whose it is; how often its vectors were made again is another thing."""
    database = sqlite3.connect(path)
    found = dict(database.execute("SELECT key, value FROM meta WHERE key <> 'renewals'"))
    database.close()
    return found


WHOSE = {"embedder": HashEmbedder().id, "dimension": "64"}


@pytest.mark.parametrize("lost", LOST)
def test_who_looks_binds_nothing(path: Path, lost: str) -> None:
    assert run(path, LOST[lost])
    before = meta(path)
    with open_bank(path, create=False) as bank:
        (told,) = errors(bank)
        assert ("embedder" in told.what.partition(";")[0]) == (lost not in ("dimension", "damaged dimension"))
        assert ("dimension" in told.what.partition(";")[0]) == ("dimension" in lost or lost == "both")
        assert "64 dimensions" in told.what
        assert f"rb-dspy bank reindex --embedder NAME --bank {path}" in told.remedy
        assert bank.retrieve("do thing 1")[0].task_id == "t1"
        assert len(bank.fork().retrieve("do thing 1", k=9)) == 3
        add(bank.fork(), "t8")
        bank.delete(bank.items()[0].id)
        assert (bank.stats().dimension, bank.reindex()) == (64, 0)
    assert meta(path) == before


WRITES: dict[str, Callable[[MemoryBank], object]] = {
    "append": lambda bank: add(bank, "t9"),
    "append many": lambda bank: bank.append_many([]) or add(bank, "t9", lessons=0),
    "edit": lambda bank: bank.edit(bank.items()[0].id, content="Better."),
    "reindex": lambda bank: bank.reindex(HashEmbedder()),
}


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("lost", LOST)
def test_who_stores_vectors_says_whose_they_are(path: Path, lost: str, write: str) -> None:
    assert run(path, LOST[lost])
    with open_bank(path, create=False) as bank:
        WRITES[write](bank)
        assert bank.doctor() == []
    assert meta(path) == WHOSE


@pytest.mark.parametrize("lost", LOST)
def test_who_opens_it_to_learn_says_whose_it_is(path: Path, lost: str) -> None:
    assert run(path, LOST[lost])
    with open_bank(path) as bank:
        assert bank.doctor() == []
    assert meta(path) == WHOSE


@pytest.mark.parametrize("create", [True, False])
@pytest.mark.parametrize("lost", LOST)
def test_it_belongs_to_none_of_another_dimension(path: Path, lost: str, create: bool) -> None:
    assert run(path, LOST[lost])
    before = meta(path)
    with pytest.raises(EmbedderMismatch, match=r"\(64 dimensions\), opened with hash-32.* \(32\)"):
        open_bank(path, create=create, embedder=HashEmbedder(dimension=32))
    assert meta(path) == before


def test_nor_to_one_of_another_name(path: Path) -> None:
    assert run(path, LOST["dimension"])
    with pytest.raises(EmbedderMismatch, match=r"filled with the embedder hash-64 \(64 dimensions\)"):
        open_bank(path, embedder=HashEmbedder(salt="other"))


def test_who_was_first_is_whose_it_is(path: Path) -> None:
    """Of two that opened it while it said nothing."""
    assert run(path, LOST["both"])
    with open_bank(path, create=False) as late, open_bank(path, create=False, embedder=HashEmbedder(salt="x")) as first:
        add(first, "t9")
        with pytest.raises(EmbedderMismatch, match="open it again with hash-64-x"):
            add(late, "t8")
        assert first.seen_tasks() == {"t0", "t1", "t2", "t9"}


# Scopes


def test_rows_of_an_unknown_scope_are_told_of(path: Path) -> None:
    with open_bank(path, "other") as bank:
        add(bank, "o", lessons=1)
        assert bank.doctor() == []
        assert run(path, "DELETE FROM scopes WHERE name = 's'")
        (told,) = bank.doctor()
        assert told.where.endswith("scope number 1")
        assert "experiences: 3, items: 6" in told.what
        assert "rb-dspy bank restore COPY" in told.remedy


def test_a_new_scope_takes_over_no_rows_of_a_lost_one(path: Path) -> None:
    assert run(path, "DELETE FROM scopes")
    for scope in ("s", "another"):
        with open_bank(path, scope) as bank:
            assert bank.items() == []
            add(bank, "new", lessons=1)
            assert len(bank) == 1
            assert [finding.where[-14:] for finding in bank.doctor()] == ["scope number 1"]
