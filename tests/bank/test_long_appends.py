"""A long list goes in by pages; the next one is made ready while one is being stored, and nobody notices."""

import gc
import pickle
import sqlite3
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rb_dspy.bank import MemoryBank
from rb_dspy.bank.ahead import Ahead
from rb_dspy.bank.sqlite.store import SqliteStore
from rb_dspy.bank.stored import stored
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
        bank.append_many(until(2_400, fail))
    assert type(caught.value) is error
    # The page before it; an interrupt takes back what had not begun to be written.
    assert len(bank) in ((2_048, 0) if error is KeyboardInterrupt else (2_048,))
    assert len(bank.append_many(map(draft, range(2_400)))) == 2_400
    assert len(bank) == 2_400


def test_a_list_may_use_the_bank_that_it_goes_into(bank: MemoryBank) -> None:
    made = bank.append_many(until(4_500, lambda: add(bank, "other")))
    assert [experience.task.id for experience in made] == [f"t{number}" for number in range(4_500)]
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


def test_what_many_give_is_a_sequence(bank: MemoryBank) -> None:
    """Each is put together once, when it is looked at."""
    add(bank, "other")
    made = bank.append_many(map(draft, range(4)))
    read = bank.experiences()[1:]
    assert isinstance(made, Sequence)
    assert made[-1] is made[3]
    assert (made[3], made[1:3], made[::-2], made[9:]) == (read[3], read[1:3], read[::-2], [])
    assert list(reversed(made)) == read[::-1]
    assert read[2] in made
    assert made.index(read[2]) == 2
    assert made == read
    assert read == made
    assert made == tuple(read)
    assert made == bank.append_many(map(draft, range(4)))  # known: read, not put together
    assert made != read[:3]
    assert made != [*read[:3], read[0]]
    assert made != "four"
    assert pickle.loads(pickle.dumps(made)) == read
    for place in (4, -5):
        with pytest.raises(IndexError):
            made[place]
    assert not bank.append_many([])


def test_the_rest_is_done_meanwhile_once(store: SqliteStore) -> None:
    calls: list[bool] = []

    def wait(is_done: Callable[[], bool]) -> None:
        calls.append(is_done())
        while not is_done():
            time.sleep(0.001)

    batch = [new("a", "one"), new("b", "two")]
    placed = store.place(SCOPE, batch, meanwhile=wait)
    assert len(calls) == 1
    assert names(store) == ["a", "b"]
    read = store.experiences(SCOPE, after=0, limit=9)
    assert [stored(given, SCOPE, where) for given, where in zip(batch, placed, strict=True)] == read
    began = time.monotonic()
    with pytest.raises(UnicodeEncodeError):
        store.place(SCOPE, [new("bad", "c", run_id="\ud800")], meanwhile=wait)
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
        job = work.submit(store._write, orphan)
        while len(store._writer._waiting) < 1:
            pass
        made = work.submit(store.place, SCOPE, [new("a", "one")], meanwhile=lambda _: calls.append("meanwhile"))
        while len(store._writer._waiting) < 2:
            pass
        holder.execute("ROLLBACK")
        holder.close()
        assert job.exception() is not None
        (where,) = made.result()
    given = stored(new("a", "one"), SCOPE, where)
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
        made = bank.append_many(map(draft, range(4_500)))
        assert [experience.task.id for experience in made] == [f"t{number}" for number in range(4_500)]
        assert len(bank) == 4_500
        assert bank.retrieve(made[3_000].task.instruction, 1)
        assert bank.doctor() == []
    with open_bank(tmp_path / "bank.sqlite", embedder=other) as again:
        assert len(again) == 4_500


def test_the_next_page_is_made_ready_while_one_is_being_stored(bank: MemoryBank, tmp_path: Path) -> None:
    """Somebody else holds the file, so the first page cannot be stored; the second is read all the same."""
    holder = sqlite3.connect(tmp_path / "bank.sqlite", isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    with ThreadPoolExecutor(1) as work:
        read = threading.Event()
        job = work.submit(bank.append_many, until(4_000, read.set))
        assert read.wait(30)
        assert len(bank) == 0
        holder.execute("ROLLBACK")
        holder.close()
        assert len(job.result()) == 4_000


def test_nothing_is_embedded_for_what_the_page_before_holds(tmp_path: Path) -> None:
    class Counting(HashEmbedder):
        texts = 0

        def embed(self, texts: Sequence[str]) -> Vectors:
            self.texts += len(texts)
            return super().embed(texts)

    counting = Counting()
    with open_bank(tmp_path / "bank.sqlite", embedder=counting) as bank:
        made = bank.append_many(map(draft, [*range(2_048), *range(2_048)]))
        assert made[:2_048] == made[2_048:] == bank.experiences()
        assert counting.texts == 2_048 * (1 + len(made[0].items))


def a_list(last: int, made: list[int], error: Exception | None = None) -> Iterator[int]:
    for number in range(last):
        made.append(number)
        yield number
    if error is not None:
        raise error


def test_pages_are_made_once_and_in_order() -> None:
    made: list[int] = []
    ahead = Ahead(a_list(7, made), size=2, most=5)
    assert ahead.next() == [0, 1]
    assert made == [0, 1]
    ahead.look(lambda: True)  # a page in any case
    assert made == [0, 1, 2, 3]
    ahead.look(lambda: len(made) == 5)
    assert made == [0, 1, 2, 3, 4]
    ahead.look(lambda: False)  # and no more than it may
    assert made == [*range(7)]
    assert [ahead.next(), ahead.next(), ahead.next(), ahead.next()] == [[2, 3], [4, 5], [6], []]


@pytest.mark.parametrize("looks", [True, False])
def test_an_error_comes_with_the_page_that_it_belongs_to(looks: bool) -> None:
    ahead = Ahead(a_list(5, [], OSError("gone")), size=2, most=9)
    if looks:
        ahead.look(lambda: False)
    assert [ahead.next(), ahead.next()] == [[0, 1], [2, 3]]
    with pytest.raises(OSError, match="gone"):
        ahead.next()
    assert ahead.next() == []


class Loop:
    """Garbage that only Python's collector sees."""

    def __init__(self) -> None:
        self.itself = self


@pytest.mark.parametrize("where", ["memory", "file", "fork"])
def test_what_a_long_list_throws_away_does_not_pile_up(tmp_path: Path, where: str) -> None:
    alive: weakref.WeakSet[Loop] = weakref.WeakSet()
    most = 0

    def drafts() -> Iterator[ExperienceDraft]:
        nonlocal most
        for number in range(6_500):
            alive.add(Loop())
            most = max(most, len(alive))
            yield draft(number)

    with open_bank(None if where == "memory" else tmp_path / "bank.sqlite") as bank:
        made = bank.fork() if where == "fork" else bank
        made.append_many(drafts())
    assert most <= 2 * 2_048 + 256
    assert gc.isenabled()
