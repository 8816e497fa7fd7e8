"""A long list goes in by pages; the next one is read while one is being stored, and nobody notices."""

import pickle
import sqlite3
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rb_dspy.bank import MemoryBank
from rb_dspy.bank.pages import Pages
from rb_dspy.bank.sqlite.store import SqliteStore
from rb_dspy.errors import InputError
from rb_dspy.schema import Experience, ExperienceDraft, MemoryItem, Verdict
from tests.bank.helpers import a_draft, a_rollout, a_task, add, open_bank
from tests.bank.store_cases import DIMENSION, SCOPE, names, new


@pytest.fixture
def bank(tmp_path: Path) -> Iterator[MemoryBank]:
    with open_bank(tmp_path / "bank.sqlite") as made:
        yield made


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    made = SqliteStore(tmp_path / "bank.sqlite")
    made.bind("test", DIMENSION)
    made.add_scope(SCOPE)
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
        bank.append_many(until(700, fail))
    assert type(caught.value) is error
    assert len(bank) == 500  # the page before it
    assert len(bank.append_many(map(draft, range(700)))) == 700
    assert len(bank) == 700


def test_a_list_may_use_the_bank_that_it_goes_into(bank: MemoryBank) -> None:
    made = bank.append_many(until(1_200, lambda: add(bank, "other")))
    assert [experience.task.id for experience in made] == [f"t{number}" for number in range(1_200)]
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
    assert len(calls) == 1
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


def test_pages() -> None:
    pages = Pages(range(5), 2)
    pages.look_ahead()
    pages.look_ahead()
    assert [pages.next(), pages.next(), pages.next(), pages.next()] == [[0, 1], [2, 3], [4], []]

    def failing() -> Iterator[int]:
        yield 1
        raise OSError("gone")

    pages = Pages(failing(), 1)
    assert pages.next() == [1]
    pages.look_ahead()
    with pytest.raises(OSError, match="gone"):
        pages.next()
    assert pages.next() == []
