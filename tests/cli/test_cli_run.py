"""``rb-dspy run``: which tasks it does, and what it says of them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from dspy import lm15

from rb_dspy import Backbones, TaskResult
from rb_dspy.cli.main import main
from rb_dspy.schema import Task
from rb_dspy.testing import Prompt, Reply
from tests.worlds import backbones, item

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


def run(monkeypatch: pytest.MonkeyPatch, *more: str, script: Callable[[Prompt], Reply] = counts) -> int:
    def from_settings(configs: object) -> Backbones:
        return backbones(script)

    monkeypatch.setattr(Backbones, "from_settings", from_settings)
    return main(["run", "--stream", "sums.jsonl", "--bank", "kept.sqlite", "--no-track", *more])


def test_what_nobody_can_score_has_not_broken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    installed(tmp_path, monkeypatch, "Unscored", UNSCORED)
    write(env="unscored")
    assert run(monkeypatch) == 0
    told = capsys.readouterr().err
    assert told.startswith("no task could be scored")
    assert "no grader" in told

    def down(prompt: Prompt) -> Reply:
        raise lm15.InvalidRequestError("down")

    assert run(monkeypatch, "--scope", "other", script=down) == 5
    assert capsys.readouterr().err.startswith("error: every task broke; the last one: ")


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


def test_a_run_of_a_named_stream_says_which_run_it_goes_on_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], empty_store: Path
) -> None:
    installed(tmp_path, monkeypatch, "Endless", ENDLESS)
    shutil.copy(empty_store, "named.db")
    given = ("--stream", "endless", "--json", "--track", "--set", "tracking.uri=sqlite:///named.db")
    for number in ("2", "1", "2"):
        assert run(monkeypatch, *given, "-n", number) == 0
    last = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (last["summary"]["tasks"], last["summary"]["skipped"]) == (2, 3), "what comes after them nobody has made"
    from mlflow import MlflowClient

    client = MlflowClient("sqlite:///named.db")
    (experiment,) = [found for found in client.search_experiments() if found.name not in ("Default", "none")]
    runs = client.search_runs([experiment.experiment_id], order_by=["attributes.start_time ASC"])
    assert [[each.data.metrics[f"total/{name}"] for name in ("tasks", "skipped")] for each in runs] == [
        [2, 0],
        [1, 2],
        [2, 3],
    ]
    first, second, _ = (each.info.run_id for each in runs)
    assert [each.data.tags.get("rb.continues") for each in runs] == [None, first, second]
    assert "2 more were left out" in runs[1].data.tags["mlflow.note.content"]
