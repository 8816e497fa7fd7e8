"""What is purged is nowhere in the file, its log or its index; what is only deleted is."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from filelock import FileLock

from rb_dspy import ItemDraft, jsonl
from rb_dspy.errors import InputError, StorageError
from rb_dspy.schema import Removal, Verdict
from tests.bank.helpers import a_draft, a_rollout, a_task, add, open_bank
from tests.bank.postgres_server import PostgresServer

SECRET = "hunter2-correct-horse"


@pytest.fixture
def on_disk(url: str | Path, postgres_server: PostgresServer) -> Callable[[], bytes]:
    """Reads the files of the bank at ``url``; of a database the tables and indexes, without the log."""

    def read() -> bytes:
        if isinstance(url, Path):
            folder = url.parent
        else:
            postgres_server.execute("CHECKPOINT")
            (row,) = postgres_server.execute("SELECT oid FROM pg_database WHERE datname = current_database()", url)
            folder = postgres_server.data / "base" / str(row[0])
        return b"".join(file.read_bytes() for file in sorted(folder.iterdir()))

    return read


@pytest.mark.parametrize("source", ["item", "experience", "run:leak", "origin:mail"])
def test_a_purged_secret_is_not_in_the_files(url: str | Path, on_disk: Callable[[], bytes], source: str) -> None:
    with open_bank(url) as bank, open_bank(url) as other:
        add(bank, "t1", lessons=2)
        draft = a_draft("Log in", f"The password is {SECRET}.")
        rollout = a_rollout("t2") if source == "item" else a_rollout("t2", observation=SECRET)
        leak = bank.append(
            a_task("t2"), rollout, Verdict(label="success"), [draft], run_id="leak", origin="mail", shown=bank.items()
        )
        assert len(other.retrieve("The password", k=9, unit="item")) == 3
        name = {"item": leak.items[0].id, "experience": leak.id}.get(source, source)
        removal = bank.purge(name)
        assert removal.items == (leak.items[0].id,)
        assert SECRET.encode() not in on_disk()
        for each in (bank, other):
            for mode in ("dense", "lexical"):
                assert SECRET not in str(each.retrieve("The password", k=9, unit="item", mode=mode))  # type: ignore[arg-type]
            assert len(each.items()) == 2
        assert SECRET not in str(bank.history(name if source in ("item",) else leak.id))
        assert bank.doctor() == []
        with pytest.raises(InputError):
            bank.purge("m" + "0" * 20)


def test_a_second_purge_of_the_same_removes_nothing_more() -> None:
    with open_bank() as bank:
        experience = add(bank, "t1", lessons=2)
        for id in (experience.items[0].id, experience.id):
            assert bank.purge(id) != Removal()
            assert bank.purge(id) == Removal()


def test_what_others_gave_as_well_stays(tmp_path: Path) -> None:
    bank = open_bank()
    first = add(bank, "t1")
    second = bank.append(
        a_task("t2"), a_rollout("t2"), Verdict(label="success"), [a_draft(first.items[0].title)], run_id="r"
    )
    assert bank.purge(second.id).items == ()
    assert [source.task_id for source in bank.items()[0].provenances] == ["t1"]


def test_a_pending_rollout_of_a_purged_run_goes_too(url: str | Path, on_disk: Callable[[], bytes]) -> None:
    with open_bank(url) as bank:
        bank.record(a_task("t1"), a_rollout("t1", observation=SECRET), run_id="leak")
        assert len(bank.purge("run:leak").pending) == 1
        assert bank.pending() == []
        assert SECRET.encode() not in on_disk()


def test_a_fork_cannot_be_purged() -> None:
    with open_bank() as bank:
        item = add(bank, "t1").items[0]
        with pytest.raises(StorageError, match="on the bank"):
            bank.fork().purge(item.id)


@pytest.mark.parametrize("by", ["first", "last"])
def test_the_texts_of_a_handwritten_lesson_are_gone_everywhere(
    url: str | Path, on_disk: Callable[[], bytes], by: str
) -> None:
    with open_bank(url) as bank:
        first = bank.add("Log in", f"The password is {SECRET}.")
        last = bank.edit(first.id, content="Ask for the password.", note=f"was {SECRET}")
        bank.purge(first.id if by == "first" else last.id)
        assert SECRET.encode() not in on_disk()
        assert bank.items() == bank.experiences() == []


def test_an_imported_handwritten_lesson_is_gone_with_its_earlier_text(tmp_path: Path) -> None:
    with open_bank() as other:
        first = other.add("Log in", f"The password is {SECRET}.")
        last = other.edit(first.id, content="Ask for the password.")
        other.export_jsonl(tmp_path / "x.jsonl")
    with open_bank() as bank:
        bank.import_jsonl(tmp_path / "x.jsonl", own=True)
        own = add(bank, "lesson-1")
        bank.purge(last.id)
        assert bank.experiences() == [own]


def test_a_dropped_draft_leaves_no_text_in_a_note(tmp_path: Path) -> None:
    success = Verdict(label="success")
    with open_bank(tmp_path / "bank.sqlite") as bank:
        drafts = [a_draft(SECRET), a_draft("Other")]
        item = bank.append(a_task("t1"), a_rollout("t1"), success, drafts[:1], run_id="r").items[0]
        bank.delete(item.id)
        note = bank.append(a_task("t2"), a_rollout("t2"), success, drafts, run_id="r", again=False).note
        assert item.id in note
        bank.purge(item.id)
    assert SECRET.encode() not in b"".join(file.read_bytes() for file in tmp_path.iterdir())


@pytest.mark.parametrize("by", ["item", "experience", "text"])
def test_a_note_that_quotes_what_is_purged_is_emptied(url: str | Path, on_disk: Callable[[], bytes], by: str) -> None:
    success = Verdict(label="success")
    with open_bank(url) as bank:
        quoted = f"dropped: {SECRET!r} overlaps with another"
        leak = bank.append(a_task("t1"), a_rollout("t1"), success, [a_draft(SECRET)], note=quoted, run_id="r")
        other = bank.append(a_task("t2"), a_rollout("t2"), success, [a_draft("Other")], note=quoted, run_id="r")
        plain = bank.append(a_task("t3"), a_rollout("t3"), success, [a_draft("Third")], note="no more", run_id="r")
        if by == "text":
            bank.purge(text=SECRET)
        else:
            bank.purge(leak.items[0].id if by == "item" else leak.id)
        notes = {each.id: each.note for each in bank.experiences()}
        assert notes == {other.id: "", plain.id: "no more"} | ({} if by == "experience" else {leak.id: ""})
        assert SECRET.encode() not in on_disk()


@pytest.mark.parametrize("secret", ['pass"word', "back\\slash1", "two\nlines", "Schlüssel9"])
@pytest.mark.parametrize("write", [json.dumps, repr], ids=["json", "python"])
def test_a_purged_text_is_found_as_others_write_it(
    url: str | Path, secret: str, write: Callable[[list[str]], str]
) -> None:
    with open_bank(url) as bank:
        bank.record(a_task("t1"), a_rollout("t1", observation=write([secret])), run_id="r")
        assert len(bank.purge(text=secret).pending) == 1


def test_a_purged_text_is_nowhere_and_what_does_not_contain_it_stays(
    url: str | Path, on_disk: Callable[[], bytes]
) -> None:
    success = Verdict(label="success")
    with open_bank(url) as bank:
        clean = add(bank, "t1", lessons=2)
        told = bank.append(
            a_task("t2"), a_rollout("t2"), success, [a_draft("Log in", f"It is {SECRET}."), a_draft("Wait")], run_id="r"
        )
        edited = bank.edit(told.items[0].id, content="Ask for it.", note=f"was {SECRET}")
        where = {
            "step": {"trajectory": a_rollout("t3", observation=f"key {SECRET}")},
            "task": {"task": a_task("t3", env_args={"deep": [{"key": SECRET}]})},
            "reason": {"verdict": Verdict(label="success", reasons=SECRET)},
            "answer": {"trajectory": a_rollout("t3").model_copy(update={"answer": f"a {SECRET} b"})},
        }
        for run, parts in where.items():
            whole = {"task": a_task("t3"), "trajectory": a_rollout("t3"), "verdict": success} | parts
            bank.append(drafts=[a_draft(f"From {run}")], run_id=run, **whole)
        bank.delete(told.items[1].id, note=SECRET)
        bank.record(a_task("t4"), a_rollout("t4", observation=SECRET), run_id="r")
        bank.record(a_task("t5"), a_rollout("t5"), run_id="r")
        bank.record_failure(a_task("t5"), f"not JSON: {SECRET}", run_id="r")
        bank.record(a_task("t6"), a_rollout("t6"), run_id="r")
        removal = bank.purge(text=SECRET)
        assert (len(removal.experiences), len(removal.pending)) == (4, 2)
        assert [each.id for each in bank.experiences()] == [clean.id, told.id]
        assert [item.id for item in bank.items()] == [*(item.id for item in clean.items), edited.id]
        assert [pending.task.id for pending in bank.pending()] == ["t6"]
        assert SECRET.encode() not in on_disk()
        assert SECRET not in str([bank.history(item.id) for item in (edited, told.items[1])])
        assert bank.doctor() == []
        assert bank.purge(text=SECRET) == Removal()
        for wrong in ({}, {"source": clean.id, "text": SECRET}, {"text": " a "}, {"text": None}):
            with pytest.raises(InputError):
                bank.purge(**wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("version", [0, 1])
@pytest.mark.parametrize("run_id", ["", "r"])
def test_a_purge_takes_the_versions_of_a_corrected_experience(tmp_path: Path, run_id: str, version: int) -> None:
    with open_bank(tmp_path / "bank.sqlite") as bank:
        rollout, ids = a_rollout("t1", observation=SECRET), []
        for label in (None, "failure", "success"):
            told = rollout.model_copy(update={"known_label": label})
            ids.append(bank.append(a_task("t1"), told, Verdict(label="failure"), [a_draft()], run_id=run_id).id)
        other = add(bank, "t2")
        assert set(bank.purge(ids[version]).experiences) == set(ids)
        assert bank.experiences() == [other]
    assert SECRET.encode() not in b"".join(file.read_bytes() for file in tmp_path.iterdir())


@pytest.mark.parametrize("by", ["text", "run:r", "item"])
def test_a_purge_reaches_the_records_of_runs(tmp_path: Path, by: str) -> None:
    url, runs = tmp_path / "bank.sqlite", tmp_path / "bank.sqlite.runs"
    runs.mkdir()
    with open_bank(url) as bank:
        item = bank.append(
            *(a_task("t1"), a_rollout("t1", observation=SECRET), Verdict(label="success"), [a_draft(SECRET)]),
            run_id="r",
        ).items[0]
        add(bank, "t2", run_id="other")
        row = {"run_id": "r", "task": "t1", "instruction": f"sort {SECRET}", "answer": SECRET, "recalled": []}
        rows = [
            row | {"learned": [SECRET, "Other"], "solved": True, "tokens": 12, "verdict": "success", "error": ""},
            {"run_id": "other", "task": "t2", "answer": "yes", "recalled": [SECRET, "Read"], "learned": []},
        ]
        head = {"format": "rb_dspy-run", "run_id": "r", "tasks": ["t1", "t2"]}
        for name, first in (("r", head), ("foreign", {"format": "mine"})):
            for line in (first, *rows):
                jsonl.append(runs / f"{name}.jsonl", line)
        with (runs / "r.jsonl").open("a") as file:
            file.write(f'{{"answer": "{SECRET}')  # a process was killed here
        foreign = (runs / "foreign.jsonl").read_bytes()
        with FileLock(runs / "r.lock"), pytest.raises(StorageError, match="active"):
            bank.purge(text=SECRET)
        assert len(bank) == 2
        bank.purge(text=SECRET) if by == "text" else bank.purge(item.id if by == "item" else by)
    kept, one, two = jsonl.read_appended(runs / "r.jsonl")
    assert (kept, one["solved"], one["tokens"], one["verdict"]) == (head, True, 12, "success")
    assert (two["answer"], two["recalled"]) == ("yes", ["[purged]", "Read"])
    assert SECRET not in str(one["learned"])
    if by != "item":
        assert SECRET.encode() not in (runs / "r.jsonl").read_bytes()
    assert (runs / "foreign.jsonl").read_bytes() == foreign
    assert sorted(file.name for file in runs.iterdir()) == ["foreign.jsonl", "r.jsonl", "r.lock"]


def test_a_fork_outlives_a_purge_of_what_it_edited(url: str | Path) -> None:
    with open_bank(url) as bank:
        leak, other = add(bank, "t1"), add(bank, "t2")
        fork = bank.fork()
        fork.edit(leak.items[0].id, content="Ask for the password.")
        bank.purge(leak.id)
        assert [item.id for item in fork.items()] == [other.items[0].id]
        assert len(fork.retrieve("x", k=9, unit="item")) == 1


def test_a_text_in_the_data_of_an_item_is_purged(url: str | Path, on_disk: Callable[[], bytes]) -> None:
    with open_bank(url) as bank:
        draft = ItemDraft(title="t", description="", content="c", kind="case", data={"steps": ["say S3CRET-4711"]})
        stored = bank.append(a_task(), a_rollout(), Verdict(label="success"), [draft], run_id="r")
        assert bank.purge(text="S3CRET-4711").items == (stored.items[0].id,)
    assert b"S3CRET-4711" not in on_disk()


def test_a_purge_leaves_the_marks_of_what_stays(place: str | Path | None) -> None:
    with open_bank(place) as bank:
        shared = a_draft("Shared", "Said by both tasks.")
        first = bank.append(a_task("t1"), a_rollout("t1"), Verdict(label="success"), [shared], run_id="r")
        bank.append(a_task("t2"), a_rollout("t2"), Verdict(label="success"), [shared], run_id="r")
        (item,) = first.items
        bank.mark(item.id, "stale")
        bank.approve(item.id)
        bank.purge(first.id)
        assert bank.marks(item.id) == {"stale": "yes", "approved": "yes"}
        assert [change.kind for change in bank.history(item.id) if change.kind == "purge"] == []
        bank.mark(item.id, "ticket", "secret-4711")
        bank.purge(text="secret-4711")
        assert bank.marks(item.id) == {"stale": "yes", "approved": "yes"}


def test_names_of_marks_and_snapshots_are_purged_too(tmp_path: Path) -> None:
    path = tmp_path / "bank.sqlite"
    with open_bank(path) as bank:
        (item,) = add(bank).items
        bank.mark(item.id, "hunter2-x")
        bank.mark(item.id, "stale")
        bank.snapshot("hunter2-x")
        bank.purge(text="hunter2-x")
        assert bank.marks(item.id) == {"stale": "yes"}
        assert [each.name for each in bank.snapshots()] != ["hunter2-x"]
        assert bank.doctor() == []
    assert b"hunter2-x" not in path.read_bytes()


def test_a_run_may_be_purged_again(place: str | Path | None) -> None:
    with open_bank(place) as bank:
        add(bank)
        bank.purge("run:r")
        assert bank.purge("run:r") == Removal()
        with pytest.raises(InputError, match="other"):
            bank.purge("run:other")


def test_two_snapshots_of_one_state_and_deeply_nested_texts(tmp_path: Path) -> None:
    path = tmp_path / "bank.sqlite"
    secret = 'pass"word-77'
    nested = json.dumps({"body": json.dumps({"key": json.dumps(secret)})})
    with open_bank(path) as bank:
        add(bank, "t0")
        bank.snapshot(f"{secret} one")
        bank.snapshot(f"{secret} two")
        bank.append(a_task("t1"), a_rollout("t1", observation=nested), Verdict(label="success"), [a_draft()])
        bank.record(a_task("t2"), a_rollout("t2"), run_id="w", origin="mail:ann@example.org")
        add(bank, "t3", origin="mail:ann@example.org")
        bank.purge(text=secret)
        assert bank.seen_tasks() == {"t0", "t3"}
        assert len({each.name for each in bank.snapshots()}) == 2
        bank.purge("origin:mail:ann@example.org")
        assert bank.pending() == []
    assert b"ann@example.org" not in path.read_bytes()
