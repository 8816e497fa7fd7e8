"""Rows are found by their ids, wherever in the two tables their entries stand and whatever shares their hash."""

import itertools
import sqlite3
import zlib
from dataclasses import replace
from pathlib import Path

import pytest

from rb_dspy.bank.parts import Source
from rb_dspy.bank.sqlite import ids
from rb_dspy.bank.sqlite.store import SqliteStore
from tests.bank.store_cases import SCOPE, append, lesson, names, new, vector


def entries(path: Path) -> tuple[int, int]:
    """How many have gone on, and how many have not."""
    database = sqlite3.connect(path)
    gone, recent = (database.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in ("ids", "recent_ids"))
    database.close()
    return gone, recent


def change(path: Path, statement: str) -> None:
    database = sqlite3.connect(path)
    with database:
        assert database.execute(statement).rowcount > 0
    database.close()


def test_entries_go_on_and_are_found_all_the_same(
    path: Path, store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ids, "_MOVED", 10)
    store.add_scope("other")
    append(store, "other", [new("e0", "shared", scope="other")])
    for number in range(6):  # three numbers each
        append(store, SCOPE, [new(f"e{number}", "shared", f"own {number}")])
    assert entries(path) == (12, 6 + 2)  # the twelfth number was the first one after the tenth
    shared = lesson("shared").id
    store.edit(SCOPE, lesson("own 0").id, lesson("better", id=lesson("own 0").id), vector("better"), note="")
    assert entries(path) == (19, 2)  # with the row of the edit, the twentieth
    assert names(store) == [f"e{number}" for number in range(6)]
    assert store.have(SCOPE, [f"e{number}" for number in range(9)]) == {f"e{number}" for number in range(6)}
    assert append(store, SCOPE, [new("e1", "shared")]) == store.experiences(SCOPE, after=3, limit=1)
    found = store.item(SCOPE, shared)
    assert found is not None
    assert [source.experience_id for source in found.provenances] == names(store)
    assert store.count(SCOPE) == store.stats(SCOPE).items == 7
    assert (store.count("other"), store.count(SCOPE, at=6)) == (1, 3)
    assert len(store.history(SCOPE, lesson("own 0").id)) == 2
    gone = store.remove(SCOPE, kind="delete", source=Source("item", shared), descendants=False, note="")
    assert (gone.items, store.count(SCOPE)) == ((shared,), 6)
    assert list(store.check()) == []


def same_hash() -> tuple[str, str]:
    seen: dict[int, str] = {}
    for number in itertools.count():
        id = f"id {number * 2_654_435_761 % 2**32:x}"
        if (other := seen.setdefault(zlib.crc32(id.encode()), id)) != id:
            return other, id
    raise AssertionError


def test_ids_with_one_hash_are_two_ids(store: SqliteStore) -> None:
    one, two = same_hash()
    assert ids.hashed(one) == ids.hashed(two)
    append(store, SCOPE, [new(one, "a")])
    assert store.have(SCOPE, [one, two]) == {one}
    assert store.experience(SCOPE, two) is None
    (made,) = append(store, SCOPE, [new(two, "b")])
    assert (made.id, [item.id for item in made.items]) == (two, [lesson("b").id])
    assert store.have(SCOPE, [one, two]) == {one, two}
    assert [change.seq for change in store.history(SCOPE, two)] == [3]
    gone = store.remove(SCOPE, kind="delete", source=Source("experience", one), descendants=True, note="")
    assert (gone.experiences, names(store)) == ((one,), [two])
    assert list(store.check()) == []


def test_items_with_one_hash_are_two_items(store: SqliteStore) -> None:
    one, two = same_hash()
    append(store, SCOPE, [new("e1", "a", "b")])
    for text, id in (("c", one), ("d", two)):  # as ``import_jsonl`` gives them
        imported = replace(new(f"e {text}", text), items=(lesson(text, id=id),))
        assert [item.id for item in append(store, SCOPE, [imported])[0].items] == [id]
    assert store.count(SCOPE) == store.stats(SCOPE).items == 4
    assert [item.title for id in (one, two) if (item := store.item(SCOPE, id))] == ["On c", "On d"]
    gone = store.remove(SCOPE, kind="delete", source=Source("item", one), descendants=False, note="")
    assert (gone.items, store.count(SCOPE)) == ((one,), 3)
    assert list(store.check()) == []


@pytest.mark.parametrize(
    ("statement", "where"),
    [
        ("DELETE FROM recent_ids WHERE key & 1023 = 4", {"experience e2"}),
        ("DELETE FROM recent_ids WHERE key & 1023 = 2", {f"item {lesson('a').id}"}),
        ("UPDATE recent_ids SET id_key = id_key + 1 WHERE key & 1023 = 1", {"experience e1"}),
        ("UPDATE recent_ids SET key = key + 500 WHERE key & 1023 = 6", {"number 506", f"item {lesson('b').id}"}),
        ("UPDATE items SET again = NULL WHERE again IS NOT NULL", {f"item {lesson('a').id}"}),
        ("UPDATE items SET again = 7 WHERE again IS NOT NULL", {f"item {lesson('a').id}"}),
        ("UPDATE experiences SET id = 'e1' WHERE id = 'e2'", {"experience e1"}),
    ],
)
def test_doctor_names_what_is_not_found(path: Path, store: SqliteStore, statement: str, where: set[str]) -> None:
    append(store, SCOPE, [new("e1", "a", "c"), new("e2", "a", "b")])
    assert list(store.check()) == []
    change(path, statement)
    found = {finding.where for finding in store.check() if finding.kind != "chain"}
    assert found == {f"scope '{SCOPE}': {what}" for what in where}
