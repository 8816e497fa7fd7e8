"""What ``doctor`` advises works: what is damaged can be taken away, and what can be made again is made again."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from rb_dspy.bank import MemoryBank
from rb_dspy.bank.parts import Finding
from rb_dspy.errors import InputError
from rb_dspy.schema import Experience
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
        assert run(path, "UPDATE ingestions SET payload = x'00' WHERE id = ?", id)


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
        id = bank.ingest(a_task("waits"), a_rollout("waits"), run_id="w").state.id
        damage(path, "ingestion", id)
        assert bank.delete(learned[0].items[0].id).items == (learned[0].items[0].id,)
        assert bank.delete(id, dry_run=True).ingestions == (id,)
        assert [finding.where for finding in errors(bank)] == [f"scope 's': ingestion {id}"]
        assert bank.delete(id).ingestions == (id,)
        assert bank.doctor() == []
        with pytest.raises(InputError, match="no item or experience"):
            bank.delete(id)


@pytest.mark.parametrize("where", ["file", "memory", "fork"])
def test_a_dry_run_takes_nothing_away(path: Path, where: str) -> None:
    with open_bank(path if where == "file" else None) as opened:
        bank = opened.fork() if where == "fork" else opened
        made = add(bank, lessons=2)
        waits = bank.ingest(a_task("waits"), a_rollout("waits"), run_id="w").state.id
        for id in (made.id, made.items[0].id, waits):
            planned = bank.delete(id, dry_run=True)
            assert (len(bank), len(bank.pending())) == (2, 1)
            assert id in (*planned.experiences, *planned.items, *planned.ingestions)
        with pytest.raises(InputError, match="no item or experience"):
            bank.delete("m0", dry_run=True)
