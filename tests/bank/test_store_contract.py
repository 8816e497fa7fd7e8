"""What every store of banks does, sentence by sentence of ``BankStore``.

To hold another store to it, import everything from here in a module of its own and give that a fixture ``kind``.
``later`` stands between two calls: whatever a store is by then, it goes on as if nothing had been in between.
"""

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from rb_dspy.bank import journal, vectors
from rb_dspy.bank.admission import text_digest
from rb_dspy.bank.interface import BankStore
from rb_dspy.bank.lineage import Member
from rb_dspy.bank.memory.store import MemoryStore
from rb_dspy.bank.parts import UNITS, NewExperience, Source, Unit, item_text, task_key
from rb_dspy.bank.sqlite.store import SqliteStore
from rb_dspy.errors import EmbedderMismatch, InputError, InvalidVector, StorageError, UnknownScope
from rb_dspy.protocols import Vectors
from rb_dspy.schema import Change, Experience, MemoryDraft, Removal, Task, Trajectory, Verdict
from tests.bank.store_cases import (
    DIMENSION,
    SCOPE,
    append,
    contents,
    embed,
    give,
    lesson,
    names,
    new,
    pending_id,
    rollout,
    vector,
    waiting,
)

EMBEDDER = ("test", DIMENSION)


@dataclass(frozen=True)
class Kind:
    """A kind of store: how an empty one is made, and what may come between two calls."""

    make: Callable[[Path], BankStore]
    bare: Callable[[Path], BankStore]
    """One that belongs to no embedder yet, with nothing in its scope."""
    later: Callable[[BankStore], BankStore] = lambda store: store
    scoped: bool = False
    """Whether it has the one scope only that it was made for."""


def ready(store: BankStore) -> BankStore:
    """A store that has its embedder and its scope."""
    assert store.bind(*EMBEDDER) == EMBEDDER
    store.add_scope(SCOPE)
    return store


def bare(store: BankStore) -> BankStore:
    store.add_scope(SCOPE)
    return store


def in_memory(folder: Path) -> BankStore:
    return ready(MemoryStore())


def on_file(folder: Path) -> BankStore:
    return ready(SqliteStore(folder / "bank.sqlite"))


def overlay(store: BankStore) -> BankStore:
    """An overlay of ``store``, which goes on and loses all it has."""
    over = MemoryStore(store, SCOPE)
    over.bind(*EMBEDDER)
    give(store, "noise", "noise", "also noise", task="noise")
    for item in store.items(SCOPE):
        store.edit(SCOPE, item.id, lesson(f"noise {item.id}", id=item.id), vector("noise"), note="noise")
    for name in names(store):
        store.remove(SCOPE, kind="delete", source=Source("experience", name), descendants=True, note="noise")
    store.record(SCOPE, rollout("waits in noise"))
    store.snapshot(SCOPE, "noise", "2026")
    return over


def bare_in_memory(folder: Path) -> BankStore:
    return bare(MemoryStore())


def bare_on_file(folder: Path) -> BankStore:
    return bare(SqliteStore(folder / "bare.sqlite"))


def bare_overlay(folder: Path) -> BankStore:
    return MemoryStore(bare_in_memory(folder), SCOPE)


KINDS = {
    "memory": Kind(in_memory, bare_in_memory),
    "sqlite": Kind(on_file, bare_on_file),
    "overlay-of-nothing": Kind(lambda folder: overlay(in_memory(folder)), bare_overlay, scoped=True),
    "overlay-of-memory": Kind(in_memory, bare_overlay, overlay),
    "overlay-of-sqlite": Kind(on_file, lambda folder: MemoryStore(bare_on_file(folder), SCOPE), overlay),
    "overlay-of-overlay": Kind(
        lambda folder: overlay(in_memory(folder)),
        lambda folder: MemoryStore(bare_overlay(folder), SCOPE),
        overlay,
        scoped=True,
    ),
}


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> Kind:
    return KINDS[request.param]


@pytest.fixture
def store(kind: Kind, tmp_path: Path) -> Iterator[BankStore]:
    made = kind.make(tmp_path)
    yield made
    made.close()


@pytest.fixture
def nobodys(kind: Kind, tmp_path: Path) -> Iterator[BankStore]:
    made = kind.bare(tmp_path)
    yield made
    made.close()
    if made.base is not None:
        made.base.close()


@pytest.fixture
def later(kind: Kind) -> Callable[[BankStore], BankStore]:
    return kind.later


Later = Callable[[BankStore], BankStore]


def take(store: BankStore, kind: str, name: str, *, descendants: bool = False, **given: bool) -> Removal:
    source = Source(kind, name)  # type: ignore[arg-type]
    return store.remove(SCOPE, kind="rollback", source=source, descendants=descendants, note="why", **given)


def said(store: BankStore, unit: Unit, after: int = 0, limit: int = 1000) -> tuple[int, list[int], list[list[int]]]:
    """Mark, numbers and endings of ``changes``."""
    changes = store.changes(SCOPE, unit, after=after, limit=limit)
    return changes.mark, changes.added.seqs.tolist(), changes.ended.tolist()


def live(store: BankStore, unit: Unit) -> list[int]:
    """Numbers of the rows that ``matches`` shows, which are those that an index would have."""
    return sorted(store.matches(SCOPE, unit, range(1, store.mark(SCOPE) + 1)))


# What a store is


def test_it_says_where_it_is(store: BankStore) -> None:
    assert isinstance(store.location, str)
    assert store.location


def test_only_what_has_one_scope_is_an_overlay(store: BankStore, kind: Kind) -> None:
    assert (store.base is not None) == kind.scoped


def test_it_belongs_to_the_first_embedder(store: BankStore) -> None:
    assert store.bind("another", 4) == EMBEDDER
    assert store.bind(*EMBEDDER) == EMBEDDER


def test_scopes_are_made_once_and_listed_in_order(store: BankStore, kind: Kind) -> None:
    store.add_scope(SCOPE)
    assert store.scopes() == [SCOPE]
    if not kind.scoped:
        for name in ("z", "a", "é", "a"):
            store.add_scope(name)
        assert store.scopes() == ["a", "s", "z", "é"]
        give(store, "e", scope="a")
        store.add_scope("a")
        assert store.mark("a") == 1


def test_an_unknown_scope_is_refused_by_every_call(store: BankStore) -> None:
    source = Source("item", "m")
    for call in (
        lambda: append(store, "no", [new("e")]),
        lambda: store.record("no", rollout("e")),
        lambda: store.fail("no", "r", "e", [], "no judge"),
        lambda: store.forget("no", [rollout("e").key]),
        lambda: store.learned("no", "r"),
        lambda: store.attempt("no", "r", "e"),
        lambda: store.edit("no", "m", lesson("a"), vector("a"), note=""),
        lambda: store.remove("no", kind="delete", source=source, descendants=False, note=""),
        lambda: store.snapshot("no", "name", "2026"),
        lambda: store.mark("no"),
        lambda: store.have("no", ["e"]),
        lambda: store.experience("no", "e"),
        lambda: store.latest("no", "t"),
        lambda: store.experiences("no", after=0, limit=9),
        lambda: store.item("no", "m"),
        lambda: store.items("no"),
        lambda: store.item_rows("no", "item", "m"),
        lambda: store.items_with("no", ["d"]),
        lambda: store.retracted("no", ["d"]),
        lambda: store.count("no"),
        lambda: store.task_ids("no"),
        lambda: store.pending("no"),
        lambda: store.snapshots("no"),
        lambda: store.history("no", "e"),
        lambda: store.changes("no", "item", after=0, limit=9),
        lambda: store.texts("no", "item", after=0, limit=9),
        lambda: store.matches("no", "item", [1]),
        lambda: store.digest("no", 0),
        lambda: store.stats("no"),
    ):
        with pytest.raises(UnknownScope, match="no"):
            call()


def test_no_call_shows_anything_of_another_scope(store: BankStore, kind: Kind) -> None:
    if kind.scoped:
        pytest.skip("has one scope")
    give(store, "e1", "a")
    store.record(SCOPE, rollout("waiting"))
    store.snapshot(SCOPE, "then", "2026")
    before = store.digest(SCOPE, 9), store.stats(SCOPE), store.history(SCOPE, "e1"), store.items(SCOPE)
    store.add_scope("other")
    for number in range(5):
        give(store, f"e{number}", "a", "b", scope="other", task="theirs")
    other_item = store.items("other")[0].id
    store.edit("other", other_item, lesson("c", id=other_item), vector("c"), note="")
    store.remove("other", kind="delete", source=Source("run", "r"), descendants=True, note="")
    store.forget("other", [rollout("waiting").key])
    give(store, "new", "z", scope="other")
    after = store.digest(SCOPE, 9), store.stats(SCOPE), store.history(SCOPE, "e1"), store.items(SCOPE)
    assert after[0] == before[0]
    assert after[1].model_copy(update={"bytes_on_disk": 0}) == before[1].model_copy(update={"bytes_on_disk": 0})
    assert after[2:] == before[2:]
    assert (store.mark(SCOPE), names(store), store.task_ids(SCOPE)) == (2, ["e1"], {"t"})
    assert waiting(store) == ["waiting"]
    assert said(store, "item")[1:] == ([2], [])
    assert store.history("other", "waiting") == store.snapshots("other") == store.pending("other") == []
    assert store.have(SCOPE, ["e0", "e1", "new"]) == {"e1"}
    assert store.retracted(SCOPE, [lesson(text).digest for text in "abcz"]) == {}
    assert store.experience(SCOPE, "new") is None
    assert store.item(SCOPE, other_item) is None
    assert list(store.matches(SCOPE, "item", range(50))) == [2]
    assert all(scope == "other" for scope in {item.scope for item in store.items("other")})


# Append


def test_append_gives_what_is_read_later(store: BankStore, later: Later) -> None:
    given = new("e1", "a", "b", label="failure", shown=["m2", "m1"], origin="mail", note="n", template="family")
    (stored,) = append(store, SCOPE, [given])
    store = later(store)
    assert store.experience(SCOPE, "e1") == stored
    assert store.experiences(SCOPE, after=0, limit=9) == [stored]
    assert store.items(SCOPE) == list(stored.items)
    assert [store.item(SCOPE, item.id) for item in stored.items] == list(stored.items)
    assert stored.model_dump(exclude={"items"}) == {
        "id": "e1",
        "scope": SCOPE,
        "seq": 1,
        "task": given.task.model_dump(),
        "trajectories": tuple(trajectory.model_dump() for trajectory in given.trajectories),
        "verdicts": tuple(verdict.model_dump() for verdict in given.verdicts),
        "run_id": "r",
        "note": "n",
        "origin": "mail",
        "shown": ("m2", "m1"),
        "created_at": given.created_at,
    }
    assert stored.items[0].model_dump() == {
        "id": given.items[0].id,
        "scope": SCOPE,
        "seq": 2,
        "title": "On a",
        "description": "when a",
        "content": "Do a.",
        "polarity": "failure",
        "provenances": ({"experience_id": "e1", "task_id": "t", "run_id": "r", "distiller": "lm", "origin": "mail"},),
    }


def test_a_number_for_the_experience_and_one_for_each_row(store: BankStore, later: Later) -> None:
    assert store.mark(SCOPE) == 0
    assert [give(store, "e1", "a", "b").seq, give(store, "e2").seq] == [1, 4]
    store = later(store)
    stored = give(store, "e3", "c")
    assert (stored.seq, stored.items[0].seq, store.mark(SCOPE)) == (5, 6, 6)


def test_a_batch_is_stored_in_order(store: BankStore, later: Later) -> None:
    assert append(store, SCOPE, []) == []
    store = later(store)
    stored = append(store, SCOPE, [new("e2", "b"), new("e1", "a", "b"), new("e3")])
    assert [(experience.id, experience.seq) for experience in stored] == [("e2", 1), ("e1", 3), ("e3", 6)]
    assert stored == store.experiences(SCOPE, after=0, limit=9)


def test_a_batch_that_cannot_be_stored_leaves_nothing(store: BankStore) -> None:
    broken = replace(new("e2", "b"), item_vectors=())
    with pytest.raises((InputError, ValueError)):
        append(store, SCOPE, [new("e1", "a"), broken])
    assert (store.mark(SCOPE), names(store), store.digest(SCOPE, 9)) == (0, [], "")
    assert give(store, "e1", "a").seq == 1


def test_a_known_experience_is_not_stored_again(store: BankStore, later: Later) -> None:
    first = give(store, "e1", "a")
    store = later(store)
    state = store.mark(SCOPE), store.digest(SCOPE, 9)
    assert give(store, "e1", "b", "c", task="u", note="other") == first
    assert append(store, SCOPE, [new("e1", "b"), new("e1", "c")]) == [first, first]
    assert (store.mark(SCOPE), store.digest(SCOPE, 9)) == state
    second = append(store, SCOPE, [new("e2", "b"), new("e2", "c")])
    assert second[0] == second[1] == store.experience(SCOPE, "e2")
    assert contents(store) == ["Do a.", "Do b."]


def test_an_experience_that_was_removed_stays_known(store: BankStore, later: Later) -> None:
    first = give(store, "e1", "a", "b")
    take(store, "experience", "e1")
    assert give(store, "e1", "c") == first
    store = later(store)
    assert give(store, "e1", "c") == first
    assert (names(store), contents(store), store.mark(SCOPE)) == ([], [], 4)
    give(store, "e2")
    assert store.have(SCOPE, ["none", "e2", "e1", "noise"]) == {"e1", "e2"}
    assert store.have(SCOPE, []) == set()


def test_an_experience_that_was_removed_is_refused_on_request(store: BankStore, later: Later) -> None:
    give(store, "e1", "a")
    second = give(store, "e2", "b")
    take(store, "experience", "e1")
    store = later(store)
    with pytest.raises(InputError, match=r"'t' was learned from as e1 and removed since"):
        append(store, SCOPE, [new("e3", "c"), new("e1", "a")], refuse_removed=True)
    assert (names(store), store.mark(SCOPE)) == (["e2"], 5)
    assert append(store, SCOPE, [new("e2", "d")], refuse_removed=True) == [second]


def test_the_removal_of_what_is_below_leaves_it_known(store: BankStore, later: Later) -> None:
    first = give(store, "e1", "a", "b")
    store = later(store)
    take(store, "experience", "e1")
    assert give(store, "e1", "c") == first
    assert store.experience(SCOPE, "e1") is None


def test_append_ends_the_wait_of_its_rollouts(store: BankStore) -> None:
    for task in ("t1", "t2"):
        store.record(SCOPE, rollout(task))
    give(store, "e1", task="t1")
    assert waiting(store) == ["t2"]


def test_odd_values_come_back_as_they_were(store: BankStore, later: Later) -> None:
    args = {"lone": "\ud800", "\udfff": [1e300, float("inf"), 10**30, {"nul": "\0"}], "deep": _nested(180)}
    task = Task(id="t", instruction="do é 🧠", env_args=args, domain="\udc00", template="\ud800 family")
    given = replace(
        new("e1", "a\u2028b"),
        task=task,
        trajectories=(Trajectory(task_id="t", rollout_id="\ud9ff"),),
        verdicts=(Verdict(label="unknown"),),
    )
    (stored,) = append(store, SCOPE, [given])
    store = later(store)
    assert store.experience(SCOPE, "e1") == stored
    assert (stored.task, stored.trajectories) == (task, given.trajectories)
    assert store.items(SCOPE) == list(stored.items)


def _nested(depth: int) -> list[object]:
    made: list[object] = []
    for _ in range(depth):
        made = [made]
    return made


# One item with two provenances


def test_the_same_text_is_one_item_with_two_provenances(store: BankStore, later: Later) -> None:
    first = give(store, "e1", "a", "b", label="failure", task="t1")
    store = later(store)
    second = give(store, "e2", "a", task="t2", origin="mail")
    (item,) = second.items
    assert (item.id, item.seq, item.polarity) == (first.items[0].id, 2, "failure")
    told = [(provenance.experience_id, provenance.task_id, provenance.origin) for provenance in item.provenances]
    assert told == [("e1", "t1", ""), ("e2", "t2", "mail")]
    assert store.experience(SCOPE, "e2") == second
    assert store.experience(SCOPE, "e1") == first.model_copy(update={"items": (item, first.items[1])})
    assert store.items(SCOPE) == [item, first.items[1]]
    assert (store.count(SCOPE), store.mark(SCOPE)) == (2, 5)
    assert live(store, "item") == [2, 3, 5]
    matches = store.matches(SCOPE, "item", [2, 5])
    assert [(match.experience_id, match.task_id, match.instruction) for match in matches.values()] == [
        ("e1", "t1", "solve t1"),
        ("e2", "t2", "solve t2"),
    ]
    assert matches[2].items == matches[5].items == (item,)
    assert store.item(SCOPE, item.id, at=3) == first.items[0]


def test_an_item_outlives_one_of_its_experiences(store: BankStore, later: Later) -> None:
    give(store, "e1", "a", label="failure")
    give(store, "e2", "a")
    give(store, "e3", "a", label="failure")
    id = lesson("a").id
    store = later(store)
    assert take(store, "experience", "e1") == Removal(experiences=("e1",))
    item = store.item(SCOPE, id)
    assert item is not None
    assert (item.seq, item.polarity) == (4, "success")  # its earliest row is another one now
    assert [provenance.experience_id for provenance in item.provenances] == ["e2", "e3"]
    assert live(store, "item") == [4, 6]
    store = later(store)
    assert take(store, "experience", "e2") == Removal(experiences=("e2",))
    assert take(store, "experience", "e3") == Removal(experiences=("e3",), items=(id,))
    assert store.items(SCOPE) == []


def test_the_rows_of_an_item_and_of_an_experience(store: BankStore, later: Later) -> None:
    give(store, "e1", "a", "b", label="failure", task="t1")
    give(store, "e2", "a", task="t2", origin="mail")
    store = later(store)
    give(store, "e3", "a", label="failure")
    id = lesson("a").id
    rows = store.item_rows(SCOPE, "item", id)
    told = [(row.seq, row.polarity, row.provenance.experience_id, row.experience, row.instruction) for row in rows]
    assert told == [
        (2, "failure", "e1", 1, "solve t1"),
        (5, "success", "e2", 4, "solve t2"),
        (7, "failure", "e3", 6, "solve t"),
    ]
    item = store.item(SCOPE, id)
    assert item is not None
    assert tuple(row.provenance for row in rows) == item.provenances
    assert {row.item for row in rows} == {lesson("a")}
    assert [(row.seq, row.item) for row in store.item_rows(SCOPE, "experience", "e1")] == [
        (2, lesson("a")),
        (3, lesson("b")),
    ]
    assert store.item_rows(SCOPE, "item", id, 5) == rows[:2]
    store = later(store)
    store.edit(SCOPE, id, lesson("better", id=id), vector("better"), note="")
    store = later(store)
    take(store, "experience", "e2")
    changed = store.item_rows(SCOPE, "item", id)
    assert [(row.seq, row.polarity, row.item) for row in changed] == [
        (9, "failure", lesson("better", id=id)),
        (11, "failure", lesson("better", id=id)),
    ]
    assert [row.seq for row in store.item_rows(SCOPE, "experience", "e1")] == [3, 9]
    assert store.item_rows(SCOPE, "item", id, 7) == rows
    assert [row.seq for row in store.item_rows(SCOPE, "experience", "e1", 7)] == [2, 3]
    assert store.item_rows(SCOPE, "experience", "e2") == store.item_rows(SCOPE, "item", "none") == []
    assert store.item_rows(SCOPE, "experience", id) == store.item_rows(SCOPE, "item", "e1") == []


def test_both_of_a_batch_show_both_provenances(store: BankStore) -> None:
    stored = append(store, SCOPE, [new("e1", "a"), new("e2", "a")])
    assert [len(experience.items[0].provenances) for experience in stored] == [2, 2]
    assert stored == store.experiences(SCOPE, after=0, limit=9)


def test_what_was_there_before_shows_what_the_same_batch_adds(store: BankStore) -> None:
    append(store, SCOPE, [new("e1", "a")])
    stored = append(store, SCOPE, [new("e1", "a"), new("e2", "a")])
    assert [len(experience.items[0].provenances) for experience in stored] == [2, 2]


# Edit


def test_edit_gives_an_item_another_text(store: BankStore, later: Later) -> None:
    give(store, "e1", "a", "b")
    give(store, "e2", "a")
    id = lesson("a").id
    store = later(store)
    assert store.mark(SCOPE) == 5
    edited = store.edit(SCOPE, id, lesson("better", id=id), vector("better"), note="why")
    assert (edited.id, edited.seq, edited.content) == (id, 7, "Do better.")
    assert [provenance.experience_id for provenance in edited.provenances] == ["e1", "e2"]
    assert store.mark(SCOPE) == 8
    assert store.item(SCOPE, id) == edited
    assert contents(store) == ["Do b.", "Do better."]
    assert store.count(SCOPE) == 2
    assert [item.content for item in _experience(store, "e1").items] == ["Do b.", "Do better."]
    assert _experience(store, "e2").items == (edited,)
    assert live(store, "item") == [3, 7, 8]
    assert {seq: match.experience_id for seq, match in store.matches(SCOPE, "item", [7, 8]).items()} == {
        7: "e1",
        8: "e2",
    }
    assert live(store, "experience") == [1, 4]
    assert [item.content for item in store.matches(SCOPE, "experience", [1])[1].items] == ["Do b.", "Do better."]
    again = store.edit(SCOPE, id, lesson("best", id=id), vector("best"), note="")
    assert (again.seq, store.mark(SCOPE), store.count(SCOPE)) == (10, 11, 2)


def test_the_text_before_an_edit_stays(store: BankStore, later: Later) -> None:
    first = give(store, "e1", "a")
    store = later(store)
    id = first.items[0].id
    store.edit(SCOPE, id, lesson("b", id=id), vector("b"), note="why")
    store = later(store)
    store.edit(SCOPE, id, lesson("c", id=id), vector("c"), note="")
    assert [contents(store, at) for at in (0, 1, 2, 4, 6, 99)] == [[], [], ["Do a."], ["Do b."], ["Do c."], ["Do c."]]
    assert store.item(SCOPE, id, at=2) == first.items[0]
    assert store.experience(SCOPE, "e1", at=2) == first
    assert store.matches(SCOPE, "item", [2, 4, 6], at=2)[2].items == first.items
    assert list(store.matches(SCOPE, "item", [2, 4, 6], at=4)) == [4]
    entries = [(change.seq, change.note, change.before, change.after) for change in _edits(store, id)]
    assert entries == [(3, "why", _draft("a"), _draft("b")), (5, "", _draft("b"), _draft("c"))]


def test_edit_needs_a_live_item_and_a_text_of_its_own(store: BankStore, later: Later) -> None:
    for text in ("a", "b", "gone"):
        give(store, f"e-{text}", text)
    take(store, "item", lesson("gone").id)
    store = later(store)
    state = store.mark(SCOPE), store.digest(SCOPE, 99)
    id = lesson("a").id
    for unknown in ("m-none", lesson("gone").id, "e-a"):
        with pytest.raises(InputError):
            store.edit(SCOPE, unknown, lesson("c", id=unknown), vector("c"), note="")
    with pytest.raises(InputError, match=lesson("b").id):
        store.edit(SCOPE, id, lesson("b", id=id), vector("b"), note="")
    assert (store.mark(SCOPE), store.digest(SCOPE, 99)) == state
    assert store.edit(SCOPE, id, lesson("gone", id=id), vector("gone"), note="").content == "Do gone."


def test_which_items_were_edited_is_known_at_any_number(store: BankStore, later: Later) -> None:
    give(store, "e1", "a", "b")
    a, b = (lesson(text).id for text in "ab")
    store.edit(SCOPE, a, lesson("better", id=a), vector("better"), note="")
    store = later(store)
    store.edit(SCOPE, b, lesson("best", id=b), vector("best"), note="")
    take(store, "item", b)
    store = later(store)
    assert [store.edited(SCOPE, at) for at in (3, 4, 5, 6)] == [set(), {a}, {a}, {a, b}]
    assert store.edited(SCOPE) == {a, b}, "also of one that is gone"


def test_the_old_text_of_an_edited_item_is_another_item(store: BankStore, later: Later) -> None:
    give(store, "e1", "a")
    id = lesson("a").id
    store.edit(SCOPE, id, lesson("b", id=id), vector("b"), note="")
    store = later(store)
    (item,) = give(store, "e2", "a").items
    assert item.id != id
    assert item.id == (give(store, "e2")).items[0].id
    assert item.id.startswith("m")
    assert len(item.id) == 21
    assert contents(store) == ["Do b.", "Do a."]
    assert len(item.provenances) == 1
    assert _experience(store, "e2").items == (item,)


def test_an_edit_back_makes_it_one_item_again(store: BankStore, later: Later) -> None:
    give(store, "e1", "a")
    id = lesson("a").id
    store.edit(SCOPE, id, lesson("b", id=id), vector("b"), note="")
    store.edit(SCOPE, id, lesson("a", id=id), vector("a"), note="")
    give(store, "e2", "a")
    store = later(store)
    give(store, "e3", "a", label="failure")
    item = store.item(SCOPE, id)
    assert item is not None
    assert [provenance.experience_id for provenance in item.provenances] == ["e1", "e2", "e3"]
    store.edit(SCOPE, id, lesson("c", id=id), vector("c"), note="")
    assert live(store, "item") == [12, 13, 14]
    assert take(store, "experience", "e1").items == ()
    assert take(store, "experience", "e2").items == ()
    last = store.item(SCOPE, id)
    assert last is not None
    assert (last.content, last.polarity, last.seq) == ("Do c.", "failure", 14)


# Remove


def test_an_experience_takes_its_items_with_it(store: BankStore, later: Later) -> None:
    give(store, "e1", "a", "b")
    give(store, "e2", "c")
    store = later(store)
    removal = take(store, "experience", "e1")
    assert removal == Removal(experiences=("e1",), items=(lesson("a").id, lesson("b").id))
    assert (names(store), contents(store), store.count(SCOPE)) == (["e2"], ["Do c."], 1)
    assert store.experience(SCOPE, "e1") is None
    assert store.item(SCOPE, lesson("a").id) is None
    assert (live(store, "experience"), live(store, "item"), store.mark(SCOPE)) == ([4], [5], 6)


def test_a_removed_item_leaves_its_experience(store: BankStore, later: Later) -> None:
    give(store, "e1", "a", "b")
    give(store, "e2", "a")
    store = later(store)
    assert take(store, "item", lesson("a").id) == Removal(items=(lesson("a").id,))
    assert names(store) == ["e1", "e2"]
    assert _experience(store, "e2").items == ()
    assert [item.content for item in _experience(store, "e1").items] == ["Do b."]
    assert live(store, "item") == [3]
    assert live(store, "experience") == [1]  # e2 has nothing left to show
    take(store, "item", lesson("b").id)
    assert live(store, "experience") == []
    take(store, "experience", "e1")
    assert names(store) == ["e2"]
    assert said(store, "experience")[2][-2:] == [[4, 6], [1, 7]]


def test_a_run_or_an_origin_goes_as_a_whole(store: BankStore, later: Later) -> None:
    give(store, "e1", "a", run_id="r1", origin="x")
    give(store, "e2", "b", run_id="r2", origin="y")
    give(store, "e3", "c", run_id="r1")
    store = later(store)
    give(store, "e4", "d", run_id="r1", origin="y")
    rows = {task: rollout(task, run_id=run_id) for task, run_id in (("w1", "r1"), ("w2", "r2"), ("w3", ""))}
    for row in rows.values():
        store.record(SCOPE, row)
    assert take(store, "origin", "r1") == take(store, "run", "y") == Removal()
    removal = take(store, "run", "r1")
    assert removal.experiences == ("e1", "e3", "e4")
    assert removal.items == tuple(lesson(text).id for text in "acd")
    assert removal.pending == (pending_id(rows["w1"]),)
    assert take(store, "origin", "y").experiences == ("e2",)
    assert (names(store), contents(store), waiting(store)) == ([], [], ["w2", "w3"])


def test_descendants_go_with_what_they_were_shown(store: BankStore, later: Later) -> None:
    a, b, c = (lesson(text).id for text in "abc")
    give(store, "e1", "a")
    give(store, "e2", "b", shown=[a])
    give(store, "e3", "c", shown=["m-other", b])
    give(store, "e4", "d", shown=[c])
    give(store, "e5", "e", shown=["m-other"])
    store.record(SCOPE, rollout("w0"))
    store = later(store)
    for id, shown in (("w1", [c]), ("w2", [lesson("e").id])):
        store.record(SCOPE, rollout(id, shown=shown))
    store.record(SCOPE, rollout("w3", shown=[b]))
    assert take(store, "experience", "e2", dry_run=True) == Removal(experiences=("e2",), items=(b,))
    store.forget(SCOPE, [rollout("w3").key])
    removal = take(store, "experience", "e2", descendants=True)
    assert removal.experiences == ("e2", "e3", "e4")
    assert removal.items == (b, c, lesson("d").id)
    assert removal.pending == (pending_id(rollout("w1")),)
    assert (names(store), contents(store)) == (["e1", "e5"], ["Do a.", "Do e."])
    assert "w2" in waiting(store)
    assert take(store, "item", a, descendants=True) == Removal(items=(a,))  # e2, which was shown it, is gone already


def test_a_loop_of_descent_ends(store: BankStore, later: Later) -> None:
    a, b = lesson("a").id, lesson("b").id
    give(store, "e1", "a", shown=[b])
    give(store, "e2", "b", shown=[a])
    store = later(store)
    removal = take(store, "item", a, descendants=True)
    assert removal == Removal(experiences=("e1", "e2"), items=(a, b))


def test_what_another_experience_gave_too_has_no_descendants(store: BankStore, later: Later) -> None:
    a = lesson("a").id
    give(store, "e1", "a")
    give(store, "e2", "a")
    give(store, "e3", "b", shown=[a])
    store = later(store)
    assert take(store, "experience", "e1", descendants=True) == Removal(experiences=("e1",))
    removal = take(store, "experience", "e2", descendants=True)
    assert removal == Removal(experiences=("e2", "e3"), items=(a, lesson("b").id))


def test_descent_finds_that_all_who_gave_an_item_go(store: BankStore, later: Later) -> None:
    a, b = lesson("a").id, lesson("b").id
    give(store, "e1", "a", "b")
    give(store, "e2", "b", shown=[a])  # gave b as well, and descends from e1
    give(store, "e3", "c", shown=[b])
    store = later(store)
    removal = take(store, "experience", "e1", descendants=True)
    assert removal == Removal(experiences=("e1", "e2", "e3"), items=(a, b, lesson("c").id))


def test_an_edited_item_is_followed_by_its_id(store: BankStore, later: Later) -> None:
    id = lesson("a").id
    give(store, "e1", "a")
    store.edit(SCOPE, id, lesson("b", id=id), vector("b"), note="")
    give(store, "e2", "c", shown=[id])
    store = later(store)
    removal = take(store, "experience", "e1", descendants=True)
    assert removal == Removal(experiences=("e1", "e2"), items=(id, lesson("c").id))
    assert contents(store) == []


def delete(store: BankStore, kind: str, name: str) -> Removal:
    source = Source(kind, name)  # type: ignore[arg-type]
    return store.remove(SCOPE, kind="delete", source=source, descendants=False, note="")


@pytest.mark.parametrize("deleted", [("item", lesson("a").id), ("experience", "e1")])
@pytest.mark.parametrize("source", [("run", "bad"), ("experience", "e1"), ("item", lesson("a").id)])
def test_what_was_deleted_leads_on(
    store: BankStore, later: Later, deleted: tuple[str, str], source: tuple[str, str]
) -> None:
    a, b, c = (lesson(text).id for text in "abc")
    give(store, "e1", "a", run_id="bad")
    give(store, "e2", "b", shown=[a])
    give(store, "e3", "c", shown=[b])
    give(store, "e4", "d")
    delete(store, *deleted)
    store = later(store)
    delete(store, "experience", "e2")  # what it told is still believed
    store.record(SCOPE, rollout("w1", shown=[a]))
    store.record(SCOPE, rollout("w2", shown=[lesson("d").id]))
    own = ("e1",) if "e1" in names(store) and source[0] != "item" else ()
    assert take(store, *source, dry_run=True) == Removal(experiences=own)
    stay = sorted({*names(store)} - {*own, "e3"})
    removal = take(store, *source, descendants=True)
    assert removal == Removal(experiences=(*own, "e3"), items=(c,), pending=(pending_id(rollout("w1")),))
    assert (names(store), contents(store)) == (stay, ["Do d."])
    assert take(store, *source, descendants=True) == Removal()
    assert list(store.check()) == []


def test_a_deleted_lesson_is_held_by_an_experience_that_stays(store: BankStore, later: Later) -> None:
    a, b = lesson("a").id, lesson("b").id
    give(store, "e1", "a", run_id="bad")
    give(store, "e2", "a")
    give(store, "e3", "b", shown=[a])
    delete(store, "item", a)
    store = later(store)
    assert take(store, "run", "bad", descendants=True) == Removal(experiences=("e1",))
    assert take(store, "experience", "e2", descendants=True) == Removal(experiences=("e2", "e3"), items=(b,))


def test_those_who_repeat_what_was_deleted_do_not_hold_it(store: BankStore, later: Later) -> None:
    a, b = lesson("a").id, lesson("b").id
    give(store, "e1", "a", run_id="bad")
    store = later(store)
    give(store, "e2", "a", shown=[a])
    give(store, "e3", "b", shown=[a])
    delete(store, "experience", "e1")
    removal = take(store, "run", "bad", descendants=True)
    assert removal == Removal(experiences=("e2", "e3"), items=(a, b))


def test_what_was_deleted_and_learned_again_is_what_it_was(store: BankStore, later: Later) -> None:
    a = lesson("a").id
    give(store, "e1", "a", run_id="bad")
    give(store, "e2", "b", shown=[a])
    delete(store, "item", a)
    store = later(store)
    give(store, "e3", "a")
    assert take(store, "run", "bad", descendants=True) == Removal(experiences=("e1",))
    assert (names(store), contents(store)) == (["e2", "e3"], ["Do b.", "Do a."])


def test_what_was_deleted_and_learned_again_goes_with_who_says_it_now(store: BankStore, later: Later) -> None:
    a, b = lesson("a").id, lesson("b").id
    give(store, "e1", "a")
    delete(store, "item", a)
    store = later(store)
    give(store, "e2", "a", run_id="bad")
    give(store, "e3", "b", shown=[a])
    removal = take(store, "run", "bad", descendants=True)
    assert removal == Removal(experiences=("e2", "e3"), items=(a, b))
    assert (names(store), contents(store), store.count(SCOPE)) == (["e1"], [], 0)


def test_an_item_that_was_never_here_has_those_who_were_shown_it(store: BankStore, later: Later) -> None:
    """As after an import, which brings what lives."""
    give(store, "e1", "a", shown=["m-gone"])
    store = later(store)
    give(store, "e2", "b", shown=[lesson("a").id])
    assert take(store, "item", "m-gone") == Removal()
    removal = take(store, "item", "m-gone", descendants=True)
    assert removal == Removal(experiences=("e1", "e2"), items=(lesson("a").id, lesson("b").id))


def test_members_and_rows_tell_of_what_has_ended(store: BankStore, later: Later) -> None:
    a, b = lesson("a").id, lesson("b").id
    one, two = give(store, "e1", "a", "b", run_id="bad"), give(store, "e2", "b", shown=[a])
    before = store.mark(SCOPE)
    delete(store, "item", a)
    store = later(store)
    delete(store, "experience", "e2")
    store.edit(SCOPE, b, lesson("c", id=b), vector("c"), note="")
    bad, misled = Member(one.seq, "e1", True), Member(two.seq, "e2", False)
    for source in (("run", "bad"), ("experience", "e1")):
        assert store.members(SCOPE, Source(*source)) == [bad]  # type: ignore[arg-type]
    assert store.members(SCOPE, Source("item", a)) == [misled]
    assert store.members(SCOPE, Source("item", b)) == store.members(SCOPE, Source("origin", "no")) == []
    assert store.members(SCOPE, Source("item", a), before) == [misled._replace(lives=True)]
    assert store.members(SCOPE, Source("item", a), one.seq) == []
    told = [(row.item, row.lives, row.giver, row.stands) for row in store.rows(SCOPE, one.seq)]
    assert told == [(a, False, bad, True), (b, False, bad, True), (b, True, bad, True)]
    told = [(row.item, row.lives, row.giver, row.stands) for row in store.rows(SCOPE, b)]
    assert told == [(b, False, bad, True), (b, False, misled, False), (b, True, bad, True)]
    then = [(row.item, row.lives, row.giver.id, row.giver.lives) for row in store.rows(SCOPE, b, before)]
    assert then == [(b, True, "e1", True), (b, True, "e2", True)]
    assert store.rows(SCOPE, 999) == store.rows(SCOPE, "none") == []


def retracted(store: BankStore, *texts: str, at: int | None = None) -> dict[str, tuple[str, str, str]]:
    """Of these texts, those that were taken away: by what, why, and of which item."""
    found = store.retracted(SCOPE, [lesson(text).digest for text in texts], at)
    by = {lesson(text).digest: text for text in texts}
    for change in found.values():
        assert change in [told.model_copy(update={"before": None, "after": None}) for told in _told(store, change.id)]
    return {by[digest]: (change.kind, change.note, change.id) for digest, change in found.items()}


def _told(store: BankStore, id: str) -> list[Change]:
    return store.history(SCOPE, id)


def test_a_text_is_taken_away_by_an_edit_and_by_the_removal_of_its_item(store: BankStore, later: Later) -> None:
    give(store, "e1", "a", "b", "c", "d")
    a, b, c, _ = (lesson(text).id for text in "abcd")
    assert retracted(store, *"abcd") == {}
    store = later(store)
    store.edit(SCOPE, a, lesson("A", id=a), vector("A"), note="too short")
    begun = store.mark(SCOPE)
    store.remove(SCOPE, kind="delete", source=Source("item", b), descendants=False, note="wrong")
    taken = {"a": ("edit", "too short", a), "b": ("delete", "wrong", b)}
    assert retracted(store, *"abcdA", "never") == taken
    store = later(store)
    take(store, "item", c)
    assert retracted(store, *"abcdA") == {**taken, "c": ("rollback", "why", c)}
    assert retracted(store, *"abcdA", at=begun) == {"a": taken["a"]}
    assert retracted(store, *"abcdA", at=5) == {}
    store.remove(SCOPE, kind="delete", source=Source("item", a), descendants=False, note="altogether")
    store = later(store)
    assert retracted(store, "a", "A") == {"a": taken["a"], "A": ("delete", "altogether", a)}


@pytest.mark.parametrize("source", [Source("experience", "e1"), Source("run", "bad"), Source("origin", "mail")])
def test_a_text_that_goes_with_where_it_came_from_is_not_taken_away(
    store: BankStore, later: Later, source: Source
) -> None:
    give(store, "e1", "a", run_id="bad", origin="mail")
    give(store, "e2", "b", shown=[lesson("a").id])
    store = later(store)
    store.remove(SCOPE, kind="rollback", source=source, descendants=True, note="")
    assert store.items(SCOPE) == []
    assert retracted(store, "a", "b") == {}


def test_a_text_that_somebody_says_again_is_taken_away_no_more(store: BankStore, later: Later) -> None:
    give(store, "e1", "a", "b")
    a, b = lesson("a").id, lesson("b").id
    store = later(store)
    store.remove(SCOPE, kind="delete", source=Source("item", a), descendants=False, note="")
    store.edit(SCOPE, b, lesson("a", id=b), vector("a"), note="")
    assert retracted(store, "a", "b") == {"b": ("edit", "", b)}
    store = later(store)
    store.edit(SCOPE, b, lesson("b", id=b), vector("b"), note="back")
    assert retracted(store, "a", "b") == {"a": ("edit", "back", b)}  # the last that took it away
    store = later(store)
    give(store, "e2", "a", run_id="by hand")
    assert retracted(store, "a", "b") == {}
    store = later(store)
    take(store, "run", "by hand")
    assert retracted(store, "a", "b") == {}


def test_a_dry_run_changes_nothing(store: BankStore, later: Later) -> None:
    give(store, "e1", "a")
    give(store, "e2", "b", shown=[lesson("a").id])
    store = later(store)
    store.record(SCOPE, rollout("w"))
    state = store.mark(SCOPE), store.digest(SCOPE, 99), store.items(SCOPE), store.pending(SCOPE)
    told = take(store, "run", "r", descendants=True, dry_run=True)
    assert told == Removal(
        experiences=("e1", "e2"), items=(lesson("a").id, lesson("b").id), pending=(pending_id(rollout("w")),)
    )
    assert (store.mark(SCOPE), store.digest(SCOPE, 99), store.items(SCOPE), store.pending(SCOPE)) == state
    assert take(store, "run", "r", descendants=True) == told


def test_nothing_to_remove_is_no_error(store: BankStore, later: Later) -> None:
    give(store, "e1", "a")
    store = later(store)
    state = store.mark(SCOPE), store.digest(SCOPE, 99)
    for kind in ("experience", "item", "run", "origin"):
        assert take(store, kind, "none", descendants=True) == Removal()
    assert (store.mark(SCOPE), store.digest(SCOPE, 99)) == state
    take(store, "experience", "e1")
    mark = store.mark(SCOPE)
    assert take(store, "experience", "e1") == take(store, "item", lesson("a").id) == Removal()
    assert store.mark(SCOPE) == mark


def test_what_was_removed_is_in_the_past(store: BankStore, later: Later) -> None:
    first = give(store, "e1", "a", task="t1")
    second = give(store, "e2", "a", "b", task="t2")
    store = later(store)
    take(store, "experience", "e1")
    take(store, "item", lesson("b").id)
    store = later(store)
    assert store.mark(SCOPE) == 7
    assert names(store, 5) == ["e1", "e2"]
    assert store.experience(SCOPE, "e1", at=2) == first
    assert store.experience(SCOPE, "e2", at=5) == second
    assert store.experience(SCOPE, "e2", at=2) is None
    assert store.items(SCOPE, at=5) == list(second.items)
    assert store.items(SCOPE, at=2) == list(first.items)
    assert [store.count(SCOPE, at) for at in range(9)] == [0, 0, 1, 1, 1, 2, 2, 1, 1]
    assert store.task_ids(SCOPE, at=5) == {"t1", "t2"}
    assert store.task_ids(SCOPE) == {"t2"}
    assert _latest(store, "t1", 5) == "e1"
    assert _latest(store, "t1") is None
    assert store.matches(SCOPE, "experience", [1, 3], at=5)[1].items == (second.items[0],)
    assert list(store.matches(SCOPE, "experience", [1, 3])) == [3]


# Pending rollouts


def test_rollouts_wait_in_the_order_they_came(store: BankStore) -> None:
    rows = [rollout(f"w{number}", shown=["m"]) for number in (3, 1, 2)]
    for row in rows:
        store.record(SCOPE, row)
    assert store.pending(SCOPE) == rows
    assert (store.mark(SCOPE), store.task_ids(SCOPE)) == (0, set())
    store.forget(SCOPE, [rows[1].key])
    store.forget(SCOPE, [rows[1].key])
    assert store.pending(SCOPE) == [rows[0], rows[2]]
    assert store.pending_keys(SCOPE) == [rows[0].key, rows[2].key]


def test_what_was_learned_from_does_not_wait_again(store: BankStore, later: Later) -> None:
    give(store, "e1", task="t1")
    give(store, "e2", task="t2")
    take(store, "experience", "e2")
    store = later(store)
    store.record(SCOPE, rollout("t1"))
    with pytest.raises(InputError):
        store.record(SCOPE, rollout("t2"))
    assert store.pending(SCOPE) == []
    assert store.attempt(SCOPE, "r", "t1") == ("e1", True)
    assert store.attempt(SCOPE, "r", "t3") is None
    assert store.learned(SCOPE, "r") == {"t1"}


# What is refused: which error it is, and in which words, is the same for every store


OTHER = ("another", DIMENSION)
LONG: Vectors = np.eye(1, DIMENSION + 1, dtype=np.float32)[0]
A, B = lesson("a").id, lesson("b").id


def edit(store: BankStore, id: str, text: str, scope: str = SCOPE, embedder: tuple[str, int] = EMBEDDER) -> None:
    store.edit(scope, id, lesson(text, id=id), vector(text), note="", embedder=embedder)


NO_SCOPE = UnknownScope, "{at}: no scope 'no'"
REMOVED = (
    InputError,
    "{at}: this attempt at 't' was learned from as gone and removed since; name another run_id",
)
NO_ITEM = InputError, "{at}: scope 's' has no item '{id}' to edit; give the id of one that items() lists"
TAKEN = (
    InputError,
    "{at}: scope 's': the name 'then' is that of the state at 3, now it is 8; choose another name",
)
UNEVEN = InputError, "experience e: 2 items and 1 vectors for them"
TWINS = InputError, f"{{at}}: item {A}: item {B} says exactly this; delete one of the two instead"
ANOTHER = (
    EmbedderMismatch,
    "{at}: belongs to the embedder test (8 dimensions) by now, and was opened with another (8); open it again with"
    " test",
)
TOO_LONG = InvalidVector, "{at}: a vector of 9 numbers; expected 8, as test gives them"


def with_id(refusal: tuple[type[Exception], str], id: str) -> tuple[type[Exception], str]:
    return refusal[0], refusal[1].replace("{id}", id)


REFUSALS: dict[str, tuple[Callable[[BankStore], object], tuple[type[Exception], str]]] = {
    "a place in no scope": (lambda s: s.place("no", [new("e")]), NO_SCOPE),
    "nothing, placed in no scope": (lambda s: s.place("no", []), NO_SCOPE),
    "another's vectors in no scope": (lambda s: s.place("no", [new("e")], embedder=OTHER), NO_SCOPE),
    "an edit in no scope": (lambda s: edit(s, A, "x", "no"), NO_SCOPE),
    "another's edit in no scope": (lambda s: edit(s, A, "x", "no", OTHER), NO_SCOPE),
    "a read of no scope": (lambda s: s.items("no"), NO_SCOPE),
    "what waits in no scope": (lambda s: s.pending("no"), NO_SCOPE),
    "too few vectors": (lambda s: s.place(SCOPE, [replace(new("e", "a", "b"), item_vectors=(vector("a"),))]), UNEVEN),
    "a removed attempt": (lambda s: s.place(SCOPE, [new("e"), new("gone")], refuse_removed=True), REMOVED),
    "an edit of nothing": (lambda s: edit(s, "m-none", "x"), with_id(NO_ITEM, "m-none")),
    "an edit of an experience": (lambda s: edit(s, "e1", "x"), with_id(NO_ITEM, "e1")),
    "an edit of what is gone": (
        lambda s: edit(s, lesson("gone").id, "x"),
        with_id(NO_ITEM, lesson("gone").id[:40]),
    ),
    "another item's text": (lambda s: edit(s, A, "b"), TWINS),
    "another state's name": (lambda s: s.snapshot(SCOPE, "then", "2026"), TAKEN),
    "another's vectors": (lambda s: s.place(SCOPE, [new("e", "x")], embedder=OTHER), ANOTHER),
    "none of another's vectors": (lambda s: s.place(SCOPE, [], embedder=OTHER), ANOTHER),
    "another's edit": (lambda s: edit(s, A, "x", embedder=OTHER), ANOTHER),
    "another's edit of nothing": (lambda s: edit(s, "m-none", "x", embedder=OTHER), ANOTHER),
    "another's mending": (lambda s: s.mend(*OTHER, embed), ANOTHER),
    "a long vector": (lambda s: s.place(SCOPE, [replace(new("e", "x"), vector=LONG)]), TOO_LONG),
    "an edit with a long vector": (lambda s: s.edit(SCOPE, A, lesson("x", id=A), LONG, note=""), TOO_LONG),
}


@pytest.mark.parametrize("what", REFUSALS)
def test_a_refusal_is_the_same_in_every_store(store: BankStore, later: Later, what: str) -> None:
    call, (kind, words) = REFUSALS[what]
    give(store, "e1", "a", "b")
    store.snapshot(SCOPE, "then", "2026")
    give(store, "e2", "c")
    give(store, "gone", "gone")
    take(store, "experience", "gone")
    store = later(store)
    before = store.mark(SCOPE), store.digest(SCOPE, 99), store.pending(SCOPE), store.snapshots(SCOPE)
    with pytest.raises(Exception) as refused:
        call(store)
    assert (type(refused.value), str(refused.value)) == (kind, words.format(at=store.location))
    assert (store.mark(SCOPE), store.digest(SCOPE, 99), store.pending(SCOPE), store.snapshots(SCOPE)) == before


def test_what_others_bound_meanwhile_is_refused_in_the_same_words(nobodys: BankStore) -> None:
    if nobodys.base is not None:
        pytest.skip("is held to its base's embedder")
    nobodys.bind(*OTHER, keep=False)
    nobodys.place(SCOPE, [new("e1", "a")], embedder=EMBEDDER)
    for call in (
        lambda: nobodys.changes(SCOPE, "item", after=0, limit=9),
        lambda: nobodys.place(SCOPE, [new("e2", "b")]),
        lambda: nobodys.edit(SCOPE, A, lesson("x", id=A), vector("x"), note=""),
    ):
        with pytest.raises(EmbedderMismatch) as refused:
            call()
        assert str(refused.value) == ANOTHER[1].format(at=nobodys.location)


def test_nothing_placed_binds_nothing(nobodys: BankStore) -> None:
    assert list(nobodys.place(SCOPE, [], embedder=EMBEDDER)) == []
    assert nobodys.bind("b", 5, keep=False) == ("b", 5)


# Numbers that there is no state of


def test_a_number_that_was_not_reached_is_the_present_and_one_below_0_is_0(store: BankStore, later: Later) -> None:
    give(store, "e1", "a", "b")
    give(store, "e2", "c")
    store = later(store)
    assert [store.settled(SCOPE, at) for at in (0, 1, 2, 3, 4, 5)] == [0, 3, 3, 3, 5, 5]
    for below in (-1, -(2**39), -(2**41), -(2**70)):
        assert store.settled(SCOPE, below) == 0
        assert (store.digest(SCOPE, below), store.items(SCOPE, below), store.count(SCOPE, below)) == ("", [], 0)
        assert (store.experience(SCOPE, "e1", below), store.task_ids(SCOPE, below)) == (None, set())
        assert store.matches(SCOPE, "item", [2, 3], below) == {}
    for beyond in (6, 2**41, 2**70):
        assert store.settled(SCOPE, beyond) == 5
        assert (store.digest(SCOPE, beyond), store.count(SCOPE, beyond)) == (store.digest(SCOPE, 5), 3)


def test_a_number_below_0_is_none_of_another_scope(store: BankStore, kind: Kind) -> None:
    if kind.scoped:
        pytest.skip("has one scope")
    give(store, "e1", "a", "b")
    give(store, "e2", "c")
    store.add_scope("z")
    give(store, "e", scope="z")
    assert [store.settled("z", 1 - 2**bits) for bits in range(64)] == [0] * 64


def test_of_an_empty_scope_every_number_is_0(nobodys: BankStore) -> None:
    assert [nobodys.settled(SCOPE, at) for at in (-1, 0, 1)] == [0, 0, 0]


# Snapshots


def test_a_snapshot_names_the_present(store: BankStore, later: Later) -> None:
    empty = store.snapshot(SCOPE, "empty", "2026-01-01")
    assert (empty.seq, empty.digest, empty.scope, empty.created_at) == (0, "", SCOPE, "2026-01-01")
    give(store, "e1", "a")
    full = store.snapshot(SCOPE, "b", "2026")
    assert (full.seq, full.digest) == (2, store.digest(SCOPE, 2))
    store = later(store)
    also = store.snapshot(SCOPE, "also", "2026")
    assert (also.seq, also.digest) == (2, full.digest)
    give(store, "e2")
    last = store.snapshot(SCOPE, "a", "2026")
    assert store.snapshots(SCOPE) == [empty, also, full, last]
    assert store.mark(SCOPE) == 3


def test_snapshots_of_one_number_are_in_the_order_of_their_names(store: BankStore, later: Later) -> None:
    for name in ("é", "b", "Z"):
        store.snapshot(SCOPE, name, "2026")
    store = later(store)
    for name in ("a", "😀", "\uffee"):
        store.snapshot(SCOPE, name, "2025")
    assert [snapshot.name for snapshot in store.snapshots(SCOPE)] == ["Z", "a", "b", "é", "\uffee", "😀"]
    give(store, "e1")
    store.snapshot(SCOPE, "A", "2024")
    assert [snapshot.name for snapshot in store.snapshots(SCOPE)] == ["Z", "a", "b", "é", "\uffee", "😀", "A"]


def test_a_name_means_one_state(store: BankStore, later: Later) -> None:
    give(store, "e1")
    made = store.snapshot(SCOPE, "name", "2026")
    store = later(store)
    assert store.snapshot(SCOPE, "name", "2027") == made
    give(store, "e2")
    with pytest.raises(InputError, match="name"):
        store.snapshot(SCOPE, "name", "2026")
    assert store.snapshots(SCOPE) == [made]


def test_a_state_is_what_it_was(store: BankStore, later: Later) -> None:
    """Everything that can be asked about a number has one answer for good."""
    steps: list[Callable[[BankStore], object]] = [
        lambda s: give(s, "e1", "a", "b", task="t1"),
        lambda s: give(s, "e2", "a", "c", task="t2", shown=[lesson("b").id]),
        lambda s: s.edit(SCOPE, lesson("a").id, lesson("x", id=lesson("a").id), vector("x"), note=""),
        lambda s: give(s, "e3", "a", task="t1"),
        lambda s: take(s, "item", lesson("c").id),
        lambda s: take(s, "experience", "e3"),
        lambda s: give(s, "e4", "c", "d", task="t3"),
        lambda s: take(s, "experience", "e1", descendants=True),
    ]
    states: dict[int, object] = {}
    for number, step in enumerate(steps):
        if number % 3 == 2:
            store = later(store)
        step(store)
        states[store.mark(SCOPE)] = _state(store, None)
        for at, state in states.items():
            assert _state(store, at) == state


def _state(store: BankStore, at: int | None) -> object:
    ids = [item.id for item in store.items(SCOPE, at)]
    experiences = store.experiences(SCOPE, after=0, limit=99, at=at)
    assert [store.item(SCOPE, id, at) for id in ids] == store.items(SCOPE, at)
    assert [store.experience(SCOPE, experience.id, at) for experience in experiences] == experiences
    assert store.count(SCOPE, at) == len(ids) == len(set(ids))
    assert store.task_ids(SCOPE, at) == {experience.task.id for experience in experiences}
    newest = {experience.task.id: experience for experience in experiences}
    assert all(store.latest(SCOPE, id, at) == newest.get(id) for id in ("t1", "t2", "t3"))
    return (
        store.items(SCOPE, at),
        experiences,
        [sorted(store.matches(SCOPE, unit, range(1, 40), at).items()) for unit in UNITS],
        store.digest(SCOPE, store.mark(SCOPE) if at is None else at),
    )


# The journal


def test_history_tells_what_happened(store: BankStore, later: Later) -> None:
    give(store, "e1", "a", note="first")
    give(store, "e2", "a")
    id = lesson("a").id
    store = later(store)
    store.edit(SCOPE, id, lesson("b", id=id), vector("b"), note="better")
    take(store, "experience", "e1")
    store = later(store)
    store.remove(SCOPE, kind="delete", source=Source("item", id), descendants=False, note="wrong")
    told = [(change.seq, change.kind, change.id, change.note) for change in store.history(SCOPE, id)]
    assert told == [
        (1, "append", id, "first"),
        (3, "append", id, ""),
        (5, "edit", id, "better"),
        (8, "rollback", id, "why"),
        (9, "delete", id, "wrong"),
    ]
    told = [(change.seq, change.kind, change.id, change.note) for change in store.history(SCOPE, "e1")]
    assert told == [(1, "append", "e1", "first"), (8, "rollback", "e1", "why")]
    assert [change.seq for change in store.history(SCOPE, "e2")] == [3]
    assert store.history(SCOPE, "none") == []
    assert all(change.created_at for change in store.history(SCOPE, id))
    (edit,) = _edits(store, id)
    assert (edit.before, edit.after) == (_draft("a"), _draft("b"))


def test_the_chain_is_that_of_the_journal(store: BankStore, later: Later) -> None:
    """Byte for byte what ``journal`` says, so that stores can be compared."""
    given = [new("e1", "a", "b", shown=["m"], note="n", origin="o"), new("e2"), new("e3", "a", "c")]
    append(store, SCOPE, given[:2])
    store = later(store)
    append(store, SCOPE, given[2:])
    heads = {0: b""}
    for each, seq in zip(given, (1, 4, 5), strict=True):
        content = journal.content_of_append(each, [item.id for item in each.items], journal.payload_json(each))
        heads[seq] = journal.entry_hash(
            list(heads.values())[-1], seq, "append", each.id, each.note, each.created_at, content
        )
    id = lesson("a").id
    store.edit(SCOPE, id, lesson("z", id=id), vector("z"), note="edited")
    (edit,) = _edits(store, id)
    content = journal.content_of_edit(id, text_digest(*item_text(lesson("z")).split("\n")), [2, 6])
    heads[8] = journal.entry_hash(heads[5], 8, "edit", id, "edited", edit.created_at, content)
    store = later(store)
    take(store, "experience", "e1")
    ended = store.history(SCOPE, "e1")[-1]
    content = journal.content_of_removal([1], [3, 9])
    heads[11] = journal.entry_hash(heads[8], 11, "rollback", "e1", "why", ended.created_at, content)
    assert {seq: store.digest(SCOPE, seq) for seq in heads} == {seq: head.hex() for seq, head in heads.items()}
    for at in range(12):
        assert store.digest(SCOPE, at) == store.digest(SCOPE, max(seq for seq in heads if seq <= at))
    assert store.digest(SCOPE, 99) == store.digest(SCOPE, 11)


# What the index is made from


def test_changes_give_vectors_as_they_are_kept(store: BankStore) -> None:
    append(store, SCOPE, [new("e1", "a", task="t1"), new("e2", "b", task="t2", label="failure"), new("e3", task="t3")])
    for unit, seqs, texts in (
        ("experience", [1, 3], ["solve t1", "solve t2"]),
        ("item", [2, 4], ["Do a.", "Do b."]),
    ):
        changes = store.changes(SCOPE, unit, after=0, limit=9)  # type: ignore[arg-type]
        assert changes.mark == 5
        assert len(changes.added) == 2
        assert changes.added.seqs.tolist() == seqs
        assert changes.added.seqs.dtype == changes.added.tasks.dtype == np.int64
        assert changes.added.tasks.tolist() == [task_key("t1"), task_key("t2")]
        assert changes.added.successes.tolist() == [True, False]
        kept, _ = vectors.unpacked(b"".join(vectors.packed(vector(text)) for text in texts), DIMENSION)
        assert np.array_equal(changes.added.vectors, kept)
        assert changes.added.vectors.dtype == np.float32
        assert changes.ended.shape == (0, 2)
        assert changes.ended.dtype == np.int64


def test_changes_come_in_pages(store: BankStore) -> None:
    for number in range(5):
        give(store, f"e{number}", f"{number}")
    take(store, "experience", "e0")  # number 11
    take(store, "experience", "e3")  # number 12
    give(store, "e5", "5")
    assert said(store, "item", 0, 2) == (4, [2, 4], [])
    assert said(store, "item", 4, 2) == (8, [6, 8], [])
    assert said(store, "item", 8, 2) == (14, [10, 14], [[2, 11], [8, 12]])
    assert said(store, "item", 14, 2) == (14, [], [])
    assert said(store, "item", 8, 3) == (14, [10, 14], [[2, 11], [8, 12]])
    assert said(store, "item", 11, 9) == (14, [14], [[8, 12]])
    assert said(store, "experience", 0, 9) == (14, [1, 3, 5, 7, 9, 13], [[1, 11], [7, 12]])


def test_changes_follow_edits_and_removals(store: BankStore, later: Later) -> None:
    """An index that starts from below, and follows the changes, has what the store shows."""
    give(store, "e1", "a", "b", task="t1")
    give(store, "e2", "a", task="t2")
    give(store, "e3", "d", task="t3")
    below = {unit: set(live(store, unit)) for unit in UNITS}
    store = later(store)
    start = store.mark(SCOPE)
    assert said(store, "item", start) == (start, [], [])
    id = lesson("a").id
    store.edit(SCOPE, id, lesson("x", id=id), vector("x"), note="")
    assert said(store, "item", start) == (10, [9, 10], [[2, 8], [5, 8]])
    changes = store.changes(SCOPE, "item", after=start, limit=9)
    assert changes.added.tasks.tolist() == [task_key("t1"), task_key("t2")]
    kept, _ = vectors.unpacked(vectors.packed(vector("x")) * 2, DIMENSION)
    assert np.array_equal(changes.added.vectors, kept)
    take(store, "item", id)
    take(store, "experience", "e1")
    give(store, "e4", "d", "e")
    take(store, "run", "r")
    for unit in UNITS:
        _, added, ended = said(store, unit, start)
        numbers = [number for _, number in ended]
        assert numbers == sorted(numbers)
        assert (below[unit] | set(added)) - {seq for seq, _ in ended} == set(live(store, unit))
        assert len(ended) == len({seq for seq, _ in ended})


def test_texts_are_what_rows_are_found_by(store: BankStore, later: Later) -> None:
    give(store, "e1", "a", task="t1")
    give(store, "e2", task="t2")
    give(store, "e3", "b", "c", task="t3")
    take(store, "experience", "e1")
    id = lesson("b").id
    store = later(store)
    store.edit(SCOPE, id, lesson("z", id=id), vector("z"), note="")
    items = [(2, "a"), (5, "b"), (6, "c"), (9, "z")]
    expected = [(seq, item_text(lesson(text))) for seq, text in items]
    assert store.texts(SCOPE, "item", after=0, limit=9) == expected
    assert store.texts(SCOPE, "experience", after=0, limit=9) == [(1, "solve t1"), (4, "solve t3")]
    for after in range(10):
        for limit in range(1, 5):
            rest = [(seq, text) for seq, text in expected if seq > after][:limit]
            assert store.texts(SCOPE, "item", after=after, limit=limit) == rest


def test_matches_show_what_is_ranked(store: BankStore, later: Later) -> None:
    first = give(store, "e1", "a", "b", task="t1")
    give(store, "e2", task="t2")
    store = later(store)
    third = give(store, "e3", "c", task="t3")
    matches = store.matches(SCOPE, "experience", [5, 1, 99])
    assert {(seq, m.experience_id, m.task_id, m.instruction) for seq, m in matches.items()} == {
        (1, "e1", "t1", "solve t1"),
        (5, "e3", "t3", "solve t3"),
    }
    assert (matches[1].items, matches[5].items) == (first.items, third.items)
    matches = store.matches(SCOPE, "item", [3, 6, 99])
    assert {seq: match.items for seq, match in matches.items()} == {3: (first.items[1],), 6: third.items}
    assert store.matches(SCOPE, "item", []) == {}
    assert store.matches(SCOPE, "item", range(1, 2000)).keys() == {2, 3, 6}


def test_the_version_changes_with_every_write(store: BankStore) -> None:
    seen = [store.version()]
    for write in (
        lambda: give(store, "e1", "a"),
        lambda: store.edit(SCOPE, lesson("a").id, lesson("b", id=lesson("a").id), vector("b"), note=""),
        lambda: take(store, "experience", "e1"),
    ):
        write()
        assert store.version() not in seen
        seen.append(store.version())
    assert store.version() == seen[-1]


# Lists and counts


def test_experiences_come_in_pages(store: BankStore, later: Later) -> None:
    for number in range(4):
        give(store, f"e{number}", f"{number}")
    take(store, "experience", "e1")
    store = later(store)
    for number in range(4, 7):
        give(store, f"e{number}", f"{number}")
    take(store, "experience", "e3")
    expected = ["e0", "e2", "e4", "e5", "e6"]
    for limit in range(1, 7):
        found: list[Experience] = []
        while page := store.experiences(SCOPE, after=found[-1].seq if found else 0, limit=limit):
            found += page
            assert len(page) == limit or len(found) == len(expected)
        assert [experience.id for experience in found] == expected
    assert store.experiences(SCOPE, after=0, limit=0) == []


def test_latest_is_the_newest_that_lives(store: BankStore, later: Later) -> None:
    for number in range(4):
        give(store, f"e{number}")
    take(store, "experience", "e2")  # number 5
    store = later(store)
    assert _latest(store, "t") == "e3"
    take(store, "experience", "e3")  # number 6
    assert _latest(store, "t") == "e1"
    take(store, "experience", "e1")  # number 7
    assert _latest(store, "t") == "e0"
    give(store, "e8")  # number 8
    assert [_latest(store, "t", at) for at in range(9)] == [None, "e0", "e1", "e2", "e3", "e3", "e1", "e0", "e8"]
    assert _latest(store, "other") is None
    take(store, "run", "r")
    assert _latest(store, "t") is None
    assert store.task_ids(SCOPE) == set()


def test_stats_count_what_is_there(store: BankStore, later: Later) -> None:
    give(store, "e1", "a", "b", template="x", shown=["m1", "m2"])
    give(store, "e2", "b", "c", label="failure", template="x")
    give(store, "e3", label="unknown", template="y", shown=["m1"])
    give(store, "e4", "d")
    store = later(store)
    store.record(SCOPE, rollout("w"))
    give(store, "e5", "e")
    take(store, "experience", "e4")
    take(store, "item", lesson("e").id)
    stats = store.stats(SCOPE)
    assert stats.model_dump(exclude={"bytes_on_disk", "schema_version"}) == {
        "scope": SCOPE,
        "items": 3,
        "experiences": 4,
        "experiences_with_items": 2,
        "by_polarity": {"failure": 1, "success": 2},
        "by_verdict": {"failure": 1, "success": 2, "unknown": 1},
        "by_template": {"x": 2, "y": 1},
        "exposures": 3,
        "pending": 1,
        "removed": 3,
        "embedder": "test",
        "dimension": DIMENSION,
    }


# Another embedder


def test_who_only_looks_binds_nothing(nobodys: BankStore) -> None:
    assert nobodys.bind("a", 4, keep=False) == ("a", 4)
    assert nobodys.bind("b", 5, keep=False) == ("b", 5)
    assert nobodys.bind("c", 6) == ("c", 6)
    assert nobodys.bind("d", 7) == nobodys.bind("e", 8, keep=False) == ("c", 6)


@pytest.mark.parametrize("lessons", [["a"], []])
def test_what_is_stored_first_binds_it(nobodys: BankStore, lessons: list[str]) -> None:
    nobodys.place(SCOPE, [new("e1", *lessons)], embedder=EMBEDDER)
    assert nobodys.bind("another", 4, keep=False) == EMBEDDER
    with pytest.raises(EmbedderMismatch, match="another"):
        nobodys.place(SCOPE, [new("e2", "b")], embedder=("another", DIMENSION))
    assert names(nobodys) == ["e1"]
    nobodys.place(SCOPE, [new("e3", "c")], embedder=EMBEDDER)
    assert names(nobodys) == ["e1", "e3"]


def longer(made: NewExperience, *, items: bool) -> NewExperience:
    """With a vector of another dimension: that of the last item, or its own."""
    long: Vectors = np.eye(1, DIMENSION + 1, dtype=np.float32)[0]
    if items:
        return replace(made, item_vectors=(*made.item_vectors[:-1], long))
    return replace(made, vector=long)


@pytest.mark.parametrize("number", [1, 50])
@pytest.mark.parametrize("items", [True, False])
def test_vectors_of_another_dimension_are_refused(
    store: BankStore, later: Later, nobodys: BankStore, number: int, items: bool
) -> None:
    give(store, "e1", "a")
    store = later(store)
    mark = store.mark(SCOPE)
    sound = [new(f"s{n}", f"{n}") for n in range(number)]
    batch = [*sound, longer(new("long", "long", "too"), items=items)]
    said = rf"a vector of {DIMENSION + 1} numbers; expected {DIMENSION}"
    for given in (batch, store.ready(batch), store.ready(store.ready(sound), store.ready(batch[number:]))):
        for embedder in (None, EMBEDDER):
            with pytest.raises(InvalidVector, match=said):
                store.place(SCOPE, given, embedder=embedder)
    with pytest.raises(InvalidVector, match=said):
        nobodys.place(SCOPE, batch, embedder=EMBEDDER)
    assert nobodys.bind("another", 4, keep=False) == ("another", 4)
    item = lesson("a").id
    with pytest.raises(InvalidVector, match=said):
        store.edit(
            SCOPE, item, lesson("b", id=item), batch[-1].vector if not items else batch[-1].item_vectors[-1], note=""
        )
    assert store.mark(SCOPE) == mark
    append(store, SCOPE, sound)
    assert store.changes(SCOPE, "item", after=mark, limit=999).added.vectors.shape == (number, DIMENSION)


def test_an_overlay_ends_when_what_is_below_moves_to_another_embedder(store: BankStore, kind: Kind) -> None:
    give(store, "e1", "a")
    if kind.scoped:
        over, below = store, store
        while below.base is not None:
            below = below.base
    else:
        over, below = MemoryStore(store, SCOPE), store
        assert over.bind(*EMBEDDER) == EMBEDDER
    give(over, "e2", "b")
    below.reindex("new", DIMENSION, embed)
    for bound in (EMBEDDER, ("new", DIMENSION)):
        for use in (
            lambda: over.changes(SCOPE, "item", after=0, limit=9),
            lambda: over.place(SCOPE, [new("e3", "c")]),
            lambda: over.place(SCOPE, [new("e3", "c")], embedder=("new", DIMENSION)),
            lambda: over.edit(SCOPE, lesson("b").id, lesson("d", id=lesson("b").id), vector("d"), note=""),
        ):
            with pytest.raises(EmbedderMismatch):
                use()
        assert over.bind(*bound) == ("new", DIMENSION)
    assert contents(over) == ["Do a.", "Do b."]


def test_reindex_replaces_all_vectors(store: BankStore, kind: Kind) -> None:
    if kind.scoped:
        pytest.skip("has its base's vectors")
    give(store, "e1", "a")
    give(store, "e2", "b")
    store.add_scope("other")
    give(store, "e1", "c", scope="other")
    take(store, "experience", "e1")
    state = store.mark(SCOPE), store.digest(SCOPE, 99), store.items(SCOPE)

    def other(texts: list[str]) -> Vectors:
        return -embed(texts)

    version = store.version()
    assert store.reindex("new", DIMENSION, other) == 6  # type: ignore[arg-type]
    assert store.version() != version
    assert store.bind("new", DIMENSION) == ("new", DIMENSION)
    assert (store.mark(SCOPE), store.digest(SCOPE, 99), store.items(SCOPE)) == state
    changes = store.changes(SCOPE, "item", after=0, limit=9)
    texts = [item_text(lesson(text)) for text in "ab"]
    kept, _ = vectors.unpacked(b"".join(vectors.packed(-vector(text)) for text in texts), DIMENSION)
    assert np.array_equal(changes.added.vectors, kept)
    assert changes.added.seqs.tolist() == [2, 4]
    assert changes.ended.tolist() == [[2, 5]]


def test_reindex_lets_appends_pass(store: BankStore, kind: Kind) -> None:
    if kind.scoped:
        pytest.skip("has its base's vectors")
    give(store, "e1", "a")

    def other(texts: list[str]) -> Vectors:
        give(store, "e2", "b")  # the first time only; later it is known
        return -embed(texts)

    assert store.reindex("new", DIMENSION, other) == 4  # type: ignore[arg-type]
    changes = store.changes(SCOPE, "item", after=0, limit=9)
    texts = [item_text(lesson(text)) for text in "ab"]
    kept, _ = vectors.unpacked(b"".join(vectors.packed(-vector(text)) for text in texts), DIMENSION)
    assert np.array_equal(changes.added.vectors, kept)


def test_a_reindex_with_rows_of_another_dimension_changes_nothing(store: BankStore, kind: Kind) -> None:
    if kind.scoped:
        pytest.skip("has its base's vectors")
    give(store, "e1", "a")
    with pytest.raises(InvalidVector, match=f"{DIMENSION} numbers; expected {DIMENSION + 1}"):
        store.reindex("new", DIMENSION + 1, embed)
    assert store.bind("new", DIMENSION + 1) == EMBEDDER
    assert store.changes(SCOPE, "item", after=0, limit=9).added.vectors.shape == (1, DIMENSION)


def test_a_reindex_ends_while_it_is_appended_to(store: BankStore, kind: Kind) -> None:
    """It gives up, and the bank is what it was."""
    if kind.scoped:
        pytest.skip("has its base's vectors")
    store.add_scope("other")
    give(store, "e1", "a")
    give(store, "e1", "a", scope="other")

    def restless(texts: list[str]) -> Vectors:
        more = store.count(SCOPE)
        assert more < 1000, "no end"
        give(store, f"more {more}", f"more {more}")
        return -embed(texts)

    with pytest.raises(StorageError, match="reindex it again"):
        store.reindex("new", DIMENSION, restless)  # type: ignore[arg-type]
    assert store.bind("new", DIMENSION) == EMBEDDER
    give(store, "last", "last")
    changes = store.changes(SCOPE, "item", after=0, limit=9999)
    assert len(changes.added) == store.count(SCOPE)
    kept, _ = vectors.unpacked(vectors.packed(vector("Do last.")), DIMENSION)
    assert np.array_equal(changes.added.vectors[-1:], kept)
    assert store.reindex("new", DIMENSION, lambda texts: -embed(texts)) == 2 * store.count(SCOPE) + 2


def test_of_what_is_sound_nothing_is_made_again(store: BankStore) -> None:
    give(store, "e1", "a", "b")
    give(store, "e2", "a")
    take(store, "experience", "e1")

    def unasked(texts: list[str]) -> Vectors:
        raise AssertionError(texts)

    assert store.mend(*EMBEDDER, unasked) == 0  # type: ignore[arg-type]
    for another in (("another", DIMENSION), ("another", 4)):
        with pytest.raises(EmbedderMismatch, match="another"):
            store.mend(*another, unasked)  # type: ignore[arg-type]


# Threads, and what is wrong


def test_threads_share_a_store(store: BankStore, later: Later) -> None:
    give(store, "e", "shared")
    store = later(store)
    wrong: list[object] = []

    def work(worker: int) -> None:
        for number in range(15):
            stored = give(store, f"e{worker}-{number}", "shared", f"{worker}-{number}")
            seen = store.experience(SCOPE, stored.id)
            changes = store.changes(SCOPE, "item", after=0, limit=1000)
            if seen is None or stored.seq > changes.mark or stored.seq + 1 not in changes.added.seqs:
                wrong.append(stored.id)

    threads = [threading.Thread(target=work, args=(worker,)) for worker in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert store.mark(SCOPE) == 2 + 4 * 15 * 3
    assert store.count(SCOPE) == 1 + 4 * 15
    shared = store.item(SCOPE, lesson("shared").id)
    assert shared is not None
    assert len(shared.provenances) == 1 + 4 * 15
    assert len({experience.seq for experience in store.experiences(SCOPE, after=0, limit=1000)}) == 61
    assert [finding for finding in store.check() if finding.severity == "error"] == []


def test_a_sound_store_has_no_errors(store: BankStore, later: Later) -> None:
    give(store, "e1", "a", "b")
    store.edit(SCOPE, lesson("a").id, lesson("z", id=lesson("a").id), vector("z"), note="")
    store = later(store)
    take(store, "item", lesson("b").id)
    store.snapshot(SCOPE, "name", "2026")
    assert [finding for finding in store.check() if finding.severity == "error"] == []


def _experience(store: BankStore, id: str) -> Experience:
    found = store.experience(SCOPE, id)
    assert found is not None
    return found


def _latest(store: BankStore, task_id: str, at: int | None = None) -> str | None:
    found = store.latest(SCOPE, task_id, at)
    return found and found.id


def _edits(store: BankStore, id: str) -> list[Change]:
    return [change for change in store.history(SCOPE, id) if change.kind == "edit"]


def _draft(text: str) -> MemoryDraft:
    return MemoryDraft(title=f"On {text}", description=f"when {text}", content=f"Do {text}.")
