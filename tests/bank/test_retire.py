"""What a memory system does with other items when it learns: it retires them, and says whether they helped."""

import sqlite3
from pathlib import Path
from typing import Any

import psycopg
import pytest

from rb_dspy.bank import MemoryBank
from rb_dspy.config import TrustConfig
from rb_dspy.errors import InputError, StorageError
from rb_dspy.schema import Experience, ExperienceDraft, ItemDraft, MemoryItem, Verdict
from tests.bank.helpers import a_draft, a_rollout, a_task, open_bank

TRUST = TrustConfig(origins={"mail": "held", "boss": "owner"})


def learn(bank: MemoryBank, task: str, *titles: str, **kwargs: Any) -> Experience:
    """An experience with a lesson for each title, whose rollout was judged a success."""
    drafts = [a_draft(title, f"{title}, says {title[::-1]}.") for title in titles]
    return bank.append(a_task(task), a_rollout(task), Verdict(label="success"), drafts, **{"run_id": "r"} | kwargs)


def titles(items: list[MemoryItem]) -> list[str]:
    return [item.title for item in items]


def test_a_retired_item_is_gone_and_its_history_says_why(bank: MemoryBank) -> None:
    old, kept = learn(bank, "t1", "Count rows", "Feed the cat").items
    learn(bank, "t2", "Count rows")
    before = bank.get(old.id)
    bank.snapshot("before")
    fork = bank.fork()
    new = learn(bank, "t3", "Count rows twice", retired={old.id: "one of two that say the same", "m0": "unknown"})
    assert titles(bank.items()) == ["Feed the cat", "Count rows twice"]
    assert {match.items[0].id for match in bank.retrieve("count rows", k=9, unit="item")} == {
        kept.id,
        new.items[0].id,
    }
    assert {item.id for match in bank.retrieve("sort", k=9) for item in match.items} == {kept.id, new.items[0].id}
    assert (new.note, new) == ("", bank.get(new.id))
    assert bank.deleted_items() == [before]
    assert [(change.kind, change.note) for change in bank.history(old.id)] == [
        ("append", ""),
        ("append", ""),
        ("retire", "one of two that say the same"),
    ]
    assert fork.get(old.id) == before
    assert bank.stats().removed == 1
    with pytest.raises(InputError, match=r"a retirement at .* removed it; undelete brings it back"):
        bank.get(old.id)
    back = bank.undelete(old.id, note="both are right")
    assert back.model_copy(update={"seq": before.seq}) == before
    assert (bank.deleted_items(), bank.history(old.id)[-1].note) == ([], "both are right")
    assert bank.doctor() == []


def test_what_is_retired_may_be_learned_again(bank: MemoryBank) -> None:
    old = learn(bank, "t1", "Count rows").items[0]
    learn(bank, "t2", retired={old.id: "not used"}, marks={old.id: "neutral"}, shown=[old])
    near = learn(bank, "t3", "Count rows ", again=False)
    assert (titles([*near.items]), near.items[0].level, near.note) == (["Count rows"], "learned", "")
    learn(bank, "t4", retired={old.id: "not used"})
    bank.delete(bank.undelete(old.id).id)
    again = learn(bank, "t5", "Count rows", again=False)
    assert again.items == ()
    assert "removed before" in again.note


def test_what_says_nearly_the_same_as_a_retired_item_is_not_held(bank: MemoryBank) -> None:
    old = learn(bank, "t1", "Count all of the rows of every table first").items[0]
    learn(bank, "t2", retired={old.id: "too long"})
    text = {"title": old.title, "description": old.description, "content": f"{old.content} Yes."}
    draft = a_draft().model_copy(update=text)
    near = bank.append(a_task("t3"), a_rollout("t3"), Verdict(label="success"), [draft], run_id="r", again=False)
    assert near.items[0].level == "learned"


def test_a_mark_that_follows_a_deletion_does_not_undo_it(bank: MemoryBank) -> None:
    old = learn(bank, "t1", "Count rows").items[0]
    bank.delete(old.id)
    learn(bank, "t2", shown=[old], marks={old.id: "harmful"})
    assert learn(bank, "t3", "Count rows", again=False).items == ()
    with pytest.raises(InputError, match="a delete at"):
        bank.get(old.id)


def test_what_is_trusted_more_is_not_retired(place: str | Path | None) -> None:
    with open_bank(place, trust=TRUST) as bank:
        plain, approved, edited = learn(bank, "t1", "Count rows", "Feed the cat", "Water the plants").items
        owner = bank.add("Close the door", "Always.")
        bank.approve(approved.id)
        edited = bank.edit(edited.id, content="On Mondays.")
        held = learn(bank, "t2", "Buy a car", origin="mail").items[0]
        every = {each.id: "better" for each in (plain, approved, edited, owner, held)}
        bad = learn(bank, "t3", "Trust me", origin="mail", retired=every)
        assert titles(bank.deleted_items()) == ["Buy a car"]
        assert f"{plain.id} (learned)" in bad.note
        foreign = learn(bank, "t4", shown=[bad], retired=every)
        assert (len(bank.deleted_items()), f"{plain.id} (learned)" in foreign.note) == (1, True)
        every.pop(held.id)
        for origin in ("boss", ""):
            good = learn(bank, f"t{origin}", origin=origin, retired=every)
            assert [f"{each.id} (owner)" in good.note for each in (approved, edited, owner)] == [True] * 3
            assert (plain.id in good.note, "Count rows" in titles(bank.deleted_items())) == (False, True)
        assert {approved.id, edited.id, owner.id} <= {item.id for item in bank.items()}


@pytest.mark.parametrize("when", ["there", "removed"])
def test_what_retires_is_trusted_no_more_than_what_it_retires(place: str | Path | None, when: str) -> None:
    with open_bank(place, trust=TRUST) as bank:
        plain = learn(bank, "t1", "Count rows").items[0]
        held = learn(bank, "t2", "Buy a car", origin="mail").items[0]
        if when == "removed":  # by another, after it was read
            bank.delete(held.id)
        merged = written(bank, "t3", "Count rows and buy a car", ["t1", "t2", "t3"], plain.id, held.id)
        assert (merged.level, merged.items[0].level) == ("held", "held")
        assert (bank.get(plain.id), f"{plain.id} (learned)" in merged.note) == (plain, True)
        assert titles([each for match in bank.retrieve("buy", 9) for each in match.items]) == ["Count rows"]
        if when == "there":
            back = bank.undelete(bank.delete(merged.id).experiences[0])
            assert back.level == "held"
        bank.rollback("origin:mail")
        assert bank.items() == [plain]


@pytest.mark.parametrize("how", ["rollback", "origin", "purge"])
def test_a_removal_reaches_what_was_written_from_what_it_removes(url: str | Path, how: str) -> None:
    with open_bank(url) as bank:
        source = learn(bank, "t1", "Trust me", origin="mail:ann")
        other = learn(bank, "t2", "Count rows").items[0]
        merged = written(bank, "t3", "Trust me and count rows", ["t1", "t2", "t3"], source.items[0].id, other.id)
        again = written(bank, "t4", "Trust me twice", ["t1", "t2", "t3", "t4"], merged.items[0].id)
        listed = written(bank, "t5", "They say: trust me", ["t1", "t5"])
        whole = written(bank, "t6", "All of it", "all")
        learn(bank, "t7", "Feed the cat")
        if how == "purge":
            done = bank.purge(source.id)
            assert done.experiences == (source.id,)
            assert bank.learned("r") == {f"t{n}" for n in range(2, 8)}
            assert bank.deleted_items() == []
        else:
            done = bank.rollback(source.id if how == "rollback" else "origin:mail:ann")
            assert done.experiences == tuple(each.id for each in (source, merged, again, listed, whole))
        assert {each.items[0].id for each in (again, listed, whole)} <= {*done.items}
        assert {each.title for each in bank.items()} == {"Count rows", "Feed the cat"}
        assert bank.doctor() == []
    if how == "purge" and isinstance(url, Path):
        assert b"rust me" not in url.read_bytes()


def test_a_purge_of_an_item_takes_what_was_written_from_it(url: str | Path) -> None:
    with open_bank(url) as bank:
        secret, other = learn(bank, "t1", "The key is 4711", "Count rows").items
        merged = written(bank, "t2", "Count rows with key 4711", ["t1", "t2"], secret.id, other.id)
        bank.edit(merged.items[0].id, content="Use 4711.")
        near = written(bank, "t3", "Count columns", ["t1", "t3"])
        bank.purge(secret.id)
        assert {each.title for each in bank.items()} == {"Count rows", "Count columns"}
        assert near.items[0] in bank.items()
        assert bank.deleted_items() == []
        assert bank.doctor() == []
    if isinstance(url, Path):
        assert b"4711" not in url.read_bytes()


def test_a_rollback_leaves_what_was_written_before(bank: MemoryBank) -> None:
    written(bank, "t2", "From an earlier run", ["t1", "t2"])
    sheet = written(bank, "t3", "All so far", "all")
    late = written(bank, "t1", "All of it", "all", sheet.items[0].id)
    assert bank.rollback(late.id).experiences == (late.id,)
    assert titles(bank.items()) == ["From an earlier run", "All so far"]


def written(bank: MemoryBank, task: str, title: str, tasks: Any, *replaced: str) -> Experience:
    """An experience with an item that was written from what other tasks taught."""
    draft = ItemDraft(title=title, description="", content=f"{title}!", kind="note", data={"tasks": tasks})
    retired = dict.fromkeys(replaced, "merged")
    return bank.append(a_task(task), a_rollout(task), Verdict(label="success"), [draft], run_id="r", retired=retired)


def test_nothing_is_retired_for_what_is_held(bank: MemoryBank) -> None:
    rejected = learn(bank, "t1", "Count all of the rows of every table first").items[0]
    old = learn(bank, "t2", "Feed the cat").items[0]
    bank.reject(rejected.id)
    text = {"title": rejected.title, "description": rejected.description, "content": f"{rejected.content} Yes."}
    draft = a_draft().model_copy(update=text)
    held = bank.append(
        a_task("t3"), a_rollout("t3"), Verdict(label="success"), [draft], run_id="r", again=False, retired={old.id: "x"}
    )
    assert (held.items[0].level, bank.get(old.id)) == ("held", old)


def test_what_is_learned_again_in_the_same_write_stays(bank: MemoryBank) -> None:
    old = learn(bank, "t1", "Count rows").items[0]
    new = learn(bank, "t2", "Count rows", retired={old.id: "rewritten"})
    assert [source.task_id for source in bank.get(old.id).provenances] == ["t1", "t2"]  # type: ignore[union-attr]
    assert f"{old.id} (learned again)" in new.note
    assert bank.deleted_items() == []


def test_one_page_of_experiences_retires_what_it_gave(bank: MemoryBank) -> None:
    old = learn(bank, "t0", "Count rows").items[0]
    drafts = [
        ExperienceDraft(
            task=a_task(id), trajectories=(a_rollout(id),), verdicts=(Verdict(label="success"),), run_id="r", **more
        )
        for id, more in [
            ("t1", {"drafts": (a_draft("Count rows", old.content),)}),
            ("t2", {"retired": {old.id: "gone"}, "marks": {old.id: "harmful"}, "shown": (old.id,)}),
            ("t3", {"drafts": (a_draft("Count rows", old.content),)}),
        ]
    ]
    bank.append_many(drafts)
    assert [source.task_id for source in bank.get(old.id).provenances] == ["t3"]  # type: ignore[union-attr]
    assert [use.mark for use in bank.uses(old.id)] == ["harmful"]
    assert bank.doctor() == []


@pytest.mark.parametrize("how", ["rollback", "delete", "correction"])
def test_what_an_experience_retired_comes_back_without_it(bank: MemoryBank, how: str) -> None:
    old, other = learn(bank, "t1", "Count rows", "Feed the cat").items
    bank.mark(old.id, "team", "billing")
    learn(bank, "t2", "Water the plants", shown=[old])
    new = learn(bank, "t3", "Count rows twice", retired={old.id: "merged"}, shown=[other], marks={other.id: "helpful"})
    before = bank.get(other.id)
    if how == "correction":
        rollout = a_rollout("t3").model_copy(update={"known_label": "failure"})
        bank.append(a_task("t3"), rollout, Verdict(label="failure"), [a_draft("Count columns")], run_id="r")
        expected = ["Count rows", "Feed the cat", "Water the plants", "Count columns"]
    else:
        getattr(bank, how)(new.id)
        expected = ["Count rows", "Feed the cat", "Water the plants"]
    assert titles(bank.items()) == expected
    assert (bank.get(old.id).provenances, bank.marks(old.id)) == (old.provenances, {"team": "billing"})  # type: ignore[union-attr]
    assert (bank.get(other.id), bank.uses(old.id).tasks) == (before, ["t2"])
    assert [use.mark for use in bank.uses(other.id)] == ([None] if how == "correction" else [])
    assert bank.history(old.id)[-2].kind == "undelete"  # then the mark
    assert bank.retrieve("count rows", unit="item")[0].items[0].id == old.id
    if how != "correction":
        back = bank.undelete(new.id)
        assert titles(bank.items()) == ["Feed the cat", "Water the plants", "Count rows twice"]
        assert [(use.experience_id, use.mark) for use in bank.uses(other.id)] == [(back.id, "helpful")]
        assert bank.history(old.id)[-1].note == "merged"
    assert bank.doctor() == []


def test_what_was_removed_with_others_does_not_come_back(bank: MemoryBank) -> None:
    poison = learn(bank, "t1", "Trust me").items[0]
    taught = learn(bank, "t2", "Trust me more", retired={poison.id: "merged"}, shown=[poison])
    removal = bank.rollback(poison.id)  # its agent was shown it
    assert (removal.experiences, bank.items()) == ((taught.id,), [])
    first = learn(bank, "t3", "Count rows")
    second = learn(bank, "t4", "Count rows twice", retired={first.items[0].id: "merged"})
    bank.rollback(first.id, descendants=False)
    bank.rollback(second.id)
    assert bank.items() == []
    third = learn(bank, "t5", "Feed the cat").items[0]
    merged = learn(bank, "t6", retired={third.id: "not used"})
    bank.delete(bank.undelete(third.id).id)
    bank.rollback(merged.id)
    assert bank.items() == []


def test_a_fork_undoes_what_its_bank_retired(bank: MemoryBank) -> None:
    old = learn(bank, "t1", "Count rows").items[0]
    new = learn(bank, "t2", "Count rows twice", retired={old.id: "merged"})
    fork, second = bank.fork(), bank.fork()
    fork.rollback(new.id)
    assert titles(fork.items()) == ["Count rows"]
    assert titles(bank.items()) == titles(second.items()) == ["Count rows twice"]
    assert fork.retrieve("count rows", unit="item")[0].items[0].id == old.id
    learn(fork, "t3", retired={old.id: "again"})
    assert (fork.items(), len(fork.deleted_items())) == ([], 2)
    assert [*fork.doctor(), *bank.doctor()] == []


def test_credit_is_of_one_use(bank: MemoryBank) -> None:
    first, second = learn(bank, "t1", "Count rows", "Feed the cat").items
    bank.mark(first.id, "helped", "no")  # a mark of that name is something else
    good = learn(bank, "t2", shown=[first, second], marks={first.id: "helpful", "m0": "harmful"})
    assert good.note == "not marked, because it was not shown: m0"
    learn(bank, "t3", shown=[first], marks={first.id: "harmful"})
    assert [use.mark for use in bank.uses(first.id)] == ["helpful", "harmful"]
    assert [use.mark for use in bank.uses(second.id)] == [None]
    assert bank.marks(first.id) == {"helped": "no"}
    assert bank.retrieve("count rows", unit="item", marks={"helped": "harmful"}) == []
    assert [(each.mark, each.note) for each in bank.history(first.id) if each.kind == "mark"] == [
        ("helped", "no"),
        ("helped", "helpful"),
        ("helped", "harmful"),
    ]
    new = bank.edit(first.id, content="Count them twice.")
    assert [use.mark for use in bank.all_uses()[new.id]] == ["helpful", "harmful"]
    bank.rollback(good.id)
    assert [use.mark for use in bank.uses(new.id)] == ["harmful"]
    with pytest.raises(InputError, match="marks"):
        learn(bank, "t4", shown=[second], marks={second.id: "good"})


def test_an_export_and_a_copy_keep_credit(url: str | Path, tmp_path: Path) -> None:
    with open_bank(url) as bank:
        first, old = learn(bank, "t1", "Count rows", "Feed the cat").items
        learn(bank, "t2", shown=[first], marks={first.id: "helpful"}, retired={old.id: "not used"})
        bank.export_jsonl(tmp_path / "export.jsonl")
    MemoryBank.copy(url, tmp_path / "copy.sqlite")
    with open_bank(tmp_path / "copy.sqlite") as copied:
        assert [use.mark for use in copied.uses(first.id)] == ["helpful"]
        assert copied.undelete(old.id).id == old.id
    with open_bank() as imported:
        imported.import_jsonl(tmp_path / "export.jsonl", own=True)
        assert titles(imported.items()) == ["Count rows"]
        assert [use.mark for use in imported.uses(first.id)] == ["helpful"]
    with open_bank() as believed:
        believed.import_jsonl(tmp_path / "export.jsonl")
        assert believed.uses(first.id) == ()


def test_a_purge_takes_the_reasons_that_quote(url: str | Path) -> None:
    with open_bank(url) as bank:
        old, other = learn(bank, "t1", "Count rows", "Feed the cat").items
        new = learn(bank, "t2", "Use key 4711-0815", retired={old.id: "4711-0815 is newer"})
        learn(bank, "t3", retired={other.id: "not used"})
        bank.purge(new.items[0].id)
        assert [change.note for change in bank.history(old.id)] == ["", ""]
        assert bank.history(other.id)[-1].note == "not used"
        bank.purge(text="not used")
        assert bank.history(other.id)[-1].note == ""
        assert titles(bank.deleted_items()) == ["Count rows", "Feed the cat"]
        assert bank.doctor() == []


def test_an_error_in_the_write_stores_neither_items_nor_retirements(url: str | Path) -> None:
    with open_bank(url) as bank:
        old = learn(bank, "t1", "Count rows").items[0]
        before = bank.experiences(), bank.stats().model_copy(update={"bytes_on_disk": 0})
        if isinstance(url, Path):
            with sqlite3.connect(url) as other:
                when = "BEFORE UPDATE ON items WHEN NEW.ended IS NOT NULL"
                other.execute(f"CREATE TRIGGER fails {when} BEGIN SELECT RAISE(ABORT, 'no'); END")
        else:
            with psycopg.connect(str(url)) as server:
                server.execute(
                    "CREATE FUNCTION rb_dspy.fails() RETURNS trigger LANGUAGE plpgsql AS $$"
                    " BEGIN RAISE EXCEPTION 'no'; END $$;"
                    " CREATE TRIGGER fails BEFORE UPDATE ON rb_dspy.items FOR EACH ROW EXECUTE FUNCTION rb_dspy.fails()"
                )
        try:
            with pytest.raises(StorageError):
                learn(bank, "t2", "Count rows twice", shown=[old], retired={old.id: "x"}, marks={old.id: "harmful"})
            assert (bank.experiences(), bank.stats().model_copy(update={"bytes_on_disk": 0})) == before
            assert (bank.uses(old.id), len(bank.history(old.id))) == ((), 1)
        finally:
            if isinstance(url, Path):
                with sqlite3.connect(url) as other:
                    other.execute("DROP TRIGGER fails")
            else:
                with psycopg.connect(str(url)) as server:
                    server.execute("DROP FUNCTION rb_dspy.fails CASCADE")
        learn(bank, "t2", "Count rows twice", retired={old.id: "x"})
        assert titles(bank.items()) == ["Count rows twice"]
