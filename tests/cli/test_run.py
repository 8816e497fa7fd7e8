"""``rb-dspy run``: which tasks it does, what it shows, and that an interrupted run is continued."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from rb_dspy import MemoryBank, Task, TaskResult, Trajectory
from rb_dspy.stream.journal import Folder, Journal
from rb_dspy.testing import HashEmbedder, Lock, Prompt
from tests.served import TASKS, Served, lines, private

IDS = [str(task["id"]) for task in TASKS]
SOURCE = str(Path(__file__).parents[2])


class Fixed(Lock):
    def __init__(self) -> None:
        super().__init__("6")


class OfTask(Lock):
    def __init__(self, task: Task) -> None:
        super().__init__(str(task.env_args["code"]))


class Family:
    def check(self) -> None: ...

    def tasks(self, *, seed: int) -> Any: ...

    def make(self, task: Task) -> Any:
        return OfTask(task)


class Loose(Fixed):
    """Breaks its contract."""

    def outcome(self) -> Any:
        return True


def bank(path: str = "rb-bank.sqlite") -> MemoryBank:
    return MemoryBank.open(path, scope="default", embedder=HashEmbedder())


def run(cli: Any, *args: str, code: int = 0) -> list[dict[str, Any]]:
    """The lines of JSON of a run over the tasks."""
    status, out, err = cli("run", "tasks.jsonl", *args, "--json")
    assert status == code, err
    return lines(out)


def asked(served: Served, start: int = 0) -> list[str]:
    return [prompt.role for prompt in served.prompts[start:]]


def test_a_file_is_done_whole_and_in_order_unless_there_is_a_seed(cli: Any) -> None:
    *rows, last = run(cli)
    assert [row["task"] for row in rows] == IDS
    assert not set(TaskResult(Task(id="t", instruction="x")).row()) - set(rows[0])
    assert (last["summary"]["solved"], last["summary"]["scored"], last["finished"]) == (2, 3, True)
    assert {role: used["calls"] for role, used in last["summary"]["usage"].items()} == {
        "agent": 3, "judge": 3, "distiller": 3,
    }  # fmt: skip
    shuffled = [row["task"] for row in run(cli, "--seed", "3", "--scope", "other")[:-1]]
    assert shuffled != IDS
    assert sorted(shuffled) == IDS


def test_what_a_run_writes_is_for_its_owner_only(cli: Any) -> None:
    with private():
        for command in (["run", "tasks.jsonl"], ["bank", "export", "out.jsonl"], ["bank", "backup", "copy.sqlite"]):
            assert cli(*command)[0] == 0
        assert cli("run", "tasks.jsonl", "--bank", "deep/er/bank.sqlite")[0] == 0


def test_a_named_stream_has_as_many_tasks_as_the_settings_say(cli: Any, served: Served) -> None:
    served.play = lambda prompt: {**dict.fromkeys(prompt.wants, "Oslo"), "label": "failure", "memory_items": []}
    code, out, err = cli("run", "directory", "--set", "run.tasks=2", "--json")
    assert code == 0, err
    first = [row["task"] for row in lines(out)[:-1]]
    second = [row["task"] for row in lines(cli("run", "directory", "-n", "3", "--json")[1])[:-1]]
    assert (len(first), len(second)) == (2, 3)
    assert not set(first) & set(second), "the bank has learned from the first ones"


def test_what_the_bank_has_learned_from_is_left_out_unless_new(cli: Any, served: Served) -> None:
    assert [row["task"] for row in run(cli, "-n", "1")[:-1]] == IDS[:1]
    assert [row["task"] for row in run(cli)[:-1]] == IDS[1:]
    before = len(served.prompts)
    assert run(cli)[-1]["summary"] is None
    assert len(served.prompts) == before
    assert [row["task"] for row in run(cli, "--new")[:-1]] == IDS
    assert len({row["run_id"] for row in lines(cli("runs", "list", "--json")[1])}) == 3


def test_one_question_is_asked_as_often_as_it_is_given(cli: Any, served: Served) -> None:
    for count in (1, 2):
        code, out, err = cli("run", "--task", "What is 4 and 5?", "--json")
        assert code == 0, err
        assert lines(out)[0]["answer"] == "9"
        assert asked(served).count("agent") == count


def test_without_learning_tasks_are_repeated_and_nothing_is_stored(cli: Any, served: Served) -> None:
    for _ in range(2):
        assert [row["task"] for row in run(cli, "--memory", "none")[:-1]] == IDS
    assert set(asked(served)) == {"agent"}
    assert not Path("rb-bank.sqlite").exists()
    assert run(cli)[-1]["finished"]
    before = len(served.prompts)
    assert [row["task"] for row in run(cli, "--memory", "frozen")[:-1]] == IDS
    assert set(asked(served, before)) == {"agent"}


@pytest.mark.parametrize(
    "name", ["desk:rooms", "tests.cli.test_run:Fixed", "tests.cli.test_run:OfTask", "tests.cli.test_run:Family"]
)
def test_an_environment_of_ones_own(cli: Any, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "desk", raising=False)
    Path("desk.py").write_text("from rb_dspy.testing import toys as rooms")
    task = {"instruction": "What is 1 and 5?", "env": "not-installed", "env_args": {"code": 6}}
    Path("tasks.jsonl").write_text(json.dumps(task))
    assert run(cli, "--env", name)[0]["solved"] is True


def test_an_environment_that_breaks_its_contract_says_so_on_its_task(cli: Any) -> None:
    code, out, err = cli("run", "tasks.jsonl", "-n", "1", "--env", "tests.cli.test_run:Loose")
    assert code == 0
    assert "outcome() failed" in next(line for line in out.splitlines() if "failed" in line)
    assert "no task could be scored" in err


def test_all_tasks_failing_is_an_infrastructure_error(cli: Any, served: Served) -> None:
    served.refuse = lambda prompt: 400
    code, _, err = cli("run", "tasks.jsonl", "-n", "2")
    assert code == 5
    assert err.count("\n") == 1


def test_rollouts_are_counted_from_1(cli: Any, served: Served) -> None:
    code, out, err = cli("run", "tasks.jsonl", "-n", "1", "--matts", "parallel", "--k", "2")
    assert code == 0, err
    assert "1·step 1" in out
    assert "2·step 1" in out
    assert "0·" not in out
    assert "rollout 2 of 2" in cli("runs", "show", "last")[1]
    experience = lines(cli("bank", "list", "--experiences", "--json")[1])[0]["id"]
    assert "rollout 2" in cli("bank", "show", experience)[1]


def test_memory_both_shows_lessons_whole(cli: Any, served: Served) -> None:
    fact = " ".join(f"The service number {n} is owned by the team of floor {n}." for n in range(30))
    lesson = {"title": "Owners", "description": "Always.", "content": fact}

    def play(prompt: Prompt) -> dict[str, Any]:
        if prompt.role == "distiller":
            return {"analysis": "Hm.", "memory_items": [lesson]}
        return {"thought": "Hm.", "action": "6", "reasons": "Hm.", "label": "success"}

    served.play = play
    code, out, err = cli("run", "tasks.jsonl", "-n", "1", "--memory", "both")
    assert code == 0, err
    assert fact in " ".join(out.split())


def test_memory_both_needs_answers(cli: Any) -> None:
    Path("open.jsonl").write_text('{"instruction": "What is 7 and 5?"}')
    code, _, err = cli("run", "open.jsonl", "--memory", "both")
    assert (code, "put the answers into env_args.answer" in err) == (2, True)


def test_a_run_says_how_to_look_at_lessons_and_take_them_back_if_it_learned_some(cli: Any, served: Served) -> None:
    usual = served.play
    served.play = lambda prompt: usual(prompt) | ({"memory_items": []} if prompt.role == "distiller" else {})
    assert "rollback" not in cli("run", "tasks.jsonl", "-n", "1")[1]
    served.play = usual
    assert "rb-dspy bank rollback run:" in cli("run", "tasks.jsonl")[1]


def test_rollouts_of_other_runs_are_mentioned_and_can_be_learned_from(cli: Any) -> None:
    task = Task(id="old", instruction="What is 7 and 5?")
    with bank() as opened:
        opened.record(task, Trajectory(task_id="old"), run_id="before")
    assert "1 task of other runs" in cli("run", "tasks.jsonl", "-n", "1")[1]
    assert [each["task"] for each in lines(cli("bank", "pending", "--json")[1])] == ["old"]
    assert "rb-dspy learn" in cli("bank", "pending")[1]
    code, out, err = cli("learn", "--json")
    assert (code, lines(out)[0]["learned"]) == (0, ["Add twice"]), err
    assert lines(cli("bank", "pending", "--json")[1]) == []


def ended_at(cli: Any, served: Served, role: str, number: signal.Signals, *args: str) -> tuple[int, str]:
    """Send a signal to a run when ``role`` is asked about the second task; its exit code, and what it printed."""
    reached, go_on = threading.Event(), threading.Event()
    play, main = served.play, threading.main_thread().ident
    assert main is not None
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell starts jobs in the background without it

    def waits(prompt: Prompt) -> dict[str, Any]:
        if prompt.role == role and "What is 2 and" in prompt.text:
            reached.set()
            if number is not signal.SIGKILL:
                signal.pthread_kill(main, number)
            go_on.wait(20)
        return play(prompt)

    served.play = waits
    if number is signal.SIGKILL:
        environment = {**os.environ, "PYTHONPATH": f"{SOURCE}:{Path('site').absolute()}"}
        command = [sys.executable, "-m", "rb_dspy.cli.main", "run", "tasks.jsonl", *args]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as running:
            assert reached.wait(60), running.communicate()
            running.kill()
            _, err = running.communicate(timeout=60)
        code = running.returncode
    else:
        code, _, err = cli("run", "tasks.jsonl", *args)
    served.play = play
    go_on.set()
    return code, err


@pytest.mark.parametrize(
    ("role", "number", "code"),
    [("agent", signal.SIGINT, 130), ("judge", signal.SIGTERM, 143), ("distiller", signal.SIGKILL, -9)],
)
def test_an_interrupted_run_and_its_continuation_are_one_run(
    cli: Any, served: Served, role: str, number: signal.Signals, code: int
) -> None:
    status, err = ended_at(cli, served, role, number)
    assert (status, err.count("\n")) == (code, 0 if number is signal.SIGKILL else 1), err
    (listed,) = lines(cli("runs", "list", "--json")[1])
    assert (listed["done"], listed["finished"]) == (1, False)
    before = len(served.prompts)
    status, out, err = cli("run", "tasks.jsonl")
    assert status == 0, err
    assert f"run {listed['run_id']}" in out
    assert "continues this run: 1 of 3 tasks are done" in out
    second = {"agent": ["agent", "judge", "distiller"]}.get(role, ["judge", "distiller"])
    assert asked(served, before) == [*second, "agent", "judge", "distiller"]
    *rows, last = lines(cli("runs", "show", "last", "--json")[1])
    assert [row["task"] for row in rows] == IDS
    assert (last["run_id"], last["finished"]) == (listed["run_id"], True)
    assert len(lines(cli("runs", "list", "--json")[1])) == 1
    with bank() as opened:
        assert sorted(each.task.id for each in opened.experiences()) == IDS
        assert {each.run_id for each in opened.experiences()} == {last["run_id"]}


def test_a_run_without_learning_is_continued_unless_settings_differ_or_it_is_new(cli: Any, served: Served) -> None:
    off = ("--memory", "none")
    assert ended_at(cli, served, "agent", signal.SIGINT, *off)[0] == 130
    (record,) = Path("rb-bank.sqlite.runs").glob("*.jsonl")
    for change in ("--set", "program.act.max_steps=3"), ("--set", "backbones.agent.model=openai/other"), ("--new",):
        assert [row["task"] for row in run(cli, *off, *change)[:-1]] == IDS
    for other in set(record.parent.glob("*.jsonl")) - {record}:
        other.unlink()
    before = len(served.prompts)
    *rows, last = run(cli, *off)
    assert [(row["task"], row["position"]) for row in rows] == [(IDS[1], 2), (IDS[2], 3)]
    assert asked(served, before) == ["agent"] * 2
    assert (last["summary"]["tasks"], last["finished"]) == (3, True)


def test_a_run_that_is_active_elsewhere_is_left_alone(cli: Any, served: Served) -> None:
    assert ended_at(cli, served, "agent", signal.SIGINT)[0] == 130
    with Journal.at("rb-bank.sqlite.runs").find("last").writing():
        code, _, err = cli("run", "tasks.jsonl")
    assert (code, "--new" in err) == (2, True)


def test_a_failed_task_is_done_again_in_the_same_run(cli: Any, served: Served) -> None:
    served.refuse = lambda prompt: 400 if prompt.role == "judge" and "What is 2 and" in prompt.text else None
    first = run(cli)
    assert [bool(row["error"]) for row in first[:-1]] == [False, True, False]
    assert not first[-1]["finished"]
    served.refuse, before = lambda prompt: None, len(served.prompts)
    second = run(cli)
    assert asked(served, before) == ["judge", "distiller"]
    assert (second[-1]["run_id"], second[-1]["finished"]) == (first[-1]["run_id"], True)
    assert second[-1]["summary"]["errors"] == 0


def test_what_was_learned_when_the_process_ended_before_its_row_is_in_the_record(cli: Any, served: Served) -> None:
    last = run(cli)[-1]
    (file,) = Path("rb-bank.sqlite.runs").glob("*.jsonl")
    head, first, *_ = file.read_text().splitlines()
    file.write_text(f"{head}\n{first}\n{first[:40]}")  # the rest was not written, a line is cut
    before = len(served.prompts)
    again = run(cli)[-1]
    assert served.prompts[before:] == []
    assert (again["run_id"], again["finished"], again["summary"]["tasks"]) == (last["run_id"], True, 3)
    rows = lines(cli("runs", "show", "last", "--json")[1])[:-1]
    assert [(row["task"], row["learned"]) for row in rows] == [(id, ["Add twice"]) for id in IDS]


def test_runs_are_shown_and_compared(cli: Any) -> None:
    run(cli, "--memory", "none")
    run(cli)
    off, on = (each["run_id"] for each in lines(cli("runs", "list", "--json")[1]))
    for args in (["list"], ["show", off[:6]], ["show", "last"], ["compare", off, on]):
        code, out, err = cli("runs", *args)
        assert code == 0, err
        assert out
    shown = lines(cli("runs", "show", on, "--json")[1])[-1]
    assert (shown["summary"]["tokens"], shown["summary"]["cost"]) == (3 * 3 * 40, None)  # the model has no price
    assert "UNRESOLVED" in cli("runs", "compare", off, on)[1]
    (found,) = lines(cli("runs", "compare", off, on, "--json")[1])
    assert (found["before"], found["after"], found["gained"], found["lost"]) == (off, on, [], [])
    assert (found["comparison"]["before"], found["comparison"]["tasks"]) == (pytest.approx(2 / 3), 3)
    Path("one.jsonl").write_text('{"instruction": "What is 7 and 5?"}')
    assert cli("run", "one.jsonl")[0] == 0
    assert cli("runs", "compare", off, "last")[0] == 2, "no task in common"


def test_a_bank_without_a_file_has_its_runs_in_the_current_folder() -> None:
    assert Folder.of("postgresql://user@host/db").path == Path("rb-runs")
    assert Folder.of("a/b.sqlite").path == Path("a/b.sqlite.runs")


def test_prompts_of_a_file_are_used(cli: Any, served: Served, tmp_path: Path) -> None:
    from rb_dspy import ReasoningBank, save_program

    program: Any = ReasoningBank()
    program.act.predict.signature = program.act.predict.signature.with_instructions("Add as Ada did.")
    save_program(program, "ada.json")
    assert run(cli, "-n", "1", "--program", "ada.json")[-1]["finished"]
    assert "Add as Ada did." in served.prompts[0].text or "Add as Ada did." in served.prompts[0].system


def test_a_task_that_broke_is_not_solved_in_a_comparison(cli: Any, served: Served) -> None:
    run(cli, "--memory", "none")
    served.refuse = lambda prompt: 400 if "What is 2 and" in prompt.text else None
    last = run(cli)[-1]
    assert (last["summary"]["solved"], last["summary"]["scored"], last["summary"]["broke"]) == (1, 3, 1)
    off, on = (each["run_id"] for each in lines(cli("runs", "list", "--json")[1]))
    (found,) = lines(cli("runs", "compare", off, on, "--json")[1])
    assert (found["comparison"]["tasks"], found["comparison"]["errors_after"], found["lost"]) == (3, 1, [IDS[1]])
    assert "1 of 3 solved, 1 broke" in cli("runs", "compare", off, on)[1]


def test_pending_rollouts_are_judged_with_the_prompts_of_their_program(cli: Any, served: Served) -> None:
    run(cli)
    code, _, err = cli("learn", "--program", "mine.json")
    assert (code, "mine.json" in err) == (2, True), "the prompts are read"
