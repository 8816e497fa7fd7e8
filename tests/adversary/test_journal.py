"""Attacks on the journal and on what is told apart by it."""

from __future__ import annotations

import contextlib
import json
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from rb_dspy import MemoryBank, ReasoningBank, Task, run_stream
from rb_dspy.cli.main import main
from rb_dspy.errors import InputError, RBError
from rb_dspy.stream.journal import Folder, Journal
from rb_dspy.testing import HashEmbedder
from tests.bank.conftest import bare_url as bare_url, postgres_server as postgres_server


def program(done: list[str], right: bool = True) -> ReasoningBank:
    def agent(task: Task, lessons: str) -> str:
        done.append(task.instruction)
        return task.instruction

    return ReasoningBank(agent=agent, score=lambda task, answer: right)


def bank() -> MemoryBank:
    return MemoryBank.open(None, scope="x", embedder=HashEmbedder())


@pytest.mark.parametrize("name", ["../escaped", "a/../../escaped", "/tmp/rb-adversary/escaped", "..", "a/b", "x" * 200])
def test_a_run_id_stays_in_the_folder(tmp_path: Path, name: str) -> None:
    place = tmp_path / "runs"
    place.mkdir()
    (tmp_path / "a").mkdir()
    done: list[str] = []
    with contextlib.suppress(RBError):
        run_stream(program(done), ["one"], bank(), run_id=name, learn=False, journal=place)
    outside = [each for each in tmp_path.rglob("*.jsonl") if place not in each.parents]
    outside += list(Path("/tmp/rb-adversary").rglob("*.jsonl"))
    inside = list(place.rglob("*.jsonl"))
    assert not outside
    assert not inside or Journal.at(place).run(name) is not None


@pytest.mark.parametrize("name", ["a/b", "x" * 200, "ü" * 200])
def test_a_valid_run_id_can_be_stored_and_found(tmp_path: Path, name: str) -> None:
    done: list[str] = []
    run_stream(program(done), ["one"], bank(), run_id=name, learn=False, journal=tmp_path / "runs")
    assert [each.id for each in Journal.at(tmp_path / "runs").runs()] == [name]


def test_a_run_is_not_continued_with_other_tasks_of_the_same_ids(tmp_path: Path) -> None:
    done: list[str] = []
    first = [Task(id="a", instruction="What is 1 and 1?"), Task(id="b", instruction="What is 2 and 2?")]
    other = [Task(id="a", instruction="Name a sea."), Task(id="b", instruction="Name a river.")]
    run_stream(program(done), first, bank(), run_id="r", learn=False, journal=tmp_path)
    with pytest.raises(RBError, match="other tasks"):
        run_stream(program(done), other, bank(), run_id="r", learn=False, journal=tmp_path)


@pytest.mark.parametrize("line", ['{"task": "text"}', '{"task": 5}', '{"rollout": "0"}'])
def test_a_line_that_is_not_of_a_run_is_refused(tmp_path: Path, line: str) -> None:
    run_stream(program([]), ["one"], bank(), run_id="r", learn=False, journal=tmp_path)
    with (tmp_path / "r.jsonl").open("a") as file:
        file.write(line + "\n")
    with pytest.raises(InputError, match=r"r\.jsonl: has a line that is not of a run"):
        run_stream(program([]), ["one"], bank(), run_id="r", learn=False, journal=tmp_path)


@pytest.mark.parametrize("line", ["[]", "nonsense", '{"task": "te'])
def test_a_line_that_was_cut_is_skipped(tmp_path: Path, line: str) -> None:
    run_stream(program([]), ["one"], bank(), run_id="r", learn=False, journal=tmp_path)
    with (tmp_path / "r.jsonl").open("a") as file:
        file.write(line)
    report = run_stream(program([]), ["one"], bank(), run_id="r", learn=False, journal=tmp_path)
    assert (report.skipped, report.results) == (1, [])


@pytest.mark.parametrize(
    "head", ['{"format": "rb_dspy-run"}', '{"format": "rb_dspy-run", "run_id": "q", "tasks": ["a"]}']
)
def test_a_head_that_lacks_keys_is_refused(tmp_path: Path, head: str) -> None:
    run_stream(program([]), ["one"], bank(), run_id="r", learn=False, journal=tmp_path)
    (tmp_path / "q.jsonl").write_text(head + "\n")
    with pytest.raises(InputError, match=r"q\.jsonl: has a line that is not of a run"):
        Journal.at(tmp_path).runs()


def test_two_threads_with_one_journal_in_a_folder_do_not_share_a_run(tmp_path: Path) -> None:
    shared(Journal.at(tmp_path))


def test_two_threads_with_one_journal_in_postgresql_do_not_share_a_run(bare_url: str) -> None:
    with closing(Journal.at(bare_url)) as journal:
        shared(journal)


def shared(journal: Journal) -> None:
    inside, go = threading.Barrier(2, timeout=3), []
    errors: list[BaseException] = []

    def agent(task: Task, lessons: str) -> str:
        go.append(task.id)
        with contextlib.suppress(threading.BrokenBarrierError):
            inside.wait()
        return "x"

    made = ReasoningBank(agent=agent, score=lambda task, answer: True)

    def run() -> None:
        try:
            run_stream(made, [Task(id="t", instruction="one")], bank(), run_id="r", learn=False, journal=journal)
        except RBError as exc:
            errors.append(exc)

    threads = [threading.Thread(target=run) for _ in range(2)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert len(go) == 1, "one run was done twice at the same time"
    assert len(errors) == 1


def test_a_lock_that_was_released_is_one_lock_again(tmp_path: Path) -> None:
    """Its file stays: a process that waits for it and one that comes later must not have two files."""
    first, second, third = Folder(tmp_path), Folder(tmp_path), Folder(tmp_path)
    with first.lock("r") as locked:
        assert locked
    kept = list(tmp_path.glob("*.lock"))
    with second.lock("r") as locked, third.lock("r") as other:
        assert (locked, other, list(tmp_path.glob("*.lock"))) == (True, False, kept)
    assert kept


def test_runs_list_shows_runs_of_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.chdir(tmp_path)
    run_stream(program([]), ["one"], bank(), run_id="r", learn=False, journal="b.sqlite.runs")
    MemoryBank.open("b.sqlite", scope="default", embedder=HashEmbedder()).close()
    assert main(["runs", "list", "--bank", "b.sqlite"]) == 0
    assert main(["runs", "show", "r", "--bank", "b.sqlite"]) == 0


def test_runs_list_prints_a_run_id_as_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.chdir(tmp_path)
    head = {"stream": "s", "memory": "bank", "scope": "default", "program": "p", "models": "m"}
    Folder(tmp_path / "b.sqlite.runs").start(["a"], "x[bold]", **head)
    assert main(["runs", "list", "--bank", "b.sqlite"]) == 0
    assert "x[bold]" in capsys.readouterr().out


def test_a_key_in_the_id_of_a_task_or_error_is_not_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_API_KEY", "hunter2-hunter2")

    def agent(task: Task, lessons: str) -> str:
        raise ValueError("refused: key hunter2-hunter2 " + "x" * 400)

    made = ReasoningBank(agent=agent, score=lambda task, answer: True)
    run_stream(
        made, [Task(id="t", instruction="use hunter2-hunter2")], bank(), run_id="r", learn=False, journal=tmp_path
    )
    for each in tmp_path.rglob("*"):
        assert b"hunter2" not in each.read_bytes(), each
    assert json.loads((tmp_path / "r.jsonl").read_text().splitlines()[-1])["error"]


def test_a_run_without_learning_is_not_taken_as_one_with(tmp_path: Path) -> None:
    done: list[str] = []
    with bank() as opened:
        run_stream(program(done), ["one"], opened, run_id="r", learn=False, journal=tmp_path)
        try:
            report = run_stream(program(done), ["one"], opened, run_id="r", learn=True, journal=tmp_path)
        except RBError:
            return
        assert not report.skipped, "skipped without having learned"


def test_an_absolute_run_id_stays_in_the_folder(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    with contextlib.suppress(RBError):
        run_stream(
            program([]), ["one"], bank(), run_id=f"{tmp_path}/elsewhere/x", learn=False, journal=tmp_path / "runs"
        )
    assert not list((tmp_path / "elsewhere").iterdir())
