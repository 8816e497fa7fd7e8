"""``rb-dspy compile``, and what can be done with its result: ``run --program`` and ``backbones matrix``."""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rb_dspy import Compiled, ReasoningBank, save_program, split_streams
from rb_dspy.cli.main import main
from rb_dspy.stream import TaskStream
from rb_dspy.testing import Prompt, Reply
from tests.cli.desk import CODES, LOOK, MAIL, clerk, staffed, write_tasks

COMPILE = ("compile", "--tasks-file", "mail.jsonl", "--budget", "30", "--orders", "3")


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder in which ``rb-dspy compile`` was called once; what it printed is in ``printed``."""
    folder = tmp_path_factory.mktemp("desk")
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(folder)
        staffed(patched)
        write_tasks(Path("mail.jsonl"))
        assert main([*COMPILE, "--no-track"]) == 0
        yield folder


@pytest.fixture(autouse=True)
def _in_a_copy(done: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(done, tmp_path / "desk")
    monkeypatch.chdir(tmp_path / "desk")
    monkeypatch.setenv("COLUMNS", "120")
    staffed(monkeypatch)


def called(capsys: pytest.CaptureFixture[str], *args: str, code: int = 0) -> str:
    given = main([*args])
    printed = capsys.readouterr()
    assert given == code, printed
    if code not in (0, 130):
        assert printed.err.count("\n") == 1, printed.err
    return printed.out if code == 0 else printed.err


def lines(printed: str) -> list[str]:
    return [" ".join(line.split()) for line in printed.splitlines()]


def test_what_a_compile_was_good_for_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    shown = lines(called(capsys, *COMPILE, "--no-track"))
    made = Compiled.load("program.json")
    assert made.improved
    assert shown[0] == "mail gepa on stage all, 30 metric calls local/qwen2.5-coder-1.5b"
    assert shown[1] == "tasks: 20 to compile on, 8 to choose by, 12 held out (5, 2, 3 templates)"
    assert shown[2].startswith("the held-out part in 3 orders is likely to show a gain of 0.71 or more")
    assert shown[3].startswith(".rb/compile/")
    assert shown[3].endswith(" has a result: a compile that is the same is not done again")
    scores = made.scores.held_out
    assert f"{scores.before.mean:.2f} [" in next(line for line in shown if line.startswith("held-out"))
    assert "held-out tasks say: better" in shown
    assert f"+{CODES}" in shown
    assert "--- act.predict before" in shown
    assert not any(line.startswith("--- judge.predict") for line in shown)
    assert any(line.startswith("reflection 1") for line in shown)
    assert f"{made.metric_calls} of 30 metric calls, " in " ".join(shown)
    assert "saved as program.json" in shown
    assert any(line.endswith("programs register mail program.json") for line in shown)
    assert any(line.endswith("run --stream mail.jsonl --program program.json") for line in shown)
    assert not Path("rb-mlflow.db").exists()


def offered(shown: list[str], what: str) -> list[str]:
    """The arguments of a command that is offered, as a shell reads them."""
    (command,) = (line.removeprefix(what) for line in shown if line.startswith(what))
    words = shlex.split(command)
    return words[words.index("run" if what.startswith("use") else "programs") :]


def test_what_is_offered_next_gives_no_password_away(capsys: pytest.CaptureFixture[str]) -> None:
    uri = "tracking.uri=postgresql://me:secret@host/db"
    shown = called(capsys, *COMPILE, "--no-track", "--set", uri)
    assert "secret" not in shown
    assert "--set tracking.uri=postgresql://...@host/db" in " ".join(shown.split())
    shown = called(capsys, *COMPILE, "--no-track", "--set", f"{uri}?user=me&password=secret")
    assert "secret" not in shown
    assert "--set 'tracking.uri=postgresql://...@host/db?user=me&password=...'" in " ".join(shown.split())


def test_json_is_one_line_with_the_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    (line,) = called(capsys, *COMPILE, "--no-track", "--json").splitlines()
    found = json.loads(line)
    made = Compiled.load("program.json")
    assert found["improved"] is True
    assert found["held_out_says"] == "better"
    assert found["scores"]["held_out"]["after"]["mean"] == made.scores.held_out.after.mean == 1.0
    assert found["changed"] == ["act.predict"]
    assert CODES in found["diff"]
    assert (found["saved"], found["mlflow_run"]) == ("program.json", None)
    assert Path(found["folder"], "compiled.json").exists()


def test_the_tasks_are_those_that_the_library_splits(capsys: pytest.CaptureFixture[str]) -> None:
    hashes = Compiled.load("program.json").hashes
    streams = split_streams(TaskStream.from_jsonl("mail.jsonl"))
    assert (hashes.compile, hashes.held_out) == (streams.compile.digest, streams.held_out.digest)


def test_stopped_it_says_how_to_go_on_and_asks_nothing_twice(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped at the first mail of a held-out queue, that is after all else."""
    held_out = {task.template for task in split_streams(TaskStream.from_jsonl("mail.jsonl")).held_out}
    first = sorted(str(template) for template in held_out)[0]
    asked: list[str] = []

    def stopped(prompt: Prompt) -> Reply:
        if "action" in prompt.wants and MAIL[first].partition("{n}")[0] in prompt["task"]:
            raise KeyboardInterrupt
        return clerk(prompt)

    def counted(prompt: Prompt) -> Reply:
        asked.append(prompt.text)
        return clerk(prompt)

    staffed(monkeypatch, stopped)
    again = (*COMPILE, "--no-track", "--window", "2", "--out", "again.json")
    assert main([*again]) == 130
    printed = capsys.readouterr()
    assert lines(printed.out)[3].startswith("if it is stopped, it goes on from .rb/compile/")
    assert "interrupted: what was answered is in .rb/compile/" in printed.err
    assert not Path("again.json").exists()

    staffed(monkeypatch, counted)
    shown = lines(called(capsys, *again))
    assert "goes on from .rb/compile/" in shown[3]
    assert int(shown[3].split()[-2]) > 20
    assert Compiled.load("again.json").improved
    queues = {queue for queue, text in MAIL.items() if any(text.partition("{n}")[0] in task for task in asked)}
    assert queues <= held_out


def test_other_arguments_do_not_meet_what_these_have_left(capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(
        called(
            capsys, *COMPILE[:3], "--budget", "20", "--stage", "judge", "--no-track", "--json", "--out", "sub/j.json"
        )
    )
    assert found["folder"] != json.loads(called(capsys, *COMPILE, "--no-track", "--json"))["folder"]
    judged = Compiled.load("sub/j.json")
    assert judged.stage == "judge"
    assert LOOK in judged.prompts_after["judge.predict"]["instructions"]


def test_a_compile_is_kept_in_mlflow_unless_told_otherwise(
    capsys: pytest.CaptureFixture[str], empty_store: Path
) -> None:
    shutil.copy(empty_store, "rb-mlflow.db")
    found = json.loads(called(capsys, *COMPILE, "--json"))
    assert found["mlflow_run"]
    import mlflow

    client = mlflow.MlflowClient(f"sqlite:///{Path('rb-mlflow.db').resolve()}")  # else a store of another folder
    run = client.get_run(found["mlflow_run"])
    assert run.info.run_name == "compile mail"
    assert run.data.metrics["held_out/after"] == 1.0
    printed = called(capsys, *COMPILE)
    assert "ui --backend-store-uri sqlite:///rb-mlflow.db" in printed


def test_a_run_uses_the_compiled_prompts(capsys: pytest.CaptureFixture[str]) -> None:
    run = ("run", "--stream", "mail.jsonl", "-n", "4", "--bank", "new.sqlite")
    shown = lines(called(capsys, *run, "--program", "program.json"))
    assert "prompts from program.json, by gepa for stage all" in shown
    assert "solved 4 of 4 tasks, by ground truth (100%)" in shown
    without = lines(called(capsys, *run, "--scope", "without"))
    assert not any(line.startswith("prompts from") for line in without)
    assert "solved 4 of 4 tasks, by ground truth (100%)" not in without
    assert not Path("rb-mlflow.db").exists(), "tracking is off for runs unless it is asked for"


def test_with_and_without_memory_the_same_tasks_are_done(capsys: pytest.CaptureFixture[str]) -> None:
    run = ("run", "--stream", "mail.jsonl", "-n", "4", "--bank", "new.sqlite")
    called(capsys, *run)  # all four give one lesson, which none of them is shown again
    frozen = lines(called(capsys, *run, "--memory", "frozen"))
    assert any(
        line.startswith("bank new.sqlite, scope default · 1 lesson, frozen: nothing is learned") for line in frozen
    )
    off = lines(called(capsys, *run, "--memory", "off"))
    assert any(line.startswith("memory off: no lesson is shown, nothing is learned") for line in off)
    tasks = [[line for line in shown if line.startswith(("1/4 ", "4/4 "))] for shown in (frozen, off)]
    assert tasks[0] == tasks[1] != []
    assert "recalled nothing" in off
    assert not any(line.startswith(("judge agreement", "lessons learned")) for line in (*frozen, *off))
    assert not any(line.startswith(("distiller ", "verdict ")) for line in (*frozen, *off))
    more = lines(called(capsys, *run[:4], "8", *run[5:], "--memory", "frozen"))
    assert any(line.startswith("recalled") and line != "recalled nothing" for line in more)
    assert not Path("none.sqlite").exists()
    called(capsys, "run", "--stream", "mail.jsonl", "-n", "1", "--bank", "none.sqlite", "--memory", "off")
    assert not Path("none.sqlite").exists()
    told = called(capsys, "run", "--stream", "mail.jsonl", "--bank", "none.sqlite", "--memory", "frozen", code=6)
    assert "none.sqlite" in told


@pytest.mark.parametrize("asked", [("--track",), ("--set", "tracking.traces=false")])
def test_a_run_is_kept_in_mlflow_on_request(
    capsys: pytest.CaptureFixture[str], empty_store: Path, asked: tuple[str, ...]
) -> None:
    shutil.copy(empty_store, "rb-mlflow.db")
    printed = called(capsys, "run", "--stream", "mail.jsonl", "-n", "1", "--json", *asked)
    kept = json.loads(printed.splitlines()[-1])["mlflow_run"]
    import mlflow

    there = f"sqlite:///{Path('rb-mlflow.db').absolute()}"  # MLflow keeps open what it opened by another test's name
    assert mlflow.MlflowClient(tracking_uri=there).get_run(kept).info.run_id == kept


def spoiled(path: str) -> None:
    """A saved program, compiled for an input that is called otherwise now."""
    save_program(ReasoningBank(), path)
    state: dict[str, Any] = json.loads(Path(path).read_text())
    state["predictors"]["judge.predict"]["fields"][0]["name"] = "assignment"
    Path(path).write_text(json.dumps(state))


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("compile", "--tasks-file", "none.jsonl"), "none.jsonl: no such file"),
        (("compile", "--stream", "none.jsonl"), "none.jsonl: no such file"),
        (("compile", "--stream", "chess"), "unknown stream 'chess'"),
        ((*COMPILE, "--stream", "twc"), "two sources of tasks; give one"),
        ((*COMPILE, "-n", "4"), "no tasks are left for"),
        ((*COMPILE, "--optimizer", "chess"), "unknown optimizer 'chess'; known: gepa"),
        ((*COMPILE, "--stage", "select"), "a ReasoningBank has no such step; give a MaTTS"),
        ((*COMPILE, "--name", "post/éu"), "--name 'post/éu': no program can be registered as that; expected 1 to 200"),
        ((*COMPILE, "--k", "3"), "--k 3 is for test-time scaling"),
        ((*COMPILE, "--out", "mail.jsonl"), "--out mail.jsonl: is there, and no program of rb_dspy's"),
        ((*COMPILE, "--out", "mail.jsonl/x.json"), "its folder cannot be made"),
        ((*COMPILE, "--out", ".rb"), "--out .rb: is a folder"),
        ((*COMPILE, "--set", "tracking.uri=redis://x"), "expected sqlite:///FILE.db"),
        ((*COMPILE, "--program", "spoiled.json"), "judge.predict: field 'assignment' is gone"),
        (("run", "--task", "x", "--program", "spoiled.json"), "judge.predict: field 'assignment' is gone"),
        (("run", "--task", "x", "--program", "mail.jsonl"), "mail.jsonl: not JSON"),
        (("run", "--task", "x", "--program", "none.json"), "none.json: no such file"),
        (("backbones", "matrix"), "no backbones; name at least one: --backbone NAME=MODEL"),
        (("backbones", "matrix", "--backbone", "x"), "--backbone 'x': expected NAME=MODEL"),
        (("backbones", "matrix", "--backbone", "x=y", "--backbone", "x=z"), "the name 'x' is given twice"),
        (("backbones", "matrix", "--backbone", "x=y", "--program", "seed=program.json"), "take another"),
        (("backbones", "matrix", "--backbone", "x=y", "--program", "uncompiled=program.json"), "take another"),
        (("backbones", "matrix", "--backbone", "x=y", "--whole"), "--whole takes all tasks of a file"),
        (
            ("backbones", "matrix", "--backbone", "x=y", "--program", "p=spoiled.json", "--tasks-file", "mail.jsonl"),
            "spoiled.json: compiled for other signatures",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_before_anything_is_done(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, args: tuple[str, ...], message: str
) -> None:
    def nobody(prompt: Prompt) -> Reply:
        raise AssertionError("a language model was asked")

    staffed(monkeypatch, nobody)
    spoiled("spoiled.json")
    mail = Path("mail.jsonl").read_bytes()
    assert message in called(capsys, *args, code=2)
    assert Path("mail.jsonl").read_bytes() == mail
    assert not Path("rb-mlflow.db").exists()
