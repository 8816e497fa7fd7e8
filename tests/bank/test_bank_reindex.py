"""A bank that moves to another embedder, under those who use it."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from rb_dspy.bank import MemoryBank
from rb_dspy.errors import EmbedderMismatch, StorageError
from rb_dspy.protocols import Vectors
from rb_dspy.testing import HashEmbedder
from tests.bank.helpers import add, open_bank

OLD, NEW = HashEmbedder(salt="x"), HashEmbedder(salt="y")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "bank.sqlite"


def found(bank: MemoryBank, text: str) -> tuple[str, float]:
    (best,) = bank.retrieve(text)
    return best.task_id, best.score


def test_what_was_learned_is_found_by_the_new_embedder(place: str | Path | None) -> None:
    with open_bank(place, embedder=OLD) as bank:
        for n in range(5):
            add(bank, f"t{n}", f"sort {n} numbers", lessons=2)
        assert bank.reindex(NEW) == 15
        assert found(bank, "sort 3 numbers") == ("t3", pytest.approx(1, abs=1e-4))
        add(bank, "t9", "walk the dog")
        assert found(bank, "walk the dog") == ("t9", pytest.approx(1, abs=1e-4))
        assert bank.stats().embedder == NEW.id
        assert bank.doctor() == []


def test_who_has_it_open_elsewhere_mixes_nothing_into_it(url: str | Path) -> None:
    with open_bank(url, embedder=OLD) as stale, open_bank(url, embedder=OLD) as mover:
        add(stale, "t1")
        fork = stale.fork()
        mover.reindex(NEW)
        for use in (
            lambda: add(stale, "t2"),
            lambda: stale.edit(stale.items()[0].id, title="New"),
            lambda: stale.retrieve("x"),
            lambda: add(fork, "t3"),
            lambda: fork.retrieve("x"),
            lambda: stale.retrieve("x"),  # asking for a fork has not made this one belong to the new embedder
            lambda: add(stale, "t4"),
        ):
            with pytest.raises(EmbedderMismatch, match="again"):
                use()
        assert mover.seen_tasks() == {"t1"}
        assert mover.doctor() == []


class Slow(HashEmbedder):
    """Waits in the middle of its first call."""

    def __init__(self, salt: str = "x") -> None:
        super().__init__(salt=salt)
        self.begun, self.go_on = threading.Event(), threading.Event()

    def embed(self, texts: Sequence[str]) -> Vectors:
        rows = super().embed(texts)
        if not self.begun.is_set():
            self.begun.set()
            assert self.go_on.wait(30)
        return rows


class Breaking(HashEmbedder):
    """Breaks at the lessons, when the vectors of the instructions are stored."""

    def __init__(self, why: BaseException) -> None:
        super().__init__(salt="y")
        self.why = why

    def embed(self, texts: Sequence[str]) -> Vectors:
        if any("Lesson" in text for text in texts):
            raise self.why
        return super().embed(texts)


@pytest.mark.parametrize("why", [ConnectionError("out of quota"), KeyboardInterrupt()])
def test_a_reindex_that_breaks_leaves_nothing_behind(path: Path, why: BaseException) -> None:
    with open_bank(path, embedder=OLD) as bank:
        for n in range(5):
            add(bank, f"t{n}", f"sort {n} numbers")
        bank.reindex()
        with contextlib.closing(sqlite3.connect(path)) as database:
            tables = database.execute("SELECT sql FROM sqlite_master ORDER BY name").fetchall()
        with pytest.raises(type(why)):
            bank.reindex(Breaking(why))
        with contextlib.closing(sqlite3.connect(path)) as database:
            assert database.execute("SELECT sql FROM sqlite_master ORDER BY name").fetchall() == tables
        assert bank.doctor() == []
        assert found(bank, "sort 3 numbers")[0] == "t3"
        assert bank.reindex(NEW) == 10


def test_a_fork_or_a_snapshot_has_no_index_to_make(url: str | Path) -> None:
    with open_bank(url, embedder=OLD) as bank:
        add(bank, "t1")
        bank.snapshot("one")
        fork = bank.fork()
        for embedder in (None, NEW):
            with pytest.raises(StorageError, match="on the bank"):
                fork.reindex(embedder)
        assert bank.reindex() == 0
        assert found(fork, "sort the numbers")[0] == "t1"
    with open_bank(url, embedder=OLD, at="one") as then:
        with pytest.raises(StorageError, match="on the bank"):
            then.reindex()
        assert found(then, "sort the numbers")[0] == "t1"


def test_an_embedder_that_changes_its_dimension_needs_another_id(path: Path) -> None:
    class Wider(HashEmbedder):
        id = OLD.id

    with open_bank(path, embedder=OLD) as bank:
        add(bank, "t1")
        with pytest.raises(EmbedderMismatch, match="another id"):
            bank.reindex(Wider(128))
        assert found(bank, "sort the numbers")[0] == "t1"


def test_what_is_purged_meanwhile_gets_no_vector(path: Path) -> None:
    slow = Slow(salt="y")
    with open_bank(path, embedder=OLD) as bank, open_bank(path, embedder=OLD) as other:
        every = [add(bank, f"t{n}", f"sort {n} numbers", lessons=2) for n in range(34)]
        moving = threading.Thread(target=bank.reindex, args=[slow])
        moving.start()
        assert slow.begun.wait(30)
        other.purge(every[0].id)
        slow.go_on.set()
        moving.join(60)
        assert bank.doctor() == []
    with contextlib.closing(sqlite3.connect(path)) as database:
        assert database.execute("SELECT count(*) FROM vectors").fetchone() == (33 * 3,)
