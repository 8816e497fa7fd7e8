"""Ids of items are stored, exported and shown to agents, so they never change: what they are is written down here."""

from dataclasses import replace
from pathlib import Path

import pytest

from rb_dspy.bank.admission import free_item_id, item_id
from rb_dspy.bank.interface import BankStore
from rb_dspy.bank.memory.store import MemoryStore
from tests.bank.store_cases import DIMENSION, SCOPE, a_store, append, give, lesson, new, vector

DIGEST = "0123456789abcdef0123"


@pytest.mark.parametrize(
    ("parent", "id"),
    [
        ("s", "m4b354a3c06b03edb7b12"),
        ("e0123", "m813b52da2ade45fc3308"),
        ("", "mb3773869c08500e58ad7"),
        ('a "b"\\', "mf716a23bb8ee1060a29b"),
        ("Zürich\n\u2028", "maaeb13df3bbeccc26084"),
        ("\x7f", "m1603fc7fa9e133e4be58"),
    ],
)
def test_an_id_is_a_hash_of_scope_or_experience_and_text(parent: str, id: str) -> None:
    assert item_id(parent, DIGEST) == id
    assert free_item_id(parent, DIGEST, lambda _: False) == id


def test_the_id_after_a_taken_one_is_made_of_that_one() -> None:
    taken = {item_id("e1", DIGEST)}
    assert free_item_id("e1", DIGEST, taken.__contains__) == "m99c8f9b8a8a8ec1919c0"


@pytest.mark.parametrize("kind", ["memory", "file"])
def test_every_store_gives_the_same_ids(tmp_path: Path, kind: str) -> None:
    store: BankStore = MemoryStore() if kind == "memory" else a_store(tmp_path / "bank.sqlite")
    store.bind("test", DIMENSION)
    store.add_scope(SCOPE)
    for number, id in enumerate(["m105c619fd263528d5041", "mea31fd35397a7a139569", "m47974c2124bfa3c1ea0b"]):
        (item,) = give(store, f"e{number}", "one").items
        assert item.id == id
        store.edit(SCOPE, id, lesson(f"other {number}"), vector("other"), note="")
    # An import brings the id that the next experience would have given, and that item is edited as well.
    id = "mde143b9898ea7ece540e"
    append(store, SCOPE, [replace(new("f", "one"), items=(lesson("one", id=id),))])
    store.edit(SCOPE, id, lesson("more"), vector("more"), note="")
    (item,) = give(store, "e3", "one").items
    assert item.id == "mffda3486175ec8880146"
    assert list(store.check()) == []
    store.close()
