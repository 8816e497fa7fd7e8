"""Attacks on undelete and copy."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest

from rb_dspy import MemoryBank, Task, run_stream
from rb_dspy.config import TrustConfig
from rb_dspy.errors import RBError
from rb_dspy.schema import MemoryDraft, Step, Trajectory, Verdict
from rb_dspy.testing import HashEmbedder, locks, scripted_program
from tests.bank.conftest import bare_url as bare_url, postgres_server as postgres_server


def opened(place: Any = None, **more: Any) -> MemoryBank:
    return MemoryBank.open(place, scope="s", embedder=HashEmbedder(), **more)


def task(n: int = 1) -> Task:
    return Task(id=f"t{n}", instruction=f"Task {n}")


def rollout(n: int = 1, k: int = 0, **more: Any) -> Trajectory:
    return Trajectory(
        task_id=f"t{n}", rollout_id=str(k), steps=(Step(action=f"a{n}{k}", observation="o"),), answer=f"a{n}{k}", **more
    )


GOOD = Verdict(label="success", reasons="r")
DRAFTS = (MemoryDraft(title="One", content="The first lesson."), MemoryDraft(title="Two", content="The second lesson."))


def learn(bank: MemoryBank, n: int = 1, drafts: Any = DRAFTS, **more: Any) -> Any:
    return bank.append(
        task(n),
        (rollout(n),),
        (GOOD,),
        drafts,
        **{"run_id": "r", "origin": "mail:ann", "distiller": "d", "note": "n", **more},
    )


def about(bank: MemoryBank, id: str) -> dict[str, Any]:
    found = bank.get(id)
    uses = bank.uses(id)
    state = found.model_dump(exclude={"seq"})
    marks = {name: value for name, value in bank.marks(id).items() if name != "approved"}  # the level shows it
    return {**state, "uses": repr(uses), "marks": marks}


def test_an_edited_item_comes_back_as_it_was_edited() -> None:
    with opened() as bank:
        first = learn(bank)
        item = first.items[0]
        edited = bank.edit(item.id, content="A better text.")
        before = about(bank, edited.id)
        bank.delete(edited.id)
        bank.undelete(edited.id)
        assert about(bank, edited.id) == before
        assert item.id not in {each.id for each in bank.items()}


def test_undelete_of_the_old_id_of_an_edited_item_does_not_double_it() -> None:
    with opened() as bank:
        item = learn(bank).items[0]
        edited = bank.edit(item.id, content="A better text.")
        with contextlib.suppress(RBError):
            bank.undelete(item.id)
        assert {each.id for each in bank.items()} >= {edited.id}
        assert item.id not in {each.id for each in bank.items()}, "an edit was undone"
        bank.delete(edited.id)
        with contextlib.suppress(RBError):
            bank.undelete(item.id)
        assert item.id not in {each.id for each in bank.items()}


@pytest.mark.parametrize("times", [1, 2, 3])
def test_an_experience_comes_back_each_time(times: int) -> None:
    with opened(trust=TrustConfig(origins={"mail:*": "held"})) as bank:
        shown = bank.add("Old", "An old lesson.")
        first = learn(bank, shown=(shown,), cited=(shown,), reward=0.7, submitted=0)
        bank.approve(first.id)
        bank.mark(first.id, "color", "blue")
        before, items, uses = (
            about(bank, first.id),
            [about(bank, each.id) for each in first.items],
            len(bank.uses(shown.id)),
        )
        id = first.id
        for _ in range(times):
            bank.delete(id)
            back = bank.undelete(id)
            id = back.id
        after = about(bank, id)
        differ = {name: (before[name], after[name]) for name in before if before[name] != after[name]}
        for name in ("id", "items"):
            differ.pop(name, None)
        assert not differ
        again = [about(bank, each.id) for each in first.items]
        for old, new in zip(items, again, strict=True):
            old.pop("provenances"), new.pop("provenances")
        assert again == items
        assert len(bank.uses(shown.id)) == uses
        assert not bank.doctor()


def test_the_first_id_finds_an_experience_that_was_deleted_twice() -> None:
    with opened() as bank:
        first = learn(bank)
        bank.delete(first.id)
        second = bank.undelete(first.id)
        bank.delete(second.id)
        third = bank.undelete(first.id)
        assert bank.get(third.id)
        assert len(bank.experiences()) == 1


def test_undelete_twice_gives_one_experience() -> None:
    with opened() as bank:
        first = learn(bank)
        bank.delete(first.id)
        bank.undelete(first.id)
        with contextlib.suppress(RBError):
            bank.undelete(first.id)
        assert len(bank.experiences()) == 1
        assert len(bank.items()) == 2


def test_an_experience_that_was_learned_again_is_not_doubled() -> None:
    """After a delete the same rollout was learned again, by undelete of it there are two of one attempt."""
    with opened() as bank:
        first = learn(bank)
        bank.delete(first.id)
        with contextlib.suppress(RBError):
            learn(bank)
        with contextlib.suppress(RBError):
            bank.undelete(first.id)
        assert len([each for each in bank.experiences() if each.run_id == "r"]) == 1


def texts(path: Path) -> bytes:
    return b"".join(each.read_bytes() for each in path.parent.glob(f"{path.name}*") if each.is_file())


@pytest.mark.parametrize("order", ["purge text", "purge experience", "purge origin"])
def test_what_was_purged_does_not_come_back(tmp_path: Path, order: str) -> None:
    file = tmp_path / "a.sqlite"
    with opened(file) as bank:
        first = learn(bank, drafts=(MemoryDraft(title="Secret", content="PURGE-ME now."), DRAFTS[1]))
        second = learn(
            bank, 2, drafts=(MemoryDraft(title="Secret", content="PURGE-ME now."),), origin="mail:bob", run_id="q"
        )
        item = first.items[0]
        bank.delete(item.id)
        if order == "purge text":
            bank.purge(text="PURGE-ME")
        elif order == "purge experience":
            bank.purge(first.id)
        else:
            bank.purge("origin:mail:ann")
        for id in (item.id, first.id):
            with contextlib.suppress(RBError):
                bank.undelete(id)
        ids = {each.id for each in bank.experiences()}
        assert first.id not in ids or order == "purge text"
        for each in bank.items():
            if each.id == item.id:
                assert order != "purge text"
                assert all(source.experience_id != first.id for source in each.provenances)
        assert not bank.doctor()
    MemoryBank.copy(file, tmp_path / "b.sqlite")
    if order == "purge text":
        assert b"PURGE-ME" not in texts(tmp_path / "b.sqlite")
    with opened(tmp_path / "b.sqlite") as copied:
        assert {each.id for each in copied.items()} == {each.id for each in opened(file).items()}
        assert not copied.doctor()
        assert second.id


def everything(bank: MemoryBank) -> dict[str, Any]:
    items = bank.items()
    experiences = bank.experiences()
    pending = bank.pending()
    return {
        "items": [each.model_dump() for each in items],
        "experiences": [each.model_dump() for each in experiences],
        "uses": [repr(bank.uses(each.id)) for each in [*items, *experiences]],
        "marks": [bank.marks(each.id) for each in [*items, *experiences]],
        "history": [[repr(x) for x in bank.history(each.id)] for each in [*items, *experiences]],
        "pending": [
            (
                each.task,
                each.run_id,
                each.trajectories,
                [i.id for i in each.shown],
                each.origin,
                each.failures if hasattr(each, "failures") else None,
                each.error,
                each.reward,
                each.created_at,
            )
            for each in pending
        ],
        "snapshots": [repr(each) for each in bank.snapshots()],
        "held": [repr(each) for each in bank.held_items()],
        "deleted": [each.id for each in bank.deleted_items()],
        "origins": [repr(each) for each in bank.origins()],
        "found": [
            [(i.id for i in match.items) and round(match.score, 5) for match in bank.retrieve(text)]
            for text in ("lesson", "first")
        ],
        "stats": {
            name: value
            for name, value in bank.stats().model_dump().items()
            if "size" not in name and "bytes" not in name and "path" not in name and "url" not in name
        }
        if hasattr(bank.stats(), "model_dump")
        else None,
    }


def full(bank: MemoryBank) -> None:
    first = learn(bank)
    bank.mark(first.items[0].id, "color", "blue")
    bank.mark(first.id, "color", "red")
    learn(
        bank,
        2,
        shown=first.items,
        cited=first.items[:1],
        drafts=(MemoryDraft(title="Three", content="Another one."),),
        reward=0.3,
    )
    held = learn(bank, 3, origin="evil:x", drafts=(MemoryDraft(title="Held", content="A held lesson."),))
    bank.approve(held.id)
    learn(bank, 4, origin="evil:y", drafts=(MemoryDraft(title="Held two", content="Another held lesson."),))
    bank.edit(first.items[1].id, content="Edited.")
    bank.snapshot("before")
    gone = learn(bank, 5, drafts=(MemoryDraft(title="Gone", content="A gone lesson."),))
    bank.delete(gone.items[0].id)
    gone = learn(bank, 6, drafts=(MemoryDraft(title="Purged", content="A purged lesson."),))
    bank.purge(gone.id)
    bank.record(task(7), rollout(7), run_id="w", shown=first.items[:1], origin="mail:zoe", reward=0.9)
    bank.record_failure(task(7), "bad answer", run_id="w", trajectories=(rollout(7),))
    bank.add("Mine", "By hand.")


TRUST = TrustConfig(origins={"evil:*": "held"})


@pytest.mark.parametrize("to", ["sqlite", "postgresql", "there and back"])
def test_a_copy_is_equal(tmp_path: Path, bare_url: str, to: str) -> None:
    file = tmp_path / "a.sqlite"
    with opened(file, trust=TRUST) as bank:
        full(bank)
        before = everything(bank)
    target: Any = tmp_path / "b.sqlite" if to == "sqlite" else bare_url
    MemoryBank.copy(file, target)
    if to == "there and back":
        MemoryBank.copy(target, tmp_path / "c.sqlite")
        target = tmp_path / "c.sqlite"
    with opened(target, trust=TRUST) as copied:
        after = everything(copied)
        assert not copied.doctor()
        for name in before:
            if name != "stats":
                assert after[name] == before[name], name
        id = copied.deleted_items()[0].id
        copied.undelete(id)
        again = copied.append(
            task(8),
            (rollout(8),),
            (GOOD,),
            (MemoryDraft(title="Purged", content="A purged lesson."),),
            run_id="z",
            again=False,
        )
    with opened(file, trust=TRUST) as bank:
        same = bank.append(
            task(8),
            (rollout(8),),
            (GOOD,),
            (MemoryDraft(title="Purged", content="A purged lesson."),),
            run_id="z",
            again=False,
        )
    assert [each.title for each in again.items] == [each.title for each in same.items]


def test_a_copy_on_itself_or_a_full_bank_changes_nothing(tmp_path: Path) -> None:
    file = tmp_path / "a.sqlite"
    with opened(file, trust=TRUST) as bank:
        full(bank)
        before = everything(bank)
    for target in (file, f"{tmp_path}/./a.sqlite"):
        with pytest.raises(RBError):
            MemoryBank.copy(file, target)
    with opened(file, trust=TRUST) as bank:
        assert everything(bank) == before


def test_a_lesson_that_a_run_learned_and_that_was_deleted_stays_so_on_resume(tmp_path: Path) -> None:
    with opened() as bank:
        program = scripted_program()
        run_stream(program, locks(3), bank, run_id="r", journal=tmp_path)
        gone = bank.items()[-1].id
        bank.delete(gone)
        run_stream(program, locks(3), bank, run_id="r", journal=tmp_path)
        assert gone not in {each.id for each in bank.items()}
