"""A scope goes out as JSON Lines and comes in again, whole, once, and nothing in a file is trusted."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from rb_dspy import jsonl
from rb_dspy.bank import MemoryBank
from rb_dspy.errors import InputError, UnknownScope
from rb_dspy.schema import Experience, Verdict
from tests.bank.helpers import a_draft, a_rollout, a_task, add, open_bank

FIRST_EDITION = Path(__file__).parent / "data" / "first-edition.jsonl"


@pytest.fixture
def full() -> MemoryBank:
    """Two experiences, an edited lesson, and one that was given twice; the second was shown the first lesson."""
    bank = open_bank()
    first = add(bank, "t1", lessons=2)
    add(bank, "t2", "buy a lamp", label="failure", shown=first.items[:1], origin="Ada")
    twice = a_draft(first.items[1].title)
    bank.append(a_task("t3"), a_rollout("t3"), Verdict(label="success"), [twice], run_id="other", distiller="lm")
    bank.edit(first.items[0].id, content="Read it twice.")
    return bank


def plain(experiences: list[Experience]) -> list[dict[str, Any]]:
    """Without what is a bank's own: its scope and its numbers."""
    left_out = {"scope": True, "seq": True, "items": {"__all__": {"scope", "seq"}}}
    return [experience.model_dump(exclude=left_out) for experience in experiences]


def changed(path: Path, number: int, change: Callable[[dict[str, Any]], None]) -> Path:
    """The export with another line of this number."""
    lines = path.read_text().splitlines()
    value = json.loads(lines[number])
    change(value)
    lines[number] = json.dumps(value)
    path.write_text("\n".join(lines))
    return path


def everything(bank: MemoryBank) -> list[object]:
    """What a bank says of itself, of the past too."""
    every = [*bank.items(), *bank.deleted_items(), *bank.experiences()]
    return [
        every,
        [(each.task, each.trajectories, each.shown, each.origin, each.tries, each.error) for each in bank.pending()],
        [(bank.history(each.id), bank.all_uses().get(each.id)) for each in every],
        [bank.marks(each.id) for each in bank.items()],
        bank.snapshots(),
        bank.doctor(),
    ]


def test_a_copy_has_the_history_and_what_waits_and_goes_back(
    tmp_path: Path, url: str | Path, postgres_url: str
) -> None:
    first, last = (url, tmp_path / "new.sqlite") if url == postgres_url else (url, postgres_url)
    with open_bank(first) as bank:
        given = add(bank, "t1", lessons=3, origin="Ada")
        add(bank, "t2", "buy a lamp", label="failure", shown=given.items[:1])
        bank.edit(given.items[0].id, content="Read it twice.")
        bank.snapshot("then")
        bank.mark(given.items[1].id, "stale")
        bank.delete(given.items[2].id, note="wrong")
        bank.record(a_task("t3"), a_rollout("t3"), run_id="r", shown=given.items[1:2], origin="mail:ann")
        bank.record_failure(a_task("t3"), "no answer", run_id="r")
        before, stats = everything(bank), bank.stats()
    with open_bank(first, "other") as bank:
        add(bank)
    assert MemoryBank.copy(first, last) == {"other": 1, "s": 2}
    with open_bank(last) as bank:
        assert everything(bank) == before
        sizes = {"bytes_on_disk"}
        assert bank.stats().model_dump(exclude=sizes) == stats.model_dump(exclude=sizes)
        assert bank.retrieve("buy a lamp", k=1)[0].task_id == "t2"
        assert add(bank, "t4").seq > stats.items
    with open_bank(last, at="then") as bank:
        assert len(bank) == 4
    with pytest.raises(InputError, match="scope 's' is not empty, and differs"):
        MemoryBank.copy(first, last, scope="s")
    assert MemoryBank.copy(last, tmp_path / "third.sqlite", scope="other") == {"other": 1}
    with open_bank(tmp_path / "third.sqlite", "other", create=False) as bank:
        assert bank.scopes() == ["other"]
    with pytest.raises(UnknownScope, match="'nobody'"):
        MemoryBank.copy(first, tmp_path / "fourth.sqlite", scope="nobody")
    assert not (tmp_path / "fourth.sqlite").exists()


def test_a_copy_that_was_interrupted_between_scopes_goes_on(tmp_path: Path, url: str | Path, postgres_url: str) -> None:
    first, last = (url, tmp_path / "new.sqlite") if url == postgres_url else (url, postgres_url)
    for scope in ("a", "b", "c"):
        with open_bank(first, scope) as bank:
            given = add(bank, "t1", lessons=2, origin="Ada")
            add(bank, "t2", "buy a lamp", shown=given.items)
            bank.delete(given.items[0].id, note="wrong")
            bank.mark(given.items[1].id, "stale")
            bank.record(a_task("t3"), a_rollout("t3"), run_id="r", shown=given.items[1:2])
            bank.snapshot("then")
    MemoryBank.copy(first, last, scope="a")  # as far as it came
    assert MemoryBank.copy(first, last) == {"b": 2, "c": 2}
    assert MemoryBank.copy(first, last) == {}
    for scope in ("a", "b", "c"):
        with open_bank(first, scope) as old, open_bank(last, scope) as new:
            assert everything(new) == everything(old)
    changes: dict[str, Callable[[MemoryBank], object]] = {
        "a": lambda bank: bank.record(a_task("t4"), a_rollout("t4"), run_id="r"),
        "b": lambda bank: bank.record_failure(a_task("t3"), "no answer", run_id="r"),
        "c": lambda bank: bank.mark(bank.items()[0].id, "color", "blue"),
    }
    for scope, change in changes.items():
        with open_bank(last, scope) as bank:
            change(bank)
            before = everything(bank)
        with pytest.raises(InputError, match=f"scope '{scope}' is not empty, and differs"):
            MemoryBank.copy(first, last, scope=scope)
        with open_bank(last, scope) as bank:
            assert everything(bank) == before


@pytest.mark.parametrize("scope", ["s", "another"])
def test_what_goes_out_comes_in(full: MemoryBank, tmp_path: Path, place: str | Path | None, scope: str) -> None:
    path = tmp_path / "x.jsonl"
    assert full.export_jsonl(path) == 3
    with open_bank(place, scope) as other:
        assert other.import_jsonl(path, own=True) == [experience.id for experience in full.experiences()]
        expected = plain(full.experiences())
        expected[1]["shown"] = (full.experiences()[0].items[0].id,)  # exported with its present id
        assert plain(other.experiences()) == expected
        assert {item.id for item in other.items()} == {item.id for item in full.items()}
        assert other.retrieve("buy a lamp")[0].task_id == "t2"
        again = tmp_path / "again.jsonl"
        other.export_jsonl(again)
        assert again.read_text().splitlines()[1:] == path.read_text().splitlines()[1:]
        assert other.doctor() == []


def test_an_export_beside_a_purge_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = tmp_path / "bank.sqlite"
    with open_bank(url) as bank, open_bank(url) as other, ThreadPoolExecutor(1) as pool:
        last = [add(bank, f"t{number}") for number in range(4)][-1]
        purges = []

        def encode(value: Any) -> bytes:
            if not purges:  # the first line
                purges.append(pool.submit(other.purge, last.id))
                while len(other.experiences()) == 4:
                    time.sleep(0.01)
            return jsonl.encode(value)

        monkeypatch.setattr("rb_dspy.bank.transfer.encode", encode)
        written = bank.export_jsonl(tmp_path / "x.jsonl")
        assert purges[0].result().experiences == (last.id,)
        assert len(bank.experiences()) == 3
    with open_bank() as copy:
        assert len(copy.import_jsonl(tmp_path / "x.jsonl", own=True)) == written


def test_a_second_import_changes_nothing_and_what_was_removed_stays_away(full: MemoryBank, tmp_path: Path) -> None:
    full.export_jsonl(tmp_path / "x.jsonl")
    other = open_bank()
    other.import_jsonl(tmp_path / "x.jsonl", own=True)
    before = other.experiences()
    other.import_jsonl(tmp_path / "x.jsonl", own=True)
    assert other.experiences() == before
    other.delete(before[0].id)
    other.import_jsonl(tmp_path / "x.jsonl", own=True)
    assert other.seen_tasks() == {"t2", "t3"}


def test_another_experience_with_the_same_run_and_task_is_stored_too(bank: MemoryBank, tmp_path: Path) -> None:
    """Two banks that both had a run "r" and a task "t1"."""
    own = add(bank, "t1")
    with open_bank() as other:
        success, drafts = Verdict(label="success"), [a_draft("Another lesson")]
        other.append(a_task("t1", "reset a password"), a_rollout("t1", action="reset"), success, drafts, run_id="r")
        other.export_jsonl(tmp_path / "other.jsonl")
    (id,) = bank.import_jsonl(tmp_path / "other.jsonl", own=True)
    assert id != own.id
    assert [(each.id, each.run_id) for each in bank.experiences()] == [(own.id, "r"), (id, "r")]
    assert bank.import_jsonl(tmp_path / "other.jsonl", own=True) == [id]
    bank.export_jsonl(tmp_path / "both.jsonl")
    assert bank.import_jsonl(tmp_path / "both.jsonl", own=True) == [own.id, id]
    assert len(bank.experiences()) == 2
    with open_bank() as copy:
        assert copy.import_jsonl(tmp_path / "both.jsonl", own=True) == [own.id, id]
        assert plain(copy.experiences()) == plain(bank.experiences())


def test_a_rollback_in_a_copy_follows_an_edited_lesson(full: MemoryBank, tmp_path: Path) -> None:
    first, second, third = full.experiences()
    full.edit(first.items[0].id, content="Read it three times.")
    full.export_jsonl(tmp_path / "x.jsonl")
    with open_bank() as copy:
        copy.import_jsonl(tmp_path / "x.jsonl", own=True)
        assert set(copy.rollback(first.id).experiences) == {first.id, second.id}
        assert [each.id for each in copy.experiences()] == [third.id]


def test_an_origin_marks_all_of_it(full: MemoryBank, tmp_path: Path) -> None:
    full.export_jsonl(tmp_path / "x.jsonl")
    other = open_bank()
    own = add(other, "own")
    other.import_jsonl(tmp_path / "x.jsonl", origin="friend")
    assert {experience.origin for experience in other.experiences()} == {"", "friend"}
    assert len(other.rollback("origin:friend").experiences) == 3
    assert other.experiences() == [own]


def test_an_export_of_the_first_edition_is_imported(bank: MemoryBank) -> None:
    """Its ids were made otherwise; what an agent was shown is found by the text."""
    assert len(bank.import_jsonl(FIRST_EDITION, own=True)) == 3
    first, second, third = bank.experiences()
    assert [experience.task.id for experience in (first, second, third)] == ["t1", "t2", "t3"]
    shared, edited = first.items  # an edited lesson stands last in such a file
    assert edited.content == "Read the mail twice."
    assert [source.task_id for source in shared.provenances] == ["t1", "t3"]
    assert (second.shown, third.shown) == ((edited.id,), (shared.id,))
    assert third.origin == "Ada"
    assert second.id in bank.rollback(first.id, dry_run=True).experiences
    assert bank.doctor() == []


def test_a_file_that_was_cut_off_is_refused_before_anything_is_stored(full: MemoryBank, tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    full.export_jsonl(path)
    path.write_text("\n".join(path.read_text().splitlines()[:-1]))
    other = open_bank()
    with pytest.raises(InputError, match="part of it is missing"):
        other.import_jsonl(path, own=True)
    assert other.experiences() == []


@pytest.mark.parametrize(
    ("number", "change", "words"),
    [
        (0, lambda line: line.update(format="other"), ":1: not an export"),
        (0, lambda line: line.update(version=99), ":1: version 99 .* upgrade"),
        (0, lambda line: line.update(experiences=99), "part of it is missing"),
        (1, lambda line: line.update(more=1), ":2: more"),
        (1, lambda line: line.pop("task"), ":2: task"),
        (1, lambda line: line["items"][0].update(title="  "), ":2: .*no title"),
        (1, lambda line: line["items"][0].update(content="x" * 20_000), ":2: content has 20,000 characters"),
        (1, lambda line: line["items"][0].update(distiller="x"), ":2: items of several distillers"),
        (1, lambda line: line.update(trajectories=[]), ":2: task t1: 0 trajectories"),
        (1, lambda line: line.update(created_at="noon"), ":2: created_at 'noon'"),
        (1, lambda line: line.update(run_id="a\u200bb"), ":2: run id"),
        (2, lambda line: line.update(id="e" + "0" * 20), None),
    ],
)
def test_a_line_that_cannot_be_used_is_named(
    full: MemoryBank, tmp_path: Path, number: int, change: Callable[[dict[str, Any]], None], words: str | None
) -> None:
    full.export_jsonl(tmp_path / "x.jsonl")
    path = changed(tmp_path / "x.jsonl", number, change)
    other = open_bank()
    if words is None:  # ids are made again from what they stand for
        assert other.import_jsonl(path, own=True) == [experience.id for experience in full.experiences()]
        return
    with pytest.raises(InputError, match=words) as caught:
        other.import_jsonl(path, own=True)
    assert "\n" not in str(caught.value)
    assert other.experiences() == []


def test_what_is_no_export_is_refused(tmp_path: Path) -> None:
    bank = open_bank(tmp_path / "bank.sqlite")
    for name in ("bank.sqlite", "missing.jsonl", "."):
        with pytest.raises(InputError):
            bank.import_jsonl(tmp_path / name, own=True)
    bank.close()
