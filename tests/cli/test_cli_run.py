"""``rb-dspy run``: what it says of answers that were cut off, tasks nobody can score, and other runs beside it."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rb_dspy import Backbones, MemoryBank, TaskResult, TaskStream
from rb_dspy.cli.main import main
from rb_dspy.plugins import embedder
from rb_dspy.schema import Task, Trajectory, Verdict
from rb_dspy.testing import Prompt, Reply
from tests.worlds import backbones, cut_off, item

UNSCORED = """
from rb_dspy.environments.question import Question

def broken():
    raise OSError("no grader")

class Unscored(Question):
    def make(self, *args, **kwargs):
        made = super().make(*args, **kwargs)
        made.outcome = broken
        return made
"""


FEW = """
from rb_dspy import Task
from rb_dspy.environments.question import Question

class Few(Question):
    name = "few"
    def check(self):
        pass
    def templates(self):
        return ["sum"]
    def tasks(self, *, seed, templates=None):
        for n in range(3):
            yield Task(id=f"few/{n}", instruction=f"What is {n} and 5?", template="sum", env_args={"answer": "7"})
"""

ENDLESS = FEW.replace("Few", "Endless").replace("few", "endless").replace("range(3)", "iter(range(10**9))")


@pytest.fixture(autouse=True)
def _in_a_folder_with_tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    write()


def write(**fields: object) -> None:
    tasks = [
        {"id": f"sum/{n}", "instruction": f"What is {n} and 5?", "env_args": {"answer": "7"}, **fields} for n in (1, 2)
    ]
    Path("sums.jsonl").write_text("\n".join(map(json.dumps, tasks)))


def installed(folder: Path, monkeypatch: pytest.MonkeyPatch, family: str, code: str) -> None:
    """A package that brings a family of environments, called as its class is but small."""
    about = folder / "site" / "acme-1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: acme\nVersion: 1.0\n")
    point = f"{family.lower()} = acme_{family.lower()}:{family}"
    (about / "entry_points.txt").write_text(f"[rb_dspy.environments]\n{point}\n")
    (folder / "site" / f"acme_{family.lower()}.py").write_text(code)
    monkeypatch.syspath_prepend(folder / "site")


def counts(prompt: Prompt) -> Reply:
    if "action" in prompt.wants:
        return {"thought": "I count.", "action": "7"}
    if "label" in prompt.wants:
        return {"reasons": "Counted again.", "label": "success"}
    return {"analysis": "Hm.", "memory_items": [item("Count twice", "Count, and count again.")]}


def run(
    monkeypatch: pytest.MonkeyPatch, *more: str, script: Callable[[Prompt], Reply] = counts, cut: bool = False
) -> int:
    def from_settings(configs: object) -> Backbones:
        return cut_off(backbones(script)) if cut else backbones(script)

    monkeypatch.setattr(Backbones, "from_settings", from_settings)
    return main(["run", "--stream", "sums.jsonl", "--bank", "kept.sqlite", "--no-track", *more])


def test_answers_that_were_cut_off_are_told_once_by_role_with_the_setting_to_raise(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    assert run(monkeypatch, "--set", "backbones.judge={model='a/b', max_tokens=9}", cut=True) == 0
    assert capsys.readouterr().err.splitlines() == [
        "2 answers of the agent were cut off: raise program.act.max_tokens"
        " (matts.refine.max_tokens for checks of its own work)",
        "2 answers of the distiller were cut off: raise program.distill.max_tokens",
        "2 answers of the judge were cut off: raise backbones.judge.max_tokens",
    ]
    assert not [record for record in caplog.records if "truncated" in record.getMessage()]
    assert not logging.getLogger("dspy.clients.lm").filters


def test_what_nobody_can_score_has_not_broken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    installed(tmp_path, monkeypatch, "Unscored", UNSCORED)
    write(env="unscored")
    assert run(monkeypatch) == 0
    told = capsys.readouterr().err
    assert told.startswith("no task could be scored; the last one: the environment's outcome broke: OSError: no grader")
    assert "every task broke" not in told

    def down(prompt: Prompt) -> Reply:
        raise OSError("down")

    assert run(monkeypatch, "--scope", "other", script=down) == 5
    assert capsys.readouterr().err.startswith("error: every task broke; the last one: ")


@pytest.mark.parametrize("memory", ["on", "frozen"])
def test_a_task_that_another_run_has_learned_from_meanwhile_is_left_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], memory: str
) -> None:
    def beside(prompt: Prompt) -> Reply:
        if "action" in prompt.wants and "1 and 5" in prompt["task"]:
            with MemoryBank.open("kept.sqlite", scope="default", embedder=embedder("minilm")) as bank:
                task = Task(id="sum/2", instruction="What is 2 and 5?")
                rollout = Trajectory(task_id=task.id, answer="7")
                bank.append(task, rollout, Verdict(label="success", reasons="Seen."), [], run_id="other")
        return counts(prompt)

    MemoryBank.open("kept.sqlite", scope="default", embedder=embedder("minilm")).close()
    assert run(monkeypatch, "--memory", memory, script=beside) == 0
    shown = capsys.readouterr().out
    told = "1 task left out, since another run has learned from it meanwhile"
    assert (told in shown, "sum/2" in shown) == ((True, False) if memory == "on" else (False, True))
    assert run(monkeypatch, "--json", "--scope", "new") == 0
    assert "learned_meanwhile" not in capsys.readouterr().out


def test_a_run_beside_another_is_told_of_it_and_leaves_it_what_it_is_at(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    of_file = TaskStream.from_jsonl("sums.jsonl")
    at_work, over = threading.Event(), threading.Event()

    def other() -> None:
        with (
            MemoryBank.open("kept.sqlite", scope="default", embedder=embedder("minilm")) as bank,
            bank.running("other"),
        ):
            task = of_file.tasks[0]
            bank.ingest(task, Trajectory(task_id=task.id, answer="7"), run_id="other")
            at_work.set()
            over.wait(60)

    thread = threading.Thread(target=other)
    thread.start()
    try:
        assert at_work.wait(60)
        assert run(monkeypatch, "--json") == 0
        printed = capsys.readouterr()
        assert main(["resume", "--bank", "kept.sqlite", "--scope", "default"]) == 2
        resumed = capsys.readouterr()
    finally:
        over.set()
        thread.join()
    told = "another run is at work in this scope: tasks that it is at, or has learned from meanwhile, are left out"
    assert told in printed.err
    lines = [json.loads(line) for line in printed.out.splitlines()]
    assert [line["task"] for line in lines[:-1]] == [of_file.tasks[1].id]
    assert lines[-1]["learned_meanwhile"] == [of_file.tasks[0].id]
    assert "left to the run 'other', which is at work now" in resumed.out
    assert run(monkeypatch) == 0
    printed = capsys.readouterr()
    assert told not in printed.err
    assert "the rollout waited in the bank; it is learned from now" in printed.out, "of a run that has ended"


def test_a_task_that_another_run_is_at_is_left_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[str] = []

    def beside(prompt: Prompt) -> Reply:
        if "action" in prompt.wants:
            asked.append(prompt["task"])
            if len(asked) == 1:  # while the first run acts, and nothing of it is in the bank
                with ThreadPoolExecutor(1) as pool:  # another terminal
                    assert pool.submit(run, monkeypatch, "--json", script=beside).result() == 0
        return counts(prompt)

    assert run(monkeypatch, "--json", script=beside) == 0
    assert len(asked) == len(set(asked)) == 2
    ends = [line for line in map(json.loads, capsys.readouterr().out.splitlines()) if "summary" in line]
    assert [(end["learned_meanwhile"], end["summary"]["tasks"]) for end in ends] == [(["sum/1"], 1), (["sum/2"], 1)]


def test_a_line_of_json_has_all_that_a_row_has(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "--json") == 0
    *lines, end = map(json.loads, capsys.readouterr().out.splitlines())
    row = TaskResult(Task(id="t", instruction="x")).row()
    for place, line in enumerate(lines, 1):
        assert not set(row) - set(line)
        assert (line["run_id"], line["position"], line["env"]) == (end["run_id"], place, "question")
        assert (line["verdict"]["label"], line["learned"][0]["title"]) == ("success", "Count twice"), "whole, as before"


def test_a_run_that_finds_nothing_left_ends_in_the_same_line_of_json(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "--json") == 0
    done = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert run(monkeypatch, "--json", "-n", "1") == 0
    printed = capsys.readouterr()
    (line,) = printed.out.splitlines()
    found = json.loads(line)
    assert "the bank has seen every task of sums.jsonl" in printed.err
    assert "bank list --experiences --bank kept.sqlite --scope default shows what came of them" in printed.err
    assert "bank delete ID --bank kept.sqlite --scope default lets one be done again" in printed.err
    assert (found["summary"]["tasks"], found["summary"]["skipped"], found["bank"]) == (0, 2, "kept.sqlite")
    assert (list(found), list(found["summary"])) == (list(done), list(done["summary"]))
    assert found["run_id"] != done["run_id"]
    assert run(monkeypatch) == 0
    assert capsys.readouterr().out == ""


def test_a_run_counts_the_tasks_of_its_file_that_were_done_before(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for tasks, skipped in ((1, 0), (1, 1), (0, 2)):
        assert run(monkeypatch, "--json", "-n", "1") == 0
        summary = json.loads(capsys.readouterr().out.splitlines()[-1])["summary"]
        assert (summary["tasks"], summary["skipped"]) == (tasks, skipped)


def test_a_file_keeps_its_order_unless_a_seed_shuffles_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tasks = [{"id": f"sum/{n}", "instruction": f"What is {n} and 5?", "env_args": {"answer": "7"}} for n in range(9)]
    Path("sums.jsonl").write_text("\n".join(map(json.dumps, tasks)))

    def done(*more: str) -> list[str]:
        assert run(monkeypatch, "--memory", "off", "--json", "-n", "4", *more) == 0
        return [json.loads(line)["task"] for line in capsys.readouterr().out.splitlines()[:-1]]

    whole = [task["id"] for task in tasks]
    assert done() == whole[:4]
    one = done("--seed", "1")
    assert one == done("--seed", "1")
    assert len({tuple(whole[:4]), tuple(one), tuple(done("--seed", "2"))}) == 3


def test_the_summary_says_that_tasks_were_left_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    told = []
    for more in ((), (), ("--memory", "frozen")):
        assert run(monkeypatch, "-n", "1", *more) == 0
        shown = capsys.readouterr().out.splitlines()
        told.append([" ".join(line.split()) for line in shown if line.startswith("left out")])
    assert told == [[], ["left out 1 task that the bank had learned from before"], []]


def test_of_a_named_stream_that_ends_all_are_counted_that_the_bank_has_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    installed(tmp_path, monkeypatch, "Few", FEW)
    for stream in ("sums.jsonl", "few"):
        assert run(monkeypatch, "--stream", stream) == 0
    capsys.readouterr()
    assert run(monkeypatch, "--stream", "few", "--json", "-n", "1") == 0
    printed = capsys.readouterr()
    summary = json.loads(printed.out)["summary"]
    assert (summary["tasks"], summary["skipped"]) == (0, 3), "two more are of another stream"
    assert "--seed 1 gives none either; another --scope does these from the start" in printed.err


def test_of_a_named_stream_that_ends_a_seed_is_offered_where_it_gives_other_tasks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    drawn = FEW.replace("Few", "Drawn").replace('"few"', '"drawn"').replace("few/{n}", "drawn/{seed}-{n}")
    installed(tmp_path, monkeypatch, "Drawn", drawn)
    for _ in range(2):
        assert run(monkeypatch, "--stream", "drawn", "--seed", "4") == 0
    told = capsys.readouterr().err
    assert "--seed 5 gives new ones, and another --scope does these from the start" in told
    assert run(monkeypatch, "--stream", "drawn", "--seed", "5", "--json") == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["summary"]["tasks"] == 3


def test_a_run_of_a_named_stream_says_which_run_it_goes_on_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    installed(tmp_path, monkeypatch, "Endless", ENDLESS)
    given = ("--stream", "endless", "--json", "--track", "--set", "tracking.uri=sqlite:///named.db")
    for number in ("2", "1", "2"):
        assert run(monkeypatch, *given, "-n", number) == 0
    last = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (last["summary"]["tasks"], last["summary"]["skipped"]) == (2, 3), "what comes after them nobody has made"
    from mlflow import MlflowClient

    client = MlflowClient("sqlite:///named.db")
    (experiment,) = [found for found in client.search_experiments() if found.name != "Default"]
    runs = client.search_runs([experiment.experiment_id], order_by=["attributes.start_time ASC"])
    assert [[each.data.metrics[f"total/{name}"] for name in ("tasks", "skipped")] for each in runs] == [
        [2, 0],
        [1, 2],
        [2, 3],
    ]
    first, second, _ = (each.info.run_id for each in runs)
    assert [each.data.tags.get("rb.continues") for each in runs] == [None, first, second]
    assert "2 more were left out" in runs[1].data.tags["mlflow.note.content"]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (("-n", "0"), "error: --tasks 0: input should be greater than or equal to 1"),
        (("--set", "run.tasks=0"), "error: --set: run.tasks = 0: input should be greater than or equal to 1"),
    ],
)
def test_an_error_names_what_was_given(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], given: tuple[str, ...], told: str
) -> None:
    assert run(monkeypatch, *given) == 2
    assert capsys.readouterr().err.startswith(told)


def test_an_unknown_field_of_a_task_is_told_with_those_that_there_are(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write(answer="7")
    assert run(monkeypatch) == 2
    told = capsys.readouterr().err
    assert "sums.jsonl:1: a task has no field 'answer'; it has id, instruction, env, env_args, domain, template" in told
    assert "a question's right answer goes into env_args.answer" in told


def test_the_case_of_a_files_suffix_does_not_matter(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("sums.CSV").write_text("instruction,answer\nWhat is 2 and 5?,7\n")
    assert run(monkeypatch, "--stream", "sums.CSV") == 0
    assert "solved" in capsys.readouterr().out
