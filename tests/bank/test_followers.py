"""An index that follows its store: built aside, saved, believed only where it agrees with the store."""

from __future__ import annotations

import shutil
import sqlite3
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest

from rb_dspy.bank import MemoryBank, followers
from rb_dspy.bank.followers import Follower
from rb_dspy.bank.index.sidecar import Sidecar, beside
from rb_dspy.bank.index.vector import VectorIndex
from rb_dspy.bank.index.view import search
from rb_dspy.bank.interface import BankStore
from rb_dspy.bank.sqlite.store import SqliteStore
from rb_dspy.errors import StorageError
from rb_dspy.schema import ExperienceDraft, Verdict
from rb_dspy.testing import HashEmbedder
from tests.bank.helpers import a_draft, a_rollout, a_task, open_bank

ROWS = 600


def learn(bank: MemoryBank, numbers: range) -> None:
    bank.append_many(
        ExperienceDraft(
            task=a_task(f"t{n}", f"sort {n * n} numbers in room {n}"),
            trajectories=(a_rollout(f"t{n}"),),
            verdicts=(Verdict(label="success"),),
            drafts=(a_draft(f"Lesson {n} on {n * 7919 % 1000}"),),
            run_id="r",
        )
        for n in numbers
    )


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("made") / "bank.sqlite"
    with open_bank(path) as bank:
        learn(bank, range(ROWS))
    return path


@pytest.fixture
def path(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(made, tmp_path / "bank.sqlite"))


@pytest.fixture
def store(path: Path) -> Iterator[SqliteStore]:
    store = SqliteStore(path)
    store.bind("hash-64", 64)
    yield store
    store.close()


def follower(store: BankStore, path: Path) -> Follower:
    index = VectorIndex(64, exact_up_to=200, tail=50, block=64)
    sidecar = Sidecar(beside(path), "s", "item", embedder_id="hash-64", dimension=64)
    return Follower(store, "s", "item", index, sidecar)


def found(follower: Follower, text: str) -> list[int]:
    (query,) = HashEmbedder().embed([text])
    return [hit.seq for hit in search(follower.view(), np.asarray(query, np.float32), 5)]


def parts(follower: Follower) -> int:
    return len(follower.view().parts)  # type: ignore[attr-defined]


def exactly(store: BankStore, text: str) -> list[int]:
    index = VectorIndex(64)
    index.apply(store.changes("s", "item", after=0, limit=10_000))
    (query,) = HashEmbedder().embed([text])
    return [hit.seq for hit in search(index.view, np.asarray(query, np.float32), 5)]


def test_a_large_index_is_built_aside_and_saved(store: SqliteStore, path: Path) -> None:
    first = follower(store, path)
    assert len(first.view()) == ROWS  # complete at once, before anything is built
    first.build()
    assert parts(first) >= 1
    assert list(beside(path).iterdir())
    text = "Lesson 77 on 763"
    assert found(first, text)[0] == exactly(store, text)[0]
    first.retire(StorageError("ended; open it again"))
    again = follower(store, path)
    assert parts(again) >= 1  # from the file: nothing was built
    assert found(again, text)[0] == exactly(store, text)[0]
    again.retire(StorageError("ended; open it again"))


def test_what_was_mended_is_in_the_next_index_of_each_scope(store: SqliteStore, path: Path) -> None:
    """Also of one whose saved index had to do without."""
    (seq,) = exactly(store, "Lesson 77 on 763")[:1]
    with sqlite3.connect(path) as database:
        database.execute("UPDATE item_vectors SET crc = crc + 1 WHERE key & 1048575 = ?", [seq])
    database.close()
    lacking = follower(store, path)
    lacking.build()
    assert len(lacking.view()) == ROWS - 1
    lacking.retire(StorageError("ended; open it again"))
    with open_bank(path, "another") as other:
        assert other.reindex() == 1
    again = follower(store, path)
    assert len(again.view()) == ROWS
    again.retire(StorageError("ended; open it again"))


@pytest.mark.parametrize("embedder", [None, HashEmbedder()])
def test_what_was_mended_elsewhere_is_not_lost_to_who_had_read_before(
    store: SqliteStore, path: Path, embedder: HashEmbedder | None
) -> None:
    """Who has the bank open by then goes on without it, and saves what it has when it has grown."""
    with sqlite3.connect(path) as database:
        database.execute("UPDATE item_vectors SET data = x'00' WHERE key & 1048575 = 8")
    database.close()
    lacking = follower(store, path)
    lacking.build()
    assert len(lacking.view()) == ROWS - 1
    with open_bank(path) as other:
        assert other.reindex(embedder) == (1 if embedder is None else 2 * ROWS)
        learn(other, range(ROWS, 2 * ROWS))
    lacking.build()
    assert beside(path).exists()
    again = follower(store, path)
    assert len(again.view()) == 2 * ROWS
    again.build()
    once_more = follower(store, path)
    assert len(once_more.view()) == 2 * ROWS
    for each in (lacking, again, once_more):
        each.retire(StorageError("ended; open it again"))


def test_rows_of_other_processes_and_ends_are_in_the_next_view(store: SqliteStore, path: Path) -> None:
    with open_bank(path) as other:
        mine = follower(store, path)
        mine.build()
        gone = other.items()[3]
        other.delete(gone.id)
        new = other.append(a_task("new"), a_rollout("new"), Verdict(label="success"), [a_draft("Never seen")])
        assert found(mine, "Never seen")[0] == new.items[0].seq
        assert gone.seq not in {seq for n in range(5) for seq in found(mine, f"Lesson {n}")}
        assert len(mine.view()) == ROWS
        mine.retire(StorageError("ended; open it again"))
        late = follower(store, path)  # its file is older than these
        assert len(late.view()) == ROWS
        assert found(late, "Never seen")[0] == new.items[0].seq
        late.retire(StorageError("ended; open it again"))


@pytest.mark.parametrize("damage", ["deleted", "flipped", "cut"])
def test_index_files_that_were_tampered_with_are_made_again(
    store: SqliteStore, path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    first = follower(store, path)
    first.build()
    first.retire(StorageError("ended; open it again"))
    largest = max(beside(path).rglob("*"), key=lambda file: file.stat().st_size)
    content = largest.read_bytes()
    if damage == "deleted":
        shutil.rmtree(beside(path))
    elif damage == "flipped":
        largest.write_bytes(
            content[: len(content) // 2] + bytes([content[len(content) // 2] ^ 1]) + content[len(content) // 2 + 1 :]
        )
    else:
        largest.write_bytes(content[: len(content) // 2])
    again = follower(store, path)
    assert found(again, "Lesson 5 on 595") == exactly(store, "Lesson 5 on 595")
    assert bool(caplog.records) == (damage != "deleted")
    again.build()
    again.retire(StorageError("ended; open it again"))
    last = follower(store, path)
    assert parts(last) >= 1
    last.retire(StorageError("ended; open it again"))


def test_an_index_of_another_history_is_not_used(store: SqliteStore, path: Path, tmp_path: Path) -> None:
    first = follower(store, path)
    first.build()
    first.retire(StorageError("ended; open it again"))
    other = tmp_path / "other" / "bank.sqlite"
    with open_bank(other) as bank:
        bank.append_many(
            ExperienceDraft(
                task=a_task(f"o{n}", f"walk dog {n}"),
                trajectories=(a_rollout(f"o{n}"),),
                verdicts=(Verdict(label="success"),),
                drafts=(a_draft(f"Other {n}"),),
                run_id="r",
            )
            for n in range(ROWS)
        )
    shutil.copytree(beside(path), beside(other))
    theirs = SqliteStore(other)
    theirs.bind("hash-64", 64)
    wrong = follower(theirs, other)
    assert found(wrong, "Other 17") == exactly(theirs, "Other 17")
    wrong.retire(StorageError("ended; open it again"))
    theirs.close()


def test_readers_go_on_while_it_is_built(store: SqliteStore, path: Path) -> None:
    mine = follower(store, path)
    expected = exactly(store, "Lesson 9 on 271")[0]
    wrong: list[object] = []
    done = threading.Event()

    def read() -> None:
        while not done.is_set():
            if found(mine, "Lesson 9 on 271")[0] != expected:
                wrong.append(1)

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    mine.build()
    done.set()
    for reader in readers:
        reader.join()
    assert not wrong
    mine.retire(StorageError("ended; open it again"))


def test_a_retired_one_gives_no_views(store: SqliteStore, path: Path) -> None:
    mine = follower(store, path)
    mine.view()
    mine.retire(StorageError("ended; open it again"))
    with pytest.raises(StorageError, match="again"):
        mine.view()


class Gated(VectorIndex):
    """Builds nothing, and takes until it is let go."""

    def __init__(self) -> None:
        super().__init__(64, exact_up_to=200, tail=50, block=64)
        self.builder: threading.Thread | None = None
        self.begun, self.go_on = threading.Event(), threading.Event()

    def prepare(self, stopped: Callable[[], bool] = bool) -> None:
        self.builder = threading.current_thread()
        self.begun.set()
        assert self.go_on.wait(30)


@pytest.mark.parametrize("line", range(1, 9))
def test_it_retires_whenever_the_builder_ends(store: SqliteStore, line: int) -> None:
    """The builder ends just before the ``line``-th line that retiring goes through."""
    index, lines = Gated(), 0
    mine = Follower(store, "s", "item", index)
    mine.view()
    assert index.begun.wait(30)
    builder = index.builder
    assert builder is not None

    def step(frame: FrameType, event: str, _: object) -> Any:
        nonlocal lines
        if frame.f_code.co_filename != followers.__file__:
            if frame.f_code.co_name == "join":  # it waits, and there are no more lines to come
                index.go_on.set()
            return None
        if event == "line":
            lines += 1
            if lines == line:
                index.go_on.set()
                builder.join()
        return step

    before = sys.gettrace()
    sys.settrace(step)
    try:
        mine.retire(StorageError("ended; open it again"))
    finally:
        sys.settrace(before)
        index.go_on.set()
        builder.join()
    with pytest.raises(StorageError, match="again"):
        mine.view()


def test_a_damaged_vector_hides_no_other_row(
    store: SqliteStore, path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A page that is full of rows, one of them damaged, is not the last page."""
    monkeypatch.setattr("rb_dspy.bank.followers._ROWS", 100)
    monkeypatch.setattr("rb_dspy.bank.retrieval._ROWS", 100)
    with sqlite3.connect(path) as connection:
        connection.execute(
            "UPDATE item_vectors SET data = zeroblob(128) WHERE rowid IN (SELECT key FROM items LIMIT 1)"
        )
    connection.close()
    with open_bank(path) as bank:
        assert len(bank.retrieve("Lesson", k=10_000, unit="item")) == ROWS - 1
        assert [finding.kind for finding in bank.doctor() if finding.severity == "error"] == ["vector"]
    assert "is damaged" in caplog.text
