"""What a fork finds by words is what one bank of the same content finds, and its base's words are not read again."""

from __future__ import annotations

import random
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st
from numpy.typing import NDArray

from rb_dspy.bank import MemoryBank
from rb_dspy.bank.followers import LexicalFollower
from rb_dspy.bank.index.layered_lexical import LayeredLexicalIndex
from rb_dspy.bank.index.lexical import LexicalIndex
from rb_dspy.bank.index.word_view import search
from rb_dspy.bank.memory.store import MemoryStore
from rb_dspy.bank.parts import UNITS, Unit
from rb_dspy.bank.sqlite.store import SqliteStore
from rb_dspy.errors import StorageError
from rb_dspy.schema import Verdict
from tests.bank.helpers import a_draft, a_rollout, a_task, add, open_bank
from tests.bank.store_cases import DIMENSION, SCOPE, append, new

WORDS = ["sort", "sorting", "numbers", "page", "a_b", "read", "the", "lamp", "buy"]
Rows = list[tuple[int, str]]
TEXTS = st.lists(st.lists(st.sampled_from(WORDS), max_size=12).map(" ".join), max_size=12)


def anything(seqs: Sequence[int]) -> NDArray[np.bool_]:
    return np.ones(len(seqs), np.bool_)


def one_index(rows: Rows) -> LexicalIndex:
    index = LexicalIndex(stemmed=True)
    index.add(rows)
    return index


@pytest.fixture(params=["memory", "file"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Path | None:
    return tmp_path / "bank.sqlite" if request.param == "file" else None


# The index


@given(
    layers=st.lists(st.tuples(TEXTS, TEXTS), min_size=1, max_size=4),
    query=st.lists(st.sampled_from(WORDS), min_size=1, max_size=5).map(" ".join),
    k=st.integers(1, 60),
    hidden=st.sets(st.integers(1, 60)),
    back=st.integers(0, 10),
)
def test_layers_give_what_one_index_of_their_rows_gives(
    layers: list[tuple[list[str], list[str]]], query: str, k: int, hidden: set[int], back: int
) -> None:
    """Forks of forks, each of which goes on after the next was made: with the same numbers, and not seen by it.

    ``back``: asked for as it was some rows ago.
    """

    def allowed(seqs: Sequence[int]) -> NDArray[np.bool_]:
        return np.array([seq not in hidden for seq in seqs], np.bool_)

    rows: Rows = []
    index: LexicalIndex | LayeredLexicalIndex = LexicalIndex(stemmed=True)
    for mine, later in layers:
        new = list(enumerate(mine, len(rows) + 1))
        index.add(new)
        rows += new
        fork = LayeredLexicalIndex(index.view.at(len(rows)), stemmed=True)
        index.add(list(enumerate(later, len(rows) + 1)))
        index = fork
    mark = max(0, len(rows) - back)
    view, whole = index.view.at(mark), one_index(rows[:mark]).view
    assert (len(view), view.tokens, view.mark) == (len(whole), whole.tokens, whole.mark)
    assert search(view, query, k, allowed) == search(whole, query, k, allowed)


def test_a_later_number_gives_the_view_itself() -> None:
    index = one_index([(3, "sort"), (5, "sort numbers")])
    before, fork = index.view, LayeredLexicalIndex(index.view.at(4), stemmed=True)
    index.add([(9, "sort")])
    assert before.at(9) is before
    assert (before.mark, len(before), fork.view.at(100).mark, len(fork.view.at(100))) == (5, 2, 3, 1)


def test_what_is_common_is_counted_at_the_views_number() -> None:
    """In large views words of one row in four do not count: of the view's rows, and not of those that came since."""
    chance = random.Random(0)
    vocabulary = ["often", "seldom", *WORDS]

    def text(place: int) -> str:
        common = "often" if chance.random() < (0.9 if place < 3000 else 0.01) else "seldom"
        return " ".join([common, *chance.choices(vocabulary[2:], k=6), f"n{place % 50}"])

    rows = [(2 * n, text(n)) for n in range(1, 9001)]
    index = LexicalIndex(stemmed=True)
    for start in range(0, 9000, 500):  # each question is asked of growing rows, and counts are kept between them
        index.add(rows[start : start + 500])
        search(index.view, "often seldom the n7", 5, anything)
    for mark in (6000, 18_000, 3000, 4500 * 2, 6001):
        below = index.view.at(mark)
        fork = LayeredLexicalIndex(below, stemmed=True)
        own = [(mark + n, f"seldom often lamp n{n % 9}") for n in range(1, 1500)]
        fork.add(own)
        for view, content in ((below, rows[: len(below)]), (fork.view, rows[: len(below)] + own)):
            whole = one_index(content).view
            for query in ("often seldom the n7", "often", "seldom lamp", "the lamp n3 often"):
                assert search(view, query, 20, anything) == search(whole, query, 20, anything)


# The bank


def _filled(bank: MemoryBank, numbers: range, chance: random.Random) -> None:
    for n in numbers:
        lessons = [a_draft(" ".join(chance.choices(WORDS, k=2)), f"{n} " + " ".join(chance.choices(WORDS, k=9)))]
        task = a_task(f"t{n}", " ".join(chance.choices(WORDS, k=8)))
        bank.append(task, a_rollout(task.id), Verdict(label="success", reasons="seen"), lessons, run_id="r")


def _told(bank: MemoryBank) -> list[object]:
    return [
        [(hit.score, hit.experience_id, hit.items) for hit in bank.retrieve(query, 9, unit, mode=mode, **more)]
        for query in ("sort the numbers", "buy a lamp a_b", "7 page")
        for unit in UNITS
        for mode in ("lexical", "hybrid")
        for more in ({}, {"exclude_tasks": ["t3", "t7"]})  # type: ignore[var-annotated]
    ]


@pytest.mark.parametrize("asked_before", [True, False])
def test_a_fork_finds_what_its_base_found_at_its_number(place: Path | None, asked_before: bool) -> None:
    """Whatever is appended to the base, edited or deleted there, and whether anybody had asked by then or not."""
    chance = random.Random(1)
    with open_bank(place) as bank, open_bank() as whole:
        for each in (bank, whole):
            _filled(each, range(20), random.Random(2))
            each.delete(each.items()[5].id)
            each.edit(each.items()[3].id, content="Buy the lamp.")
        expected = _told(whole)
        fork, inner = bank.fork(), bank.fork().fork()
        if asked_before:
            assert _told(bank) == _told(fork) == expected
        _filled(bank, range(20, 40), chance)
        bank.delete(bank.items()[0].id)
        bank.edit(bank.items()[7].id, content="Sort the numbers of the page.")
        bank.delete(bank.experiences()[8].id)
        assert _told(bank) != expected
        assert _told(fork) == _told(inner) == expected


@pytest.mark.parametrize("seed", range(4))
def test_forks_that_go_on_find_what_one_bank_does(place: Path | None, seed: int) -> None:
    """Appends, edits and deletes on either side, in a fork and in a fork of it, under numbers that the base has too."""
    chance = random.Random(seed)

    def change(bank: MemoryBank, start: int, seed: int) -> None:
        inside = random.Random(seed)
        _filled(bank, range(start, start + 6), inside)
        items = bank.items()
        bank.edit(inside.choice(items).id, content=" ".join(inside.choices(WORDS, k=5)) + f" {start}")
        bank.delete(inside.choice(items[:-1]).id)

    def fill(bank: MemoryBank) -> None:
        _filled(bank, range(10), random.Random(seed))

    with open_bank(place) as bank, open_bank() as whole, open_bank() as inner_whole:
        for each in (bank, whole, inner_whole):
            fill(each)
        fork = bank.fork()
        for each in (fork, whole, inner_whole):
            change(each, 100, seed)
        change(bank, 200, seed + 100)
        inner = fork.fork()
        change(inner, 300, seed + 200)
        change(inner_whole, 300, seed + 200)
        if chance.random() < 0.5:
            assert _told(inner) == _told(inner_whole)
        change(fork, 400, seed + 300)
        change(whole, 400, seed + 300)
        assert _told(inner) == _told(inner_whole)
        assert _told(fork) == _told(whole)


class Read:
    """Counts the texts that stores hand out to be indexed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.rows = 0
        for kind in (MemoryStore, SqliteStore):
            self._count(monkeypatch, kind)

    def _count(self, monkeypatch: pytest.MonkeyPatch, kind: Any) -> None:
        texts = kind.texts

        def counted(store: Any, scope: str, unit: Unit, *, after: int, limit: int) -> list[tuple[int, str]]:
            found: list[tuple[int, str]] = texts(store, scope, unit, after=after, limit=limit)
            self.rows += len(found)
            return found

        monkeypatch.setattr(kind, "texts", counted)


@pytest.mark.parametrize("mode", ["lexical", "hybrid"])
def test_a_fork_reads_no_words_of_its_base(place: Path | None, mode: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    read = Read(monkeypatch)
    with open_bank(place) as bank:
        _filled(bank, range(60), random.Random(0))
        forks = [bank.fork() for _ in range(10)]
        forks.append(forks[0].fork())
        for fork in forks:
            fork.retrieve("sort the numbers", unit="item", mode=mode)
        assert read.rows == 60  # once, for the base, by the first who asked
        for fork in forks:
            add(fork, "new", "sort the numbers")
            found = fork.retrieve("lesson of new", unit="item", mode=mode)
            assert found[0].task_id == "new"
        assert read.rows == 60 + len(forks)


def test_forks_of_a_snapshot_share_its_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_bank(tmp_path / "b") as bank:
        _filled(bank, range(20), random.Random(0))
        bank.snapshot("then")
        expected = _told(bank)
        _filled(bank, range(20, 30), random.Random(1))
    with open_bank(tmp_path / "b", at="then") as then:
        assert _told(then) == expected
        read = Read(monkeypatch)
        forks = [then.fork() for _ in range(3)]
        assert [_told(fork) for fork in forks] == [expected] * 3
        assert read.rows == 0


def test_no_more_is_indexed_than_was_asked_for() -> None:
    """A state of the past costs what it holds, not what came later."""
    store, index = MemoryStore(), LexicalIndex(stemmed=True)
    store.bind("test", DIMENSION)
    store.add_scope(SCOPE)
    append(store, SCOPE, [new(f"e{n}", f"i{n}") for n in range(10)])
    follower = LexicalFollower(store, SCOPE, "item", index)
    seqs = [item.seq for item in store.items(SCOPE)]
    for mark, found, indexed in ((seqs[2], 3, 3), (seqs[0], 1, 3), (store.mark(SCOPE), 10, 10)):
        assert (len(follower.view(mark)), len(index)) == (found, indexed)


def test_a_fork_outlives_its_base_in_memory_as_far_as_it_had_looked() -> None:
    bank = open_bank()
    _filled(bank, range(10), random.Random(0))
    fork = bank.fork()
    expected = _told(fork)
    bank.close()
    del bank
    assert _told(fork) == expected
    add(fork, "new", "a lantern")
    assert [hit.task_id for hit in fork.retrieve("lantern", mode="lexical")] == ["new"]


def test_a_fork_of_a_closed_file_says_so(tmp_path: Path) -> None:
    bank = open_bank(tmp_path / "b")
    _filled(bank, range(10), random.Random(0))
    fork = bank.fork()
    fork.retrieve("sort")
    bank.close()
    with pytest.raises(StorageError, match="closed"):
        fork.retrieve("sort", mode="lexical")


def test_a_fork_stays_as_it_is_when_its_base_is_made_new(place: Path | None) -> None:
    with open_bank(place) as bank:
        _filled(bank, range(10), random.Random(0))
        asked, unasked = bank.fork(), bank.fork()
        expected = _told(asked)
        bank.reindex()
        _filled(bank, range(10, 15), random.Random(1))
        assert _told(asked) == _told(unasked) == expected
        assert _told(bank.fork()) == _told(bank) != expected


def test_words_of_another_scope_weigh_nothing_in_a_fork(tmp_path: Path) -> None:
    with open_bank(tmp_path / "b", "one") as one, open_bank(tmp_path / "b", "two") as two:
        _filled(one, range(10), random.Random(0))
        fork = one.fork()
        add(fork, "own", "buy a lamp")
        before = _told(fork)
        again = one.fork()
        _filled(two, range(50), random.Random(1))
        add(again, "own", "buy a lamp")
        scores = [hit.score for hit in again.retrieve("buy a lamp", 9, mode="lexical")]
        assert _told(fork) == before
        assert scores == [hit.score for hit in fork.retrieve("buy a lamp", 9, mode="lexical")]


def test_forks_are_asked_from_threads_while_their_base_goes_on(place: Path | None) -> None:
    with open_bank(place) as bank:
        _filled(bank, range(20), random.Random(0))
        expected = _told(bank)
        forks, wrong = [bank.fork() for _ in range(4)], []

        def use(fork: MemoryBank) -> None:
            for _ in range(5):
                if _told(fork) != expected:
                    wrong.append(fork)
            add(fork, "new", "a lantern")
            if [hit.task_id for hit in fork.retrieve("lantern", mode="lexical")] != ["new"]:
                wrong.append(fork)

        threads = [threading.Thread(target=use, args=(fork,)) for fork in forks]
        for thread in threads:
            thread.start()
        for n in range(20, 40):
            _filled(bank, range(n, n + 1), random.Random(n))
            bank.retrieve("sort the numbers", mode="lexical")
        for thread in threads:
            thread.join()
        assert wrong == []
