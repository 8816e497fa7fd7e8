"""``rb-dspy run --matts``: what is asked for, what is printed, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from dspy import lm15

from rb_dspy import Backbones, MemoryBank, Task, Trajectory
from rb_dspy.cli.main import main
from rb_dspy.plugins import embedder
from rb_dspy.schema import Step
from rb_dspy.testing import Prompt, Reply
from tests.worlds import attempts, backbones, item

TASKS = [
    {"id": "sum/1", "instruction": "What is three and four?", "env_args": {"answer": "7"}},
    {"id": "sum/2", "instruction": "What is four and three?", "env_args": {"answer": "7"}},
]


@pytest.fixture(autouse=True)
def _in_a_folder_with_tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")
    Path("sums.jsonl").write_text("\n".join(map(json.dumps, TASKS)))


def sums(prompt: Prompt) -> Reply:
    """Rollout 1 answers right, and so does who has looked at its work; judge and selector know."""
    if "action" in prompt.wants:
        right = prompt.seed == 1 or prompt.turns > 0
        return {"thought": "I count.", "action": "7" if right else f"{8 + (prompt.seed or 0)}"}
    if "label" in prompt.wants:
        right = "final answer: 7" in prompt["final_state"]
        return {"reasons": "Counted again.", "label": "success" if right else "failure"}
    if "choice" in prompt.wants:
        right = [n for n, text in enumerate(attempts(prompt["candidates"]), 1) if "final answer: 7" in text]
        return {"analysis": "One counted right.", "choice": (right or [1])[0]}
    if "decision" in prompt.wants:
        right = "final answer: 7" in prompt["final_state"]
        return {"findings": "Use the fingers [x].", "decision": "confirm" if right else "revise"}
    return {"analysis": "Hm.", "memory_items": [item("Count twice", "Count, and count again.")]}


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> list[Backbones]:
    """The command's language models are ``sums``; they are kept here once they are made."""
    return played_by(monkeypatch, sums)


def played_by(monkeypatch: pytest.MonkeyPatch, script: Any) -> list[Backbones]:
    made: list[Backbones] = []

    def from_settings(configs: object) -> Backbones:
        made.append(backbones(script))
        return made[-1]

    monkeypatch.setattr(Backbones, "from_settings", from_settings)
    return made


def run(capsys: pytest.CaptureFixture[str], *args: str, code: int = 0) -> str:
    given = main(["run", "--stream", "sums.jsonl", *args])
    printed = capsys.readouterr()
    assert given == code, printed
    return printed.out if code == 0 else printed.err


def lines(printed: str) -> list[str]:
    return [" ".join(line.split()) for line in printed.splitlines()]


def test_rollouts_side_by_side_are_told_apart(scripted: list[Backbones], capsys: pytest.CaptureFixture[str]) -> None:
    shown = lines(run(capsys, "--matts", "parallel", "--k", "3", "-n", "1"))
    assert shown[0].startswith("sums.jsonl 1 task parallel MaTTS, 3 rollouts a task")
    for expected in ("0·step 1 I count.", "1·step 1 I count.", "2·step 1 I count."):
        assert expected in shown
    for expected in ("0·verdict failure Counted again.", "1·verdict success Counted again."):
        assert expected in shown
    assert "selected One counted right." in shown
    assert "truth solved reward 1.00 the judge agrees" in shown
    assert "rollouts: 0 not solved, 1 solved, 2 not solved" in shown
    for expected in (
        "pass@1 33% over 1 task",
        "pass@2 67% over 1 task",
        "pass@3 100% over 1 task",
        "selected 1 of 1 task, by what was handed in (100%)",
        "oracle 1 of 1 task, by the best rollout (100%)",
        "selector's gap 0 points below the oracle",
        "rollouts 3 begun, 0 lost; 3.0 different ones a task, by their actions",
    ):
        assert expected in shown
    assert any(line.startswith("contraster 1 ") for line in shown)


def test_passes_are_shown_with_what_they_found(scripted: list[Backbones], capsys: pytest.CaptureFixture[str]) -> None:
    shown = lines(run(capsys, "--matts", "sequential", "-k", "3", "-n", "1"))
    assert shown[0].startswith("sums.jsonl 1 task sequential MaTTS, 3 passes a task")
    assert "0·check revise Use the fingers [x]." in shown
    assert "0·check confirm Use the fingers [x]." in shown
    assert "0·step 2 I count." in shown
    for expected in (
        "after the first pass 0 of 1 task, by ground truth (0%)",
        "after the last pass 1 of 1 task, by ground truth (100%)",
        "passes 3 begun, 0 lost",
    ):
        assert expected in shown
    assert not any(line.startswith(("pass@", "selected", "oracle")) for line in shown)


def test_what_the_settings_turn_on_can_be_turned_off(
    scripted: list[Backbones], capsys: pytest.CaptureFixture[str]
) -> None:
    Path("rb.toml").write_text('[matts]\nmode = "parallel"\nk = 2\n')
    assert "parallel MaTTS, 2 rollouts" in lines(run(capsys, "-n", "1", "--scope", "on"))[0]
    assert "MaTTS" not in lines(run(capsys, "-n", "1", "--scope", "off", "--matts", "off"))[0]
    assert "--matts off and --k 3: one rollout a task, or several" in run(capsys, "--matts", "Off", "--k", "3", code=2)


def test_json_has_every_rollout_and_the_new_numbers(
    scripted: list[Backbones], capsys: pytest.CaptureFixture[str]
) -> None:
    first, second, last = map(json.loads, run(capsys, "--matts", "best-of-n", "--k", "2", "--json").splitlines())
    found = first["scaling"]
    assert (found["handed_in"], found["analysis"], found["votes"]) == ("1", "One counted right.", [0, 1])
    assert (found["launched"], found["lost"], found["passes"]) == (2, [], [])
    assert [(each["id"], each["answer"], each["steps"]) for each in found["rollouts"]] == [("0", "8", 1), ("1", "7", 1)]
    assert [each["verdict"]["label"] for each in found["rollouts"]] == ["failure", "success"]
    assert [each["outcome"]["success"] for each in found["rollouts"]] == [False, True]
    assert second["outcome"]["success"]
    summary = last["summary"]["scaling"]
    assert [(each["j"], each["rate"], each["tasks"]) for each in summary["pass_at"]] == [(1, 0.5, 2), (2, 1.0, 2)]
    assert (summary["best_of_n"], summary["oracle"], summary["selector_gap"]) == (1.0, 1.0, 0.0)
    assert last["summary"]["usage"]["selector"]["calls"] == 2
    (one, _) = map(json.loads, run(capsys, "--json", "--scope", "other", "-n", "1").splitlines())
    assert one["scaling"] is None


def test_a_rollout_that_broke_is_shown(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def script(prompt: Prompt) -> Reply:
        if "action" in prompt.wants and prompt.seed == 2:
            raise lm15.ServerError("overloaded [/x]")
        return sums(prompt)

    played_by(monkeypatch, script)
    shown = lines(run(capsys, "--matts", "parallel", "--k", "3", "-n", "1"))
    (lost,) = [line for line in shown if line.startswith("2·lost")]
    assert "overloaded [/x]" in lost
    assert "rollouts: 0 not solved, 1 solved" in shown
    assert any(line.startswith("rollouts 3 begun, 1 lost") for line in shown)
    assert [line for line in shown if line.startswith("pass@")] == [
        "pass@1 50% over 1 task",
        "pass@2 100% over 1 task",
    ]
    Path("rb-bank.sqlite").unlink()
    (first, _) = map(json.loads, run(capsys, "--matts", "parallel", "--k", "3", "-n", "1", "--json").splitlines())
    (lost,) = first["scaling"]["lost"]
    assert lost["rollout_id"] == "2"
    assert "overloaded" in lost["error"]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--k", "4"], "--k 4 is for test-time scaling; say how with --matts MODE: parallel, sequential, best-of-n"),
        (
            ["--matts", "chess"],
            "--matts 'chess': no such mode; expected one of parallel, sequential, best-of-n, vanilla, or off",
        ),
        (["--matts", ""], "--matts '': no such mode"),
        (["--matts", "parallel", "--k", "0"], "error: --k 0: input should be greater than or equal to 1"),
        (["--matts", "parallel", "-k", "65"], "error: --k 65: input should be less than or equal to 64"),
        (["--set", "matts.k=3", "--k", "-2"], "error: --k -2: input should be greater than or equal to 1"),
        (["--set", "matts.k=0"], "--set: matts.k = 0: input should be greater than or equal to 1"),
        (["--set", "matts.kk=3"], "unknown key 'matts.kk'; did you mean 'k'"),
        (["--matts", "parallel", "--set", "program.act.temperature=0"], "temperature"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(
    scripted: list[Backbones], capsys: pytest.CaptureFixture[str], args: list[str], message: str
) -> None:
    told = run(capsys, *args, code=2)
    assert message in told
    assert told.count("\n") == 1


def test_attempts_of_sequential_scaling_that_waited_are_no_best_of_n(
    scripted: list[Backbones], capsys: pytest.CaptureFixture[str]
) -> None:
    tasks = [Task.model_validate(task) for task in TASKS]
    with MemoryBank.open("rb-bank.sqlite", scope="default", embedder=embedder("minilm")) as bank:
        for task in tasks:
            attempt = Trajectory(task_id=task.id, rollout_id="0", steps=(Step(action="8"),), answer="8")
            bank.record(task, attempt, run_id="before")
    shown = lines(run(capsys, "--matts", "sequential"))
    assert not any(line.startswith(("pass@", "selected", "oracle", "rollouts", "after ")) for line in shown)
    assert "passes 0 begun, 0 lost" in shown
    shown = lines(run(capsys, "--matts", "sequential", "--scope", "other", "-n", "1"))
    assert any(line.startswith("after the last pass ") for line in shown)
