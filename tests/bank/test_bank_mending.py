"""What ``doctor`` advises works: what is damaged can be taken away, and what can be made again is made again."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path

import pytest

from rb_dspy.bank import MemoryBank
from rb_dspy.bank.parts import UNITS, Finding
from rb_dspy.errors import EmbedderMismatch, InfrastructureError, InputError
from rb_dspy.protocols import Vectors
from rb_dspy.schema import Experience, MemoryDraft, Verdict
from rb_dspy.testing import HashEmbedder
from tests.bank.helpers import a_rollout, a_task, add, open_bank


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "bank.sqlite"


@pytest.fixture
def learned(path: Path) -> list[Experience]:
    """Three experiences of two lessons each."""
    with open_bank(path) as bank:
        return [add(bank, f"t{n}", f"do thing {n}", lessons=2) for n in range(3)]


def run(path: Path, statement: str, *values: object) -> int:
    """Change a file behind the bank's back; how many rows that were."""
    database = sqlite3.connect(path, timeout=30)
    with database:
        changed = database.execute(statement, values).rowcount
    database.close()
    return changed


def damage(path: Path, what: str, id: str) -> None:
    if what == "item":
        assert run(path, "UPDATE items SET content = 'Do harm.' WHERE id = ?", id)
    elif what == "experience":
        assert run(path, "UPDATE experiences SET payload = x'00' WHERE id = ?", id)
    else:
        assert run(path, "UPDATE pending_rollouts SET payload = x'00' WHERE ? <> ''", id)


def errors(bank: MemoryBank) -> list[Finding]:
    return [finding for finding in bank.doctor() if finding.severity == "error"]


# Taken away


@pytest.mark.parametrize("by", ["delete", "rollback"])
@pytest.mark.parametrize("what", ["item", "experience"])
def test_what_is_damaged_can_be_taken_away(path: Path, learned: list[Experience], what: str, by: str) -> None:
    id = learned[1].id if what == "experience" else learned[1].items[0].id
    damage(path, what, id)
    with open_bank(path) as bank:
        (told,) = errors(bank)
        assert (told.where, told.remedy[-12:]) == (f"scope 's': {what} {id}", "or delete it")
        assert bank.delete(id, dry_run=True) == bank.rollback(id, dry_run=True)
        assert len(errors(bank)) == 1
        gone = bank.delete(id) if by == "delete" else bank.rollback(id)
        assert id in (gone.experiences if what == "experience" else gone.items)
        assert errors(bank) == []
        assert [change.kind for change in bank.history(id)] == ["append", by]
        with pytest.raises(InputError, match="any more"):
            bank.delete(id)
        assert len(bank) == (4 if what == "experience" else 5)


def test_rollouts_that_cannot_be_read_can_be_taken_away_and_keep_nothing_else(
    path: Path, learned: list[Experience]
) -> None:
    with open_bank(path) as bank:
        bank.record(a_task("waits"), a_rollout("waits"), run_id="w")
        id = bank.pending()[0].id
        damage(path, "pending", id)
        assert bank.delete(learned[0].items[0].id).items == (learned[0].items[0].id,)
        assert bank.delete(id, dry_run=True).pending == (id,)
        assert [finding.where for finding in errors(bank)] == [f"scope 's': pending {id}"]
        assert bank.delete(id).pending == (id,)
        assert bank.doctor() == []
        with pytest.raises(InputError, match="no item or experience"):
            bank.delete(id)


@pytest.mark.parametrize("where", ["file", "memory", "fork"])
def test_a_dry_run_takes_nothing_away(path: Path, where: str) -> None:
    with open_bank(path if where == "file" else None) as opened:
        bank = opened.fork() if where == "fork" else opened
        made = add(bank, lessons=2)
        bank.record(a_task("waits"), a_rollout("waits"), run_id="w")
        waits = bank.pending()[0].id
        for id in (made.id, made.items[0].id, waits):
            planned = bank.delete(id, dry_run=True)
            assert (len(bank), len(bank.pending())) == (2, 1)
            assert id in (*planned.experiences, *planned.items, *planned.pending)
        with pytest.raises(InputError, match="no item or experience"):
            bank.delete("m0", dry_run=True)


# Made again


class Counting(HashEmbedder):
    """Keeps what it was asked for."""

    def __init__(self, salt: str = "") -> None:
        super().__init__(salt=salt)
        self.texts: list[str] = []

    def embed(self, texts: Sequence[str]) -> Vectors:
        self.texts += texts
        return super().embed(texts)


def vectors(path: Path) -> list[tuple[object, ...]]:
    database = sqlite3.connect(path)
    rows = [
        row
        for unit in UNITS
        for row in database.execute(f"SELECT key, ended, task, success, crc, data FROM {unit}_vectors ORDER BY key")
    ]
    database.close()
    return rows


FAULTS = {
    "damaged": "UPDATE {table} SET data = zeroblob(length(data)) WHERE {these}",
    "cut short": "UPDATE {table} SET data = x'00' WHERE {these}",
    "no bytes": "UPDATE {table} SET data = 'text' WHERE {these}",
    "checksum": "UPDATE {table} SET crc = 7 WHERE {these}",
    "another task's": "UPDATE {table} SET task = 7 WHERE {these}",
    "another verdict's": "UPDATE {table} SET success = 1 - success WHERE {these}",
    "lost": "DELETE FROM {table} WHERE {these}",
}


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("fault", FAULTS)
def test_vectors_that_are_damaged_or_lost_are_made_again(path: Path, fault: str, unit: str) -> None:
    """Those, by the bank's own embedder, also of what has ended and of other scopes; and no other."""
    with open_bank(path, "other") as other:
        add(other, "o", "walk the dog")
    with open_bank(path) as bank:
        made = [add(bank, f"t{n}", f"do thing {n}", lessons=2) for n in range(4)]
        bank.edit(made[0].items[0].id, content="Better.")
        bank.delete(made[1].id)
        bank.delete(made[2].items[0].id)
        bank.delete(made[2].items[1].id)
        bank.snapshot("now")
        assert bank.doctor() == []
        before = bank.retrieve("do thing 3", k=9, unit=unit)  # type: ignore[arg-type]
    sound = vectors(path)
    damaged = run(path, FAULTS[fault].format(table=f"{unit}_vectors", these="(key & 1023) NOT IN (1, 3)"))
    assert damaged == (9 if unit == "item" else 3)
    embedder = Counting()
    with open_bank(path, embedder=embedder) as bank:
        told = bank.doctor()
        assert len(told) == damaged
        assert {finding.remedy for finding in told} == {f"run rb-dspy bank reindex --bank {path}, which makes it again"}
        assert bank.reindex() == damaged == len(embedder.texts)
        assert bank.doctor() == []
        assert bank.retrieve("do thing 3", k=9, unit=unit) == before  # type: ignore[arg-type]
        assert bank.reindex() == 0
    assert vectors(path) == sound


@pytest.mark.parametrize("fault", FAULTS)
def test_a_bank_that_moves_takes_along_what_was_damaged_or_lost(
    path: Path, learned: list[Experience], fault: str
) -> None:
    for unit in UNITS:
        assert run(path, FAULTS[fault].format(table=f"{unit}_vectors", these="key % 4 < 3"))
    with open_bank(path) as bank:
        embedder = Counting(salt="new")
        bank.reindex(embedder)
        assert bank.doctor() == []
        assert len(vectors(path)) == 9
        assert len(bank.retrieve("do thing 1", k=9, unit="item")) == 6


@pytest.mark.parametrize("what", ["item", "experience"])
def test_no_vector_is_made_of_a_text_that_is_damaged(path: Path, learned: list[Experience], what: str) -> None:
    id = learned[1].id if what == "experience" else learned[1].items[0].id
    damage(path, what, id)
    assert run(path, f"DELETE FROM {what}_vectors WHERE key = (SELECT key FROM {what}s WHERE id = ?)", id)
    with open_bank(path) as bank:
        told = bank.doctor()
        assert {finding.where for finding in told} == {f"scope 's': {what} {id}"}
        assert all("delete it" in finding.remedy for finding in told)
        assert bank.reindex() == 0
        assert bank.doctor() == told
        bank.delete(id)
        assert errors(bank) == []


def test_nothing_is_mended_with_another_embedder(path: Path, learned: list[Experience]) -> None:
    with open_bank(path) as stale, open_bank(path) as mover:
        mover.reindex(HashEmbedder(salt="new"))
        assert run(path, "DELETE FROM item_vectors WHERE key & 1023 = 2")
        with pytest.raises(EmbedderMismatch, match="again"):
            stale.reindex()
        assert mover.reindex() == 1
        assert mover.doctor() == []


def test_where_the_embedder_fails_the_rest_is_as_it_was(path: Path, learned: list[Experience]) -> None:
    class Broken(HashEmbedder):
        def embed(self, texts: Sequence[str]) -> Vectors:
            raise InfrastructureError("down")

    assert run(path, "DELETE FROM item_vectors WHERE key & 1023 = 2")
    before = vectors(path)
    with open_bank(path, embedder=Broken()) as bank, pytest.raises(InfrastructureError, match="down"):
        bank.reindex()
    assert vectors(path) == before


# Found again


def state(bank: MemoryBank) -> tuple[object, ...]:
    return (
        bank.items(),
        bank.experiences(),
        [bank.get(item.id) for item in bank.items()],
        [bank.history(item.id) for item in bank.items()],
        len(bank),
        bank.stats().items,
        bank.retrieve("do thing 1", k=9, unit="item"),
    )


UNFOUND = {
    "all of them": ("DELETE FROM recent_ids",),
    "an item": ("DELETE FROM recent_ids WHERE key & 1023 = 2",),
    "an experience": ("DELETE FROM recent_ids WHERE key & 1023 = 4",),
    "of those that were moved on": (
        "INSERT INTO ids SELECT * FROM recent_ids WHERE key & 1 = 0",
        "DELETE FROM recent_ids",
    ),
    "by another id": ("UPDATE recent_ids SET id_key = id_key + 1 WHERE key & 1023 IN (1, 2)",),
    "what is not there": ("INSERT INTO recent_ids SELECT id_key, key + 300 FROM recent_ids WHERE key & 1023 = 2",),
    "not as one of several": ("UPDATE items SET again = NULL",),
    "as one of another's": ("UPDATE items SET again = 7 WHERE again IS NOT NULL",),
    "as one of several, being one": ("UPDATE items SET again = 7 WHERE key & 1023 = 2",),
}


@pytest.mark.parametrize("what", UNFOUND)
def test_what_is_not_found_by_its_id_is_found_again(path: Path, what: str) -> None:
    """In all scopes; one item was learned twice, one was edited, and one experience taken away."""
    with open_bank(path, "other") as other:
        add(other, "t1", "do thing 1", lessons=2)
    with open_bank(path) as bank:
        made = [add(bank, f"t{n}", f"do thing {n}", lessons=2) for n in range(4)]
        add(bank, "t1", "do thing 1", lessons=2, run_id="again")
        bank.edit(made[0].items[0].id, content="Better.")
        bank.delete(made[3].id)
        assert bank.doctor() == []
        before = state(bank)
    for statement in UNFOUND[what]:
        assert run(path, statement)
    with open_bank(path) as bank:
        told = errors(bank)
        assert told
        assert {finding.remedy for finding in told} == {
            f"run rb-dspy bank reindex --bank {path}, which makes anew what ids are found by"
        }
        assert bank.reindex() == 0
        assert bank.doctor() == []
        assert state(bank) == before
        again = add(bank, "t2", "do thing 2", lessons=2)
        assert again.id == made[2].id  # the same attempt, which is stored already
        assert state(bank) == before
        assert bank.delete(made[0].id).experiences == (made[0].id,)
    with open_bank(path, "other") as other:
        assert [len(experience.items) for experience in other.experiences()] == [2]


@pytest.mark.parametrize("value", ["x'ff'", "CAST(x'ff' AS TEXT)"])
def test_an_id_that_is_none_is_not_said_to_be_made_again(path: Path, learned: list[Experience], value: str) -> None:
    assert run(path, f"UPDATE items SET id = {value} WHERE key & 1023 = 2")
    with open_bank(path) as bank:
        bank.reindex()
        (told,) = [finding for finding in errors(bank) if finding.kind == "row"]
        assert (told.what, told.remedy[:12]) == ("the id of number 2 is damaged", "restore the ")
        assert len(bank.items()) >= 5


# Derived, and seen


def named_indexes(path: Path) -> list[str]:
    database = sqlite3.connect(path)
    found = database.execute("SELECT name FROM sqlite_master WHERE type = 'index' AND sql IS NOT NULL ORDER BY name")
    names = [name for (name,) in found]
    database.close()
    return names


@pytest.mark.parametrize("moved", [False, True])
def test_indexes_that_are_lost_are_named_and_made_again(path: Path, learned: list[Experience], moved: bool) -> None:
    """Also of a bank that has moved to another embedder, which has them by other names."""
    embedder = HashEmbedder(salt="new" if moved else "")
    if moved:
        with open_bank(path) as bank:
            bank.reindex(embedder)
            assert bank.doctor() == []
    names = named_indexes(path)
    assert len(names) >= 7
    for name in names:
        run(path, f"DROP INDEX {name}")
        with open_bank(path, embedder=embedder) as bank:
            (told,) = errors(bank)
            assert told.kind == "index"
            assert told.remedy == f"run rb-dspy bank reindex --bank {path}, which makes it again"
            assert bank.reindex() == 0
            assert bank.doctor() == []
    if not moved:
        assert named_indexes(path) == names
    assert len(named_indexes(path)) == len(names)


def test_an_index_over_something_else_is_not_the_one_that_is_lost(path: Path, learned: list[Experience]) -> None:
    run(path, "DROP INDEX items_of_experience")
    run(path, "CREATE INDEX items_of_experience ON items (title)")
    with open_bank(path) as bank:
        assert [finding.where.partition(": ")[2] for finding in errors(bank)] == ["index items_of_experience"]
        bank.reindex()
        assert bank.doctor() == []


@pytest.mark.parametrize("value", ["NULL", "0", "2", "x'01'"])
def test_a_text_that_is_not_found_is_found_again(path: Path, learned: list[Experience], value: str) -> None:
    """Of an item that was edited: its id is not that of its text, and what says so was lost."""
    with open_bank(path) as bank:
        edited = bank.edit(learned[0].items[0].id, content="Better.")
    assert run(path, f"UPDATE items SET apart = {value} WHERE apart = 1") == 1
    with open_bank(path) as bank:
        (told,) = errors(bank)
        assert told.where == f"scope 's': item {edited.id}"
        assert told.remedy == f"run rb-dspy bank reindex --bank {path}, which makes anew what texts are found by"
        assert bank.reindex() == 0
        assert bank.doctor() == []
        draft = MemoryDraft(title=edited.title, description=edited.description, content=edited.content)
        again = bank.append(a_task("t9"), a_rollout("t9"), Verdict(label="success"), [draft])
        assert again.items[0].id == edited.id
