"""A long list goes in by pages; the next one is made ready while one is being stored, and nobody notices."""

import pickle
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rb_dspy.bank import MemoryBank
from rb_dspy.bank.ahead import Ahead
from rb_dspy.bank.sqlite.store import SqliteStore
from rb_dspy.errors import InputError
from rb_dspy.protocols import Vectors
from rb_dspy.schema import Experience, ExperienceDraft, MemoryItem, Verdict
from rb_dspy.testing.embedder import HashEmbedder
from tests.bank.helpers import a_draft, a_rollout, a_task, add, open_bank
from tests.bank.store_cases import SCOPE, a_store, names, new


@pytest.fixture
def bank(tmp_path: Path) -> Iterator[MemoryBank]:
    with open_bank(tmp_path / "bank.sqlite") as made:
        yield made


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    made = a_store(tmp_path / "bank.sqlite")
    yield made
    made.close()


def draft(number: int) -> ExperienceDraft:
    return ExperienceDraft(
        task=a_task(f"t{number}"),
        trajectories=(a_rollout(f"t{number}"),),
        verdicts=(Verdict(label="success"),),
        drafts=(a_draft(f"Lesson {number}"),),
        run_id="r",
    )


def until(last: int, then: Callable[[], object]) -> Iterator[ExperienceDraft]:
    for number in range(last):
        yield draft(number)
    then()


@pytest.mark.parametrize("error", [ValueError, KeyError, InputError, KeyboardInterrupt])
def test_what_a_list_raises_comes_through_as_it_is(bank: MemoryBank, error: type[BaseException]) -> None:
    """Also those errors that would mean a damaged row if the bank's own reading raised them."""

    def fail() -> None:
        raise error("of the list")

    with pytest.raises(error, match="of the list") as caught:
        bank.append_many(until(1_400, fail))
    assert type(caught.value) is error
    # The page before it; an interrupt takes back what had not begun to be written.
    assert len(bank) in ((1_024, 0) if error is KeyboardInterrupt else (1_024,))
    assert len(bank.append_many(map(draft, range(1_400)))) == 1_400
    assert len(bank) == 1_400


def test_a_list_may_use_the_bank_that_it_goes_into(bank: MemoryBank) -> None:
    made = bank.append_many(until(2_500, lambda: add(bank, "other")))
    assert [experience.task.id for experience in made] == [f"t{number}" for number in range(2_500)]
    assert bank.experiences()[:3] == made[:3]
    assert bank.experience_of("other") is not None
    assert bank.doctor() == []


def test_what_many_give_is_what_is_read(bank: MemoryBank) -> None:
    made = bank.append_many(map(draft, range(600)))
    assert made == bank.experiences()
    one = made[-1]
    assert one == Experience.model_validate(one.model_dump())
    assert (one.model_fields_set, repr(one)) == (bank.experiences()[-1].model_fields_set, repr(bank.experiences()[-1]))
    assert pickle.loads(pickle.dumps(one)) == one
    again = one.items[0].model_copy(update={"title": "other"})
    assert isinstance(again, MemoryItem)
    assert (again.title, one.items[0].title) == ("other", "Lesson 599")
    with pytest.raises(ValueError, match="frozen"):
        one.items[0].title = "other"  # type: ignore[misc]


def test_the_rest_is_done_meanwhile_once(store: SqliteStore) -> None:
    calls: list[list[str]] = []
    made = store.append(SCOPE, [new("a", "one"), new("b", "two")], meanwhile=lambda: calls.append(names(store)))
    assert len(calls) == 1
    assert names(store) == [experience.id for experience in made] == ["a", "b"]
    began = time.monotonic()
    with pytest.raises(UnicodeEncodeError):
        store.append(SCOPE, [new("bad", "c", run_id="\ud800")], meanwhile=lambda: calls.append([]))
    assert len(calls) == 2
    assert time.monotonic() - began < 20  # it knows at once that there is nothing to wait for


def test_what_changes_before_it_is_on_disk_is_told_as_it_is_then(tmp_path: Path, store: SqliteStore) -> None:
    """Performed together with one that the disk refuses in the end, then again alone, under other numbers."""

    def orphan(connection: sqlite3.Connection) -> None:
        connection.execute("UPDATE scopes SET seq = seq + 10")
        connection.execute(
            "INSERT INTO items (key, scope_id, id, experience, digest, title, description, content)"
            " VALUES (1, 1, 'x', 999, '', '', '', '')"
        )

    holder = sqlite3.connect(tmp_path / "bank.sqlite", isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    calls: list[str] = []
    with ThreadPoolExecutor(2) as work:
        jobs = [work.submit(store._write, orphan)]
        while len(store._writer._waiting) < 1:
            pass
        jobs.append(work.submit(store.append, SCOPE, [new("a", "one")], meanwhile=lambda: calls.append("meanwhile")))
        while len(store._writer._waiting) < 2:
            pass
        holder.execute("ROLLBACK")
        holder.close()
        assert jobs[0].exception() is not None
        (given,) = jobs[1].result()
    assert (given.seq, given.items[0].seq, calls) == (1, 2, ["meanwhile"])
    assert given == store.experience(SCOPE, "a")
    assert list(store.check()) == []


def test_a_bank_that_is_reindexed_while_a_page_is_made(tmp_path: Path) -> None:
    """The page's vectors are those of the embedder before; it is made once more with the other one's."""

    class Reindexing(HashEmbedder):
        pages = 0

        def embed(self, texts: Sequence[str]) -> Vectors:
            self.pages += len(texts) > 1
            if self.pages == 2:
                self.pages += 1
                bank.reindex(other)
            return super().embed(texts)

    other = HashEmbedder(128)
    with open_bank(tmp_path / "bank.sqlite", embedder=Reindexing()) as bank:
        made = bank.append_many(map(draft, range(2_500)))
        assert [experience.task.id for experience in made] == [f"t{number}" for number in range(2_500)]
        assert len(bank) == 2_500
        assert bank.retrieve(made[1_500].task.instruction, 1)
        assert bank.doctor() == []
    with open_bank(tmp_path / "bank.sqlite", embedder=other) as again:
        assert len(again) == 2_500


def test_the_next_page_is_made_ready_while_one_is_being_stored(bank: MemoryBank, tmp_path: Path) -> None:
    """Somebody else holds the file, so the first page cannot be stored; the second is read all the same."""
    holder = sqlite3.connect(tmp_path / "bank.sqlite", isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    with ThreadPoolExecutor(1) as work:
        read = threading.Event()
        job = work.submit(bank.append_many, until(2_000, read.set))
        assert read.wait(30)
        assert len(bank) == 0
        holder.execute("ROLLBACK")
        holder.close()
        assert len(job.result()) == 2_000


def test_nothing_is_embedded_for_what_the_page_before_holds(tmp_path: Path) -> None:
    class Counting(HashEmbedder):
        texts = 0

        def embed(self, texts: Sequence[str]) -> Vectors:
            self.texts += len(texts)
            return super().embed(texts)

    counting = Counting()
    with open_bank(tmp_path / "bank.sqlite", embedder=counting) as bank:
        made = bank.append_many(map(draft, [*range(1_024), *range(1_024)]))
        assert made[:1_024] == made[1_024:] == bank.experiences()
        assert counting.texts == 1_024 * (1 + len(made[0].items))


def test_ahead() -> None:
    made: list[int] = []

    def things() -> Iterator[int]:
        for number in range(3):
            made.append(number)
            yield number

    ahead = Ahead(things())
    ahead.look()
    ahead.look()
    assert made == [0]
    assert [ahead.next(), ahead.next(), ahead.next(), ahead.next()] == [0, 1, 2, None]

    def failing() -> Iterator[int]:
        yield 1
        raise OSError("gone")

    ahead = Ahead(failing())
    assert ahead.next() == 1
    ahead.look()
    with pytest.raises(OSError, match="gone"):
        ahead.next()
    assert ahead.next() is None
