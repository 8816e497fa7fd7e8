"""What is purged is nowhere in the file, its log or its index; what is only deleted is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

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
        bank.import_jsonl(tmp_path / "x.jsonl")
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


def test_a_fork_outlives_a_purge_of_what_it_edited(url: str | Path) -> None:
    with open_bank(url) as bank:
        leak, other = add(bank, "t1"), add(bank, "t2")
        fork = bank.fork()
        fork.edit(leak.items[0].id, content="Ask for the password.")
        bank.purge(leak.id)
        assert [item.id for item in fork.items()] == [other.items[0].id]
        assert len(fork.retrieve("x", k=9, unit="item")) == 1
