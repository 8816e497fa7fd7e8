"""A lesson that many experiences gave verbatim: what is done with it grows with its rows, not faster.

Work is counted, not timed: steps of SQLite's virtual machine, rows that were looked at, rows that were asked for.
"""

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rb_dspy.bank import MemoryBank
from rb_dspy.bank.admission import item_id
from rb_dspy.bank.interface import BankStore
from rb_dspy.bank.memory.rows import ItemRow
from rb_dspy.bank.memory.store import MemoryStore
from rb_dspy.bank.parts import Match, Source, Unit
from rb_dspy.bank.sqlite import stats
from rb_dspy.bank.sqlite.check_rows import damaged_rows
from rb_dspy.bank.sqlite.scoped import Scope
from rb_dspy.bank.sqlite.store import SqliteStore
from rb_dspy.schema import ExperienceDraft, MemoryItem, Verdict
from tests.bank.helpers import a_draft, a_rollout, a_task, add, open_bank
from tests.bank.store_cases import DIMENSION, SCOPE, a_store, append, give, lesson, new, vector

FEW, MANY = 50, 200
GROWTH = 1.5 * MANY / FEW
"""More than linear growth, a constant part and page sizes give; a fraction of what quadratic growth does."""

ID = lesson("shared").id


class Work:
    """Counts what is done: SQLite's steps, in hundreds, and rows in memory that were looked at."""

    def __init__(self) -> None:
        self.done = 0

    def step(self) -> int:
        self.done += 1
        return 0

    def of(self, call: Callable[[], object]) -> int:
        """What ``call`` takes."""
        before = self.done
        call()
        return self.done - before


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> Work:
    counted = Work()
    connect, lives = sqlite3.connect, ItemRow.lives

    def connected(*args: Any, **kwargs: Any) -> sqlite3.Connection:
        connection: sqlite3.Connection = connect(*args, **kwargs)
        connection.set_progress_handler(counted.step, 100)
        return connection

    def looked_at(row: ItemRow, at: int) -> bool:
        counted.step()
        return lives(row, at)

    monkeypatch.setattr(sqlite3, "connect", connected)
    monkeypatch.setattr(ItemRow, "lives", looked_at)
    return counted


@pytest.fixture(params=["memory", "sqlite"])
def made(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[int], BankStore]]:
    """Makes a store of which so many experiences gave one lesson, and one more gave another."""
    stores: list[BankStore] = []

    def make(number: int) -> BankStore:
        path = tmp_path / f"{number}.sqlite"
        store: BankStore = SqliteStore(path) if request.param == "sqlite" else MemoryStore()
        stores.append(store)
        store.bind("test", DIMENSION)
        store.add_scope(SCOPE)
        append(store, SCOPE, [new("other", "other")])
        append(store, SCOPE, [new(f"e{n}", "shared", task=f"t{n}") for n in range(number)])
        return store

    yield make
    for store in stores:
        store.close()


def _fork(store: BankStore) -> MemoryStore:
    return MemoryStore(store, SCOPE)


def _edited(store: BankStore) -> BankStore:
    store.edit(SCOPE, ID, lesson("better", id=ID), vector("better"), note="")
    return store


CALLS: dict[str, Callable[[BankStore], object]] = {
    "matches of items": lambda store: store.matches(SCOPE, "item", range(1, store.mark(SCOPE) + 1)),
    "matches of experiences": lambda store: store.matches(SCOPE, "experience", range(1, store.mark(SCOPE) + 1)),
    "all experiences": lambda store: store.experiences(SCOPE, after=0, limit=9 * MANY),
    "the rows": lambda store: store.item_rows(SCOPE, "item", ID),
    "edit": _edited,
    "delete": lambda store: store.remove(SCOPE, kind="delete", source=Source("item", ID), descendants=True, note=""),
}


def _adopted(store: BankStore) -> BankStore:
    """A fork where something happened to the item."""
    fork = _fork(store)
    give(fork, "mine", "shared")
    return fork


STATES: dict[str, Callable[[BankStore], BankStore]] = {
    "store": lambda store: store,
    "fork": _fork,
    "fork that gave it too": _adopted,
    "fork of an edited store": lambda store: _fork(_edited(store)),
    "fork of a fork": lambda store: _fork(_adopted(store)),
}


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("call", CALLS)
def test_work_grows_with_the_rows(made: Callable[[int], BankStore], work: Work, call: str, state: str) -> None:
    few, many = (STATES[state](made(number)) for number in (FEW, MANY))
    assert work.of(lambda: CALLS[call](many)) <= GROWTH * work.of(lambda: CALLS[call](few)) + 50


@pytest.mark.parametrize("state", STATES)
def test_an_append_grows_with_the_rows(made: Callable[[int], BankStore], work: Work, state: str) -> None:
    few, many = (STATES[state](made(number)) for number in (FEW, MANY))
    assert work.of(lambda: give(many, "e", "shared")) <= GROWTH * work.of(lambda: give(few, "e", "shared")) + 50


def test_a_batch_of_them_looks_at_each_row_a_few_times(work: Work) -> None:
    store = MemoryStore()
    store.add_scope(SCOPE)
    batch = [new(f"e{n}", "shared") for n in range(MANY)]
    assert work.of(lambda: append(store, SCOPE, batch)) < 10 * MANY


def test_rows_far_from_an_edit_are_found(made: Callable[[int], BankStore]) -> None:
    store = _edited(made(5))
    for number in range(3):
        append(store, SCOPE, [new(f"far {number} {n}") for n in range(4000)])  # an experience takes a number
    give(store, "late", "better")
    fork = _fork(store)
    item = fork.edit(SCOPE, ID, lesson("best", id=ID), vector("best"), note="")
    assert [provenance.experience_id for provenance in item.provenances] == [*(f"e{n}" for n in range(5)), "late"]


def test_what_was_edited_with_very_many_rows_can_be_edited_in_a_fork() -> None:
    store = MemoryStore()
    store.bind("test", DIMENSION)
    store.add_scope(SCOPE)
    append(store, SCOPE, [new(f"e{n}", "shared") for n in range(10_200)])
    fork = _fork(_edited(store))
    assert len(fork.edit(SCOPE, ID, lesson("best", id=ID), vector("best"), note="").provenances) == 10_200


# What a fork of a fork knows of each row


@pytest.mark.parametrize("depth", [0, 1, 2, 3])
@pytest.mark.parametrize("labels", [("failure", "success"), ("success", "failure")])
def test_polarity_is_that_of_the_earliest_giver_left(depth: int, labels: Sequence[str]) -> None:
    store: BankStore = MemoryStore()
    store.bind("test", DIMENSION)
    store.add_scope(SCOPE)
    for number, label in enumerate(labels):
        give(store, f"e{number}", "shared", label=label)
    for _ in range(depth):
        store = _fork(store)
    store.remove(SCOPE, kind="delete", source=Source("experience", "e0"), descendants=False, note="")
    assert [item.polarity for item in store.items(SCOPE)] == [labels[1]]
    assert store.stats(SCOPE).by_polarity == {labels[1]: 1}


# Retrieval


@pytest.mark.parametrize("unit", ["item", "experience"])
def test_only_what_is_shared_is_read_twice(unit: Unit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    connect = sqlite3.connect

    def connected(*args: Any, **kwargs: Any) -> sqlite3.Connection:
        connection: sqlite3.Connection = connect(*args, **kwargs)
        connection.set_trace_callback(said.append)
        return connection

    monkeypatch.setattr(sqlite3, "connect", connected)
    store = SqliteStore(tmp_path / "bank.sqlite")
    store.bind("test", DIMENSION)
    store.add_scope(SCOPE)
    append(store, SCOPE, [new(f"e{n}", f"lesson {n}") for n in range(5)])

    def shown() -> tuple[int, list[str]]:
        said.clear()
        found = store.matches(SCOPE, unit, range(1, store.mark(SCOPE) + 1))
        reads = [one for one in said if "json_each" in one and one.startswith("SELECT")]
        return len(reads), sorted({item.title for match in found.values() for item in match.items})

    once, titles = shown()
    assert (once, len(titles)) == (1, 5)
    give(store, "again", "lesson 3")
    assert shown() == (2, titles)
    store.close()


def test_an_item_whose_id_became_bytes_is_left_out(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "bank.sqlite")
    store.bind("test", DIMENSION)
    store.add_scope(SCOPE)
    append(store, SCOPE, [new("e1", "first"), new("e2", "second")])
    with sqlite3.connect(tmp_path / "bank.sqlite") as connection:
        connection.execute("UPDATE items SET id = CAST(id AS BLOB) WHERE id = ?", [lesson("first").id])
    connection.close()
    found = store.matches(SCOPE, "item", range(1, store.mark(SCOPE) + 1))
    assert [match.experience_id for match in found.values()] == ["e2"]
    store.close()


def _bank(number: int, path: Path | None = None) -> MemoryBank:
    """A lesson of so many experiences, which is nearer to the query than two others."""
    bank = open_bank(path)
    for id in ("first", "second"):
        add(bank, id)
    same = [a_draft("Check", "Check the answer twice.")]
    drafts = [
        ExperienceDraft(
            task=a_task(f"t{n}", f"do {n}"),
            trajectories=(a_rollout(f"t{n}"),),
            verdicts=(Verdict(label="success"),),
            drafts=tuple(same),
        )
        for n in range(number)
    ]
    bank.append_many(drafts)
    return bank


class Asked:
    """Counts the rows that stores have to read: for each call, all of each item that is shown."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, of: type[MemoryStore] | type[SqliteStore]) -> None:
        self.rows = 0
        matches, item_rows = of.matches, of.item_rows

        def counted(store: Any, scope: str, unit: Unit, seqs: Sequence[int], at: int | None = None) -> dict[int, Match]:
            found = matches(store, scope, unit, seqs, at)
            provenances = {item.id: len(item.provenances) for match in found.values() for item in match.items}
            self.rows += sum(provenances.values())
            return found

        def named(store: Any, *args: Any) -> Any:
            found = item_rows(store, *args)
            self.rows += len(found)
            return found

        monkeypatch.setattr(of, "matches", counted)
        monkeypatch.setattr(of, "item_rows", named)


@pytest.mark.parametrize("mode", ["dense", "lexical", "hybrid"])
def test_rows_that_tie_are_one_winner(mode: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Asked(monkeypatch, MemoryStore)
    bank = _bank(1300)
    found = bank.retrieve("Check the answer twice. page", k=3, unit="item", mode=mode)
    assert [match.items[0].title for match in found] == ["Check", "Lesson 0 of second", "Lesson 0 of first"]
    assert asked.rows < 3 * 1300  # not once for each time that more is asked for


def test_retrieval_grows_with_the_rows(work: Work, tmp_path: Path) -> None:
    few, many = (_bank(number, tmp_path / f"{number}.sqlite") for number in (FEW, MANY))

    def takes(bank: MemoryBank) -> int:
        return work.of(lambda: bank.retrieve("Check the answer twice.", k=3, unit="item"))

    assert takes(many) <= GROWTH * takes(few) + 50
    assert takes(many.fork()) <= GROWTH * takes(few.fork()) + 50
    for bank in (few, many):
        bank.close()


def test_the_best_row_of_an_item_is_what_is_shown() -> None:
    bank = _bank(30)
    found: list[MemoryItem] = [match.items[0] for match in bank.retrieve("Check the answer twice.", k=9, unit="item")]
    assert len(found) == len({item.id for item in found}) == 3
    (best,) = bank.retrieve("Check the answer twice.", k=1, unit="item")
    assert best.task_id == "t29"  # the newest among equals
    excluded = bank.retrieve("Check the answer twice.", k=1, unit="item", exclude_tasks=["t29", "t28"])
    assert excluded[0].task_id == "t27"


def test_a_row_whose_scope_was_changed_is_not_shown(tmp_path: Path) -> None:
    with _bank(3, tmp_path / "bank.sqlite") as bank:
        (lost,) = bank.retrieve("Lesson 0 of first", k=1, unit="item")
        database = sqlite3.connect(tmp_path / "bank.sqlite", isolation_level=None)
        database.execute("UPDATE items SET scope_id = 77 WHERE id = ?", (lost.items[0].id,))
        database.close()
        shown = {match.items[0].id for match in bank.retrieve("Lesson 0 of first", k=9, unit="item")}
        assert shown
        assert lost.items[0].id not in shown
        assert bank.doctor()


@pytest.mark.parametrize("what", ["stats", "check"])
def test_counting_and_checking_grow_with_the_rows(tmp_path: Path, what: str) -> None:
    took = []
    for rows in (FEW, MANY):
        store = a_store(tmp_path / f"{rows}.sqlite")
        append(store, SCOPE, [new(f"e{number}", "shared") for number in range(rows)])
        work = Work()
        counted = sqlite3.connect(tmp_path / f"{rows}.sqlite")
        counted.set_progress_handler(work.step, 100)
        if what == "check":
            scope = Scope(1, SCOPE, "")
            took.append(work.of(lambda counted=counted, scope=scope: list(damaged_rows(counted, scope))))
        else:
            query = str(stats._LATER)
            took.append(work.of(lambda counted=counted, query=query: counted.execute(query, {"scope": 1}).fetchall()))
        counted.close()
        store.close()
    assert took[1] <= GROWTH * max(took[0], 1), took


@pytest.mark.parametrize("how", ["delete", "edit"])
def test_an_id_that_an_import_brought_before_its_experience_counts_once(tmp_path: Path, how: str) -> None:
    store = a_store(tmp_path / "bank.sqlite")
    give(store, "e0", "one")
    store.edit(SCOPE, lesson("one").id, lesson("two"), vector("two"), note="")
    id = item_id("e", lesson("one").digest)
    append(store, SCOPE, [replace(new("f", "one"), items=(lesson("one", id=id),))])
    if how == "delete":
        store.remove(SCOPE, kind="delete", source=Source("item", id), descendants=False, note="")
    else:
        store.edit(SCOPE, id, lesson("three"), vector("three"), note="")
    (made,) = give(store, "e", "one").items
    assert (made.id == id) == (how == "delete")  # what was edited says something else, and keeps its id
    texts = ["On two", "On one"] if how == "delete" else ["On two", "On three", "On one"]
    assert [item.title for item in store.items(SCOPE)] == texts
    stats = store.stats(SCOPE)
    assert (stats.items, stats.removed, store.count(SCOPE)) == (len(texts), 0, len(texts))
    assert list(store.check()) == []
    store.close()
