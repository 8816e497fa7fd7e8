"""An overlay is its base at a number, and from there on a store of its own."""

import threading
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rb_dspy.bank.interface import BankStore
from rb_dspy.bank.memory.store import MemoryStore
from rb_dspy.bank.parts import UNITS, Source
from rb_dspy.bank.sqlite.store import SqliteStore
from rb_dspy.errors import EmbedderMismatch, InputError, StorageError, UnknownScope
from rb_dspy.schema import Experience
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
    rollout,
    vector,
    waiting,
)


@pytest.fixture(params=["memory", "sqlite", "overlay"])
def base(request: pytest.FixtureRequest, tmp_path: Path) -> BankStore:
    """A store with three experiences, the last number of which is 7, and a second scope."""
    made: BankStore = SqliteStore(tmp_path / "bank.sqlite") if request.param == "sqlite" else MemoryStore()
    made.bind("test", DIMENSION)
    made.add_scope(SCOPE)
    give(made, "e1", "a", "b", task="t1")
    if request.param == "overlay":
        made = MemoryStore(made, SCOPE)
        made.bind("test", DIMENSION)
    else:
        made.add_scope("other")
    give(made, "e2", "a", task="t2")
    give(made, "e3", "c", task="t3")
    return made


def everything(store: BankStore, at: int | None = None) -> object:
    """What a store says of a state."""
    mark = store.mark(SCOPE) if at is None else at
    ids = [item.id for item in store.items(SCOPE, at)] + names(store, at)
    return (
        store.items(SCOPE, at),
        store.experiences(SCOPE, after=0, limit=99, at=at),
        store.task_ids(SCOPE, at),
        [sorted(store.matches(SCOPE, unit, range(1, 50), at).items()) for unit in UNITS],
        [[change for change in store.history(SCOPE, id) if change.seq <= mark] for id in ids],
        [store.digest(SCOPE, number) for number in range(mark + 1)],
    )


def spoil(store: BankStore) -> None:
    """Do everything that can be done to a store with the three experiences."""
    id = lesson("a").id
    store.edit(SCOPE, id, lesson("spoilt", id=id), vector("spoilt"), note="spoilt")
    store.remove(SCOPE, kind="delete", source=Source("item", lesson("b").id), descendants=False, note="spoilt")
    store.remove(SCOPE, kind="rollback", source=Source("experience", "e3"), descendants=True, note="spoilt")
    give(store, "spoilt", "c", "spoilt too", task="t3")
    store.record(SCOPE, rollout("spoilt, waiting"))
    store.snapshot(SCOPE, "spoilt", "2026")


def test_neither_sees_what_happens_to_the_other(base: BankStore) -> None:
    overlays = [MemoryStore(base, SCOPE) for _ in range(3)]
    before, digest = everything(base), base.stats(SCOPE).model_copy(update={"bytes_on_disk": 0})
    spoil(overlays[0])
    assert everything(base) == everything(overlays[1]) == before
    assert base.stats(SCOPE).model_copy(update={"bytes_on_disk": 0}) == digest
    assert (base.pending(SCOPE), base.snapshots(SCOPE)) == ([], [])
    spoilt = everything(overlays[0])
    assert spoilt != before
    spoil(base)
    assert everything(base, 7) == everything(overlays[1]) == before
    assert everything(overlays[0]) == spoilt
    assert overlays[1].pending(SCOPE) == overlays[1].snapshots(SCOPE) == []
    assert overlays[1].mark(SCOPE) == 7
    spoil(overlays[1])
    assert contents(overlays[1]) == contents(base)
    assert everything(overlays[2]) == before


def test_it_can_begin_at_any_number(base: BankStore) -> None:
    give(base, "e4", "d", task="t1")
    base.remove(SCOPE, kind="delete", source=Source("experience", "e1"), descendants=False, note="")
    for at in range(base.mark(SCOPE) + 1):
        then = MemoryStore(base, SCOPE, at, read_only=True)
        assert everything(then) == everything(base, at)
        assert (then.mark(SCOPE), then.count(SCOPE)) == (at, len(contents(base, at)))
        fork = MemoryStore(base, SCOPE, at)
        stored = give(fork, "mine", "a", "mine", task="mine")
        assert stored.seq == at + 1
        assert fork.experience(SCOPE, "mine") == stored
        assert [item.content for item in stored.items] == ["Do a.", "Do mine."]
        assert contents(fork, at) == contents(base, at)
        assert fork.count(SCOPE) == len(contents(fork))


def test_equal_histories_have_equal_digests(base: BankStore) -> None:
    fork = MemoryStore(base, SCOPE)
    assert fork.digest(SCOPE, 7) == base.digest(SCOPE, 7) != ""
    for store in (fork, base):
        append(store, SCOPE, [new("e4", "a"), new("e5", "x")])
    assert fork.digest(SCOPE, 99) == base.digest(SCOPE, 99)
    give(fork, "e6", "y")
    give(base, "e6", "z")
    assert fork.digest(SCOPE, 99) != base.digest(SCOPE, 99)


def test_an_unreached_number_is_refused(base: BankStore) -> None:
    for at in (-1, 8):
        with pytest.raises(InputError, match="between 0 and 7"):
            MemoryStore(base, SCOPE, at)
    with pytest.raises(UnknownScope):
        MemoryStore(base, "none")
    with pytest.raises(InputError, match="both"):
        MemoryStore(base)
    with pytest.raises(InputError, match="both"):
        MemoryStore(scope=SCOPE)


def test_it_has_one_scope(base: BankStore) -> None:
    overlay = MemoryStore(base, SCOPE)
    overlay.add_scope(SCOPE)
    assert overlay.scopes() == [SCOPE]
    with pytest.raises(UnknownScope):
        overlay.items("other")
    with pytest.raises(InputError, match="one scope"):
        overlay.add_scope("other")
    assert overlay.location == f"{base.location}@7"


def test_a_snapshot_cannot_be_written(base: BankStore) -> None:
    then = MemoryStore(base, SCOPE, 5, read_only=True)
    id, source = lesson("a").id, Source("experience", "e1")
    before = everything(then)
    for write in (
        lambda: give(then, "e9", "z"),
        lambda: then.record(SCOPE, rollout("w")),
        lambda: then.forget(SCOPE, [rollout("w").key]),
        lambda: then.edit(SCOPE, id, lesson("z", id=id), vector("z"), note=""),
        lambda: then.remove(SCOPE, kind="delete", source=source, descendants=True, note=""),
        lambda: then.snapshot(SCOPE, "name", "2026"),
    ):
        with pytest.raises(StorageError, match=r"a snapshot is read-only; fork\(\) it"):
            write()
    told = then.remove(SCOPE, kind="delete", source=source, descendants=True, note="", dry_run=True)
    assert (told.experiences, told.items) == (("e1",), (lesson("b").id,))
    assert everything(then) == before
    fork = MemoryStore(then, SCOPE)
    assert give(fork, "e9", "z").seq == 6
    assert everything(then) == before


def test_snapshots_of_below_are_its_own(base: BankStore) -> None:
    first = base.snapshot(SCOPE, "first", "2026")
    overlay = MemoryStore(base, SCOPE)
    give(base, "e9")
    base.snapshot(SCOPE, "second", "2026")
    assert overlay.snapshots(SCOPE) == [first]
    give(overlay, "e8")
    with pytest.raises(InputError, match="first"):
        overlay.snapshot(SCOPE, "first", "2026")
    mine = overlay.snapshot(SCOPE, "second", "2026")
    assert overlay.snapshots(SCOPE) == [first, mine]
    assert mine.digest == overlay.digest(SCOPE, 8)


def test_what_waits_below_is_not_its_business(base: BankStore) -> None:
    base.record(SCOPE, rollout("below"))
    overlay = MemoryStore(base, SCOPE)
    overlay.record(SCOPE, rollout("mine"))
    assert waiting(overlay) == ["mine"]
    give(overlay, "e", "z", task="below")
    overlay.remove(SCOPE, kind="rollback", source=Source("run", "r"), descendants=True, note="")
    assert overlay.pending(SCOPE) == []
    assert waiting(base) == ["below"]


def test_changes_are_only_its_own(base: BankStore) -> None:
    overlay = MemoryStore(base, SCOPE)
    for unit in UNITS:
        changes = overlay.changes(SCOPE, unit, after=0, limit=99)
        assert (changes.mark, len(changes.added), len(changes.ended)) == (7, 0, 0)
    spoil(overlay)
    below = {unit: set(base.matches(SCOPE, unit, range(1, 8))) for unit in UNITS}
    for unit in UNITS:
        changes = overlay.changes(SCOPE, unit, after=0, limit=99)
        assert changes.added.seqs.min(initial=99) > 7
        alive = (below[unit] | set(changes.added.seqs.tolist())) - set(changes.ended[:, 0].tolist())
        assert alive == set(overlay.matches(SCOPE, unit, range(1, 50)))


def test_it_belongs_to_its_bases_embedder(base: BankStore) -> None:
    overlay = MemoryStore(base, SCOPE)
    assert overlay.changes(SCOPE, "item", after=0, limit=9).added.vectors.shape == (0, DIMENSION)
    assert (overlay.stats(SCOPE).embedder, overlay.stats(SCOPE).dimension) == ("test", DIMENSION)
    assert overlay.bind("another", 3) == ("test", DIMENSION)
    assert overlay.changes(SCOPE, "item", after=0, limit=9).added.vectors.shape == (0, DIMENSION)
    with pytest.raises(StorageError, match="the bank itself"):
        overlay.reindex("another", 3, embed)


def test_a_base_of_another_embedder_takes_no_more_vectors(tmp_path: Path) -> None:
    for base in (MemoryStore(), SqliteStore(tmp_path / "bank.sqlite")):
        base.bind("test", DIMENSION)
        base.add_scope(SCOPE)
        give(base, "e1", "a")
        overlay = MemoryStore(base, SCOPE)
        overlay.bind("test", DIMENSION)
        base.reindex("new", DIMENSION, embed)
        with pytest.raises(EmbedderMismatch, match=r"'test'.*'new'"):
            give(overlay, "e2", "b")
        with pytest.raises(EmbedderMismatch):
            overlay.edit(SCOPE, lesson("a").id, lesson("b", id=lesson("a").id), vector("b"), note="")
        assert contents(overlay) == ["Do a."]


def test_closing_it_leaves_the_base_open(base: BankStore) -> None:
    overlay = MemoryStore(base, SCOPE)
    overlay.close()
    overlay.close()
    assert give(base, "e9").seq == 8


def test_making_one_takes_no_space() -> None:
    base = MemoryStore()
    base.bind("test", DIMENSION)
    base.add_scope(SCOPE)
    append(base, SCOPE, [new(f"e{number}", f"{number}") for number in range(3000)])

    def fork() -> MemoryStore:
        return MemoryStore(base, SCOPE)

    forks = [fork() for _ in range(1000)]
    assert all(fork.mark(SCOPE) == 6000 for fork in forks)
    tracemalloc.start()
    forks = [fork() for _ in range(1000)]
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert used / len(forks) < 4096
    stored = [give(fork, "mine", f"{number}", f"of {number}") for number, fork in enumerate(forks[:100])]
    assert [len(experience.items[0].provenances) for experience in stored] == [2] * 100
    assert [contents(fork)[-1] for fork in forks[:20]] == [f"Do of {number}." for number in range(20)]


def test_forks_of_one_base_live_in_threads(base: BankStore) -> None:
    learned: dict[int, list[str]] = {}

    def work(worker: int) -> None:
        fork = MemoryStore(base, SCOPE, 7)
        for number in range(10):
            give(fork, f"{worker}-{number}", "a", f"{worker}-{number}")
            give(base, f"base-{worker}-{number}", "a", f"base {worker}-{number}")
        learned[worker] = contents(fork)

    threads = [threading.Thread(target=work, args=(worker,)) for worker in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for worker in range(4):
        assert learned[worker] == ["Do a.", "Do b.", "Do c.", *(f"Do {worker}-{number}." for number in range(10))]
    assert base.count(SCOPE) == 3 + 40


def test_a_deep_pile_is_still_right() -> None:
    bottom = MemoryStore()
    bottom.bind("test", DIMENSION)
    bottom.add_scope(SCOPE)
    pile: list[BankStore] = [bottom]
    stored: list[Experience] = []
    for number in range(20):
        stored.append(give(pile[-1], f"e{number}", "shared", f"{number}"))
        pile.append(MemoryStore(pile[-1], SCOPE))
    for number, store in enumerate(pile[1:], 1):
        assert names(store) == [f"e{n}" for n in range(min(number + 1, 20))]
    top = pile[-1]
    for number in range(19):
        top.remove(SCOPE, kind="delete", source=Source("experience", f"e{number}"), descendants=False, note="")
    item = top.item(SCOPE, lesson("shared").id)
    assert item is not None
    assert [provenance.experience_id for provenance in item.provenances] == ["e19"]
    assert item.seq == stored[19].seq + 1
    assert len(pile[-2].items(SCOPE)) == 21


@pytest.mark.parametrize(
    ("write", "breaks"),
    [
        *((write, breaks) for write in ("append", "edit", "remove") for breaks in ("item_rows", "digest")),
        *(("append", "items_with"), ("edit", "items_with"), ("remove", "matches")),
    ],
)
def test_what_cannot_be_read_below_stops_a_write_whole(write: str, breaks: str) -> None:
    """A base that fails while it is asked leaves the overlay as it was."""
    base = MemoryStore()
    base.bind("test", DIMENSION)
    base.add_scope(SCOPE)
    give(base, "e1", "a", "b")
    flaky = _Flaky(base)
    overlay = MemoryStore(flaky, SCOPE)  # type: ignore[arg-type]
    id = lesson("b").id
    writes: dict[str, Callable[[], object]] = {
        "append": lambda: append(overlay, SCOPE, [new("e2", "a"), new("e3", "b")]),
        "edit": lambda: overlay.edit(SCOPE, id, lesson("z", id=id), vector("z"), note=""),
        "remove": lambda: overlay.remove(
            SCOPE, kind="delete", source=Source("experience", "e1"), descendants=True, note=""
        ),
    }
    flaky.broken = breaks
    with pytest.raises(StorageError, match="disk gone"):
        writes[write]()
    flaky.broken = ""
    assert (overlay.mark(SCOPE), contents(overlay), names(overlay)) == (3, ["Do a.", "Do b."], ["e1"])
    assert overlay.digest(SCOPE, 99) == base.digest(SCOPE, 3)
    writes[write]()
    assert overlay.mark(SCOPE) > 3


class _Flaky:
    """A store of which one call fails."""

    def __init__(self, store: BankStore) -> None:
        self.store = store
        self.broken = ""

    def __getattr__(self, name: str) -> Any:
        if name == self.broken:
            raise StorageError("disk gone")
        return getattr(self.store, name)
