"""A scope shows nothing of another: no id, no score, no count, no gap in its numbers."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from rb_dspy.bank import MemoryBank
from rb_dspy.errors import InputError, UnknownScope
from rb_dspy.schema import Verdict
from rb_dspy.testing.embedder import HashEmbedder
from tests.bank.helpers import a_draft, a_rollout, a_task, add, open_bank
from tests.bank.postgres_server import PostgresServer

WORDS = ("sort the numbers", "sort the words", "buy a lamp", "walk the dog")

appends = st.tuples(
    st.just("append"), st.integers(0, 5), st.sampled_from(WORDS), st.integers(0, 3), st.sampled_from(("", "r1", "r2"))
)
reads = st.tuples(
    st.just("retrieve"), st.integers(0, 6), st.sampled_from(WORDS), st.sampled_from(("experience", "item"))
)
operations = st.lists(st.tuples(st.sampled_from("ab"), st.one_of(appends, reads)), max_size=25)


def do(bank: MemoryBank, operation: tuple[Any, ...]) -> object:
    if operation[0] == "append":
        _, task, words, lessons, run = operation
        return plain(add(bank, f"t{task}", words, lessons, run_id=run))
    _, k, words, unit = operation
    return [plain(match) for match in bank.retrieve(words, k, unit, exclude_tasks=["t1"])]


def plain(model: Any) -> object:
    return model.model_dump(exclude={"created_at"})


def counts(bank: MemoryBank) -> object:
    return bank.stats().model_dump(exclude={"bytes_on_disk", "embedder", "dimension"})  # these are the whole bank's


@given(calls=operations)
def test_a_scope_behaves_as_if_it_were_alone(
    calls: list[tuple[str, tuple[Any, ...]]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("scopes")
    compare(calls, folder / "shared.sqlite", folder / "alone.sqlite")


@settings(max_examples=settings().max_examples // 5)
@given(calls=operations)
def test_a_scope_in_postgresql_behaves_as_if_it_were_alone(
    postgres_server: PostgresServer, postgres_template: str, calls: list[tuple[str, tuple[Any, ...]]]
) -> None:
    names = [postgres_server.new_database(postgres_template) for _ in range(2)]
    compare(calls, *map(postgres_server.url, names))
    for name in names:
        postgres_server.drop(name)


def compare(calls: list[tuple[str, tuple[Any, ...]]], shared: str | Path, alone: str | Path) -> None:
    """Scope ``a`` answers in a bank with another scope as it does in a bank of its own."""
    banks = {scope: open_bank(shared, scope) for scope in "ba"}
    lonely = open_bank(alone, "a")
    for scope, operation in calls:
        result = do(banks[scope], operation)
        if scope == "a":
            assert result == do(lonely, operation)
    mine = banks["a"]
    assert mine.items() == lonely.items()
    assert [plain(experience) for experience in mine.experiences()] == [plain(e) for e in lonely.experiences()]
    assert (len(mine), mine.seen_tasks(), counts(mine)) == (len(lonely), lonely.seen_tasks(), counts(lonely))
    own = {id for each in mine.experiences() for id in (each.id, *(item.id for item in each.items))}
    for other in banks["b"].experiences():
        for id in {other.id, *(item.id for item in other.items)} - own:
            with pytest.raises(InputError):
                mine.get(id)
    for bank in (lonely, *banks.values()):
        bank.close()


def test_a_small_scope_beside_a_large_one_gets_all_it_asks_for(url: str | Path) -> None:
    with open_bank(url, "large") as large:
        for n in range(100):
            drafts = [a_draft(f"Sort {m} of {n}") for m in range(20)]
            task = a_task(f"t{n}", "sort the numbers")
            large.append(task, a_rollout(f"t{n}"), Verdict(label="success"), drafts, run_id="r")
        assert len(large) == 2000
    with open_bank(url, "small") as small:
        for n in range(10):
            add(small, f"s{n}", f"walk dog number {n}")
        for k in (1, 5, 10):
            assert len(small.retrieve("sort the numbers", k=k)) == k
            found = small.retrieve("sort 3 numbers", k=k, unit="item")
            assert [match.task_id[0] for match in found] == ["s"] * k


def test_unknown_scope_names_the_known(url: str | Path) -> None:
    for scope in ("customers", "internal"):
        open_bank(url, scope).close()
    expected = r"no scope 'costumers'; did you mean 'customers'\? known: customers, internal"
    with pytest.raises(UnknownScope, match=expected):
        open_bank(url, "costumers", create=False)
    with open_bank(url, "internal", create=False) as bank:
        assert bank.scopes() == ["customers", "internal"]


def test_shown_lessons_of_another_scope_leave_no_trace(caplog: pytest.LogCaptureFixture) -> None:
    with open_bank() as theirs, MemoryBank.open(None, scope="own", embedder=HashEmbedder()) as own:
        shown = add(theirs, "t1", lessons=2).items
        mine = add(own, "t1", lessons=1).items
        learned = own.append(a_task("t2"), a_rollout("t2"), Verdict(label="success"), [], shown=[*shown, *mine])
        assert learned.shown == tuple(item.id for item in mine)
        own.record(a_task("t3"), a_rollout("t3"), shown=shown)
        assert own.pending()[0].shown == ()
    assert [record.getMessage() for record in caplog.records] == [
        "scope 'own': 2 shown lessons of other scopes are not noted"
    ] * 2
