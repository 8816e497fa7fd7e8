"""What every journal keeps: a folder, and tables in PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rb_dspy import MemoryBank, budget, run_stream
from rb_dspy.backbones import metered
from rb_dspy.environments.scored import Ended
from rb_dspy.errors import BudgetSpent, InputError
from rb_dspy.schema import Outcome, RoleUsage
from rb_dspy.stream.journal import Journal
from rb_dspy.testing import HashEmbedder
from tests.bank.conftest import bare_url as bare_url, postgres_server as postgres_server
from tests.stream.test_run import fails, locks, program

NASTY = 'a "b" \\ \n\x00 \ud83d é 你'


@pytest.fixture(params=["folder", "tables"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path / "runs") if request.param == "folder" else str(request.getfixturevalue("bare_url"))


@pytest.fixture
def journal(place: str) -> Iterator[Journal]:
    journal = Journal.at(place)
    yield journal
    journal.close()


def row(task: str, error: str = "") -> dict[str, object]:
    return {"task": task, "error": error, "answer": NASTY}


def test_what_was_stored_is_read_again_by_another(journal: Journal, place: str) -> None:
    run = journal.start(["a", "b"], "r", memory="on")
    run.end("a", "0", Ended((None, Outcome(reward=0.5, success=True)), ""), {"agent": RoleUsage(calls=2)})
    run.add(row("a", error="down"))
    run.add(row("a"))
    for text in ("first", NASTY):
        journal.attach("r", "a", {"text": text})
    other = Journal.at(place)
    assert (other.attached("r", "a"), other.attached("r", "b")) == (journal.attached("r", "a"), None)
    assert str(other.attached("r", "a")) == str({"text": NASTY})
    found = other.run("r")
    assert found is not None
    assert (found.tasks, found.done, found.finished) == (["a", "b"], ["a"], False)
    assert (found.head["memory"], found.rows, found.ended, found.spent) == ("on", run.rows, run.ended, run.spent)
    assert (found.rows["a"]["answer"].encode("utf-8", "backslashreplace"), found.rows["a"]["position"]) == (
        NASTY.encode("utf-8", "backslashreplace"),
        1,
    )
    found.add(row("b"))
    assert other.find("last").finished
    other.close()


def test_a_run_is_started_once(journal: Journal) -> None:
    journal.start(["a"], "r", memory="on").add(row("a"))
    again = journal.start(["other"], "r", memory="off")
    assert (again.tasks, again.head["memory"], again.done) == (["a"], "on", ["a"])


def test_runs_are_found_by_the_beginning_of_their_id_and_by_their_head(journal: Journal) -> None:
    for id, memory in (("ab-1", "on"), ("ab-2", "off"), ("ac", "on")):
        journal.start(["t"], id, memory=memory)
    assert [run.id for run in journal.runs()] == ["ab-1", "ab-2", "ac"]
    assert [run.id for run in journal.runs("ab")] == ["ab-1", "ab-2"]
    assert (journal.find("ac").id, journal.find("last").id) == ("ac", "ac")
    for name in ("ab", "nothing"):
        with pytest.raises(InputError, match=f"'{name}'"):
            journal.find(name)
    found = journal.unfinished(memory="off")
    assert found is not None
    assert found.id == "ab-2"
    found.add(row("t"))
    assert journal.unfinished(memory="off") is None


def test_a_run_is_locked_for_others(journal: Journal, place: str) -> None:
    run = journal.start(["a"], "r")
    other = Journal.at(place)
    with run.writing():
        with pytest.raises(InputError, match="active in another process"), other.find("r").writing():
            pass
        with other.lock("another") as locked:
            assert locked
    with other.find("r").writing():
        assert other.find("r").tasks == ["a"]
    other.close()


def test_a_run_of_a_program_knows_the_outcome_of_the_rollout_that_was_interrupted(journal: Journal) -> None:
    bank = MemoryBank.open(None, scope="s", embedder=HashEmbedder())

    class Killed(BaseException):
        pass

    def judge(task: object, trajectory: object) -> None:
        raise Killed

    tasks = locks(2)
    interrupted = program()
    interrupted.judge = judge
    with pytest.raises(Killed):
        run_stream(interrupted, tasks, bank, run_id="r", journal=journal)
    report = run_stream(program(), tasks, bank, run_id="r", journal=journal)
    assert [(each.resumed, each.outcome is not None, each.position) for each in report.results] == [
        (True, True, 1),
        (False, True, 2),
    ]
    assert report.results[0].usage["agent"].calls == report.results[1].usage["agent"].calls
    assert report.summary().scored == 2
    assert run_stream(program(), tasks, bank, run_id="r", journal=journal).results == []
    with pytest.raises(InputError, match="other tasks"):
        run_stream(program(), locks(3), bank, run_id="r", journal=journal)


def test_a_task_that_was_learned_without_a_row_has_one_afterwards(journal: Journal) -> None:
    bank = MemoryBank.open(None, scope="s", embedder=HashEmbedder())
    run_stream(program(), locks(2), bank, run_id="r")
    before = [each.id for each in bank.experiences()]
    report = run_stream(program(), locks(2), bank, run_id="r", journal=journal)
    assert [each.resumed for each in report.results] == [True, True]
    assert [each.id for each in bank.experiences()] == before


def test_tokens_of_a_try_that_a_limit_or_an_error_ended_are_in_the_row(journal: Journal) -> None:
    bank = MemoryBank.open(None, scope="s", embedder=HashEmbedder())
    tasks = locks(2)
    with metered() as ledger:
        run_stream(program(fails("label", 0)), tasks, bank, run_id="r", journal=journal)  # the judge of the first task
        for limit in range(500, 20_000, 500):
            try:
                with budget(max_tokens=limit):
                    run_stream(program(), tasks, bank, run_id="r", journal=journal)
                break
            except BudgetSpent:
                continue
    paid = sum(each.prompt_tokens + each.completion_tokens for each in ledger.usage().values())
    run = journal.find("r")
    assert run.finished
    assert paid > 0
    assert sum(row["tokens"] for row in run.rows.values()) == paid
