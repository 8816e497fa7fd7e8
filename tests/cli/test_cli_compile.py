"""``rb-dspy compile``, and what can be done with its result: ``run --program`` and ``backbones matrix``."""

from __future__ import annotations

import io
import itertools
import json
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from rb_dspy import Compiled, ReasoningBank, save_program, split_streams
from rb_dspy.cli.bar import CompileBar
from rb_dspy.cli.main import main
from rb_dspy.cli.scored import print_diff
from rb_dspy.cli.work.compiled import print_next, print_result
from rb_dspy.compile.progress import Progress
from rb_dspy.config import BackboneConfig, load_settings
from rb_dspy.matts import MaTTS
from rb_dspy.schema import RoleUsage
from rb_dspy.stream import TaskStream
from rb_dspy.testing import Prompt, Reply
from tests.cli.desk import CODES, LOOK, MAIL, clerk, deaf, staffed, write_tasks
from tests.tracking import made
from tests.worlds import backbones

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


def test_tasks_that_cannot_be_split_are_told_with_what_helps_on_the_command_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    said = "I have waited for three weeks now, and nobody has called me back about it. Which queue?"
    tasks = [{"id": f"mail/{n}", "instruction": f"My {n}: {said}", "template": f"kind {n}"} for n in range(6)]
    Path("alike.jsonl").write_text("\n".join(map(json.dumps, tasks)))
    told = called(capsys, "compile", "--tasks-file", "alike.jsonl", code=2)
    assert "'mail/0' ('My 0: I have waited" in told
    assert "'mail/1' ('My 1: I have waited" in told
    assert "leave out of their texts what many of them say, or do it in Python, where split_streams(" in told
    assert "or give check=False" not in told


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


def test_what_is_offered_next_works_as_printed_and_with_the_same_settings(capsys: pytest.CaptureFixture[str]) -> None:
    Path("my mail").mkdir()
    write_tasks(Path("my mail/to & fro.jsonl"))
    Path("my mail/settings.toml").write_text('[backbones.judge]\nmodel = "some/judge"\n[run]\ntasks = 2\n')
    called(capsys, "run", "--stream", "mail.jsonl", "-n", "1", "--bank", "my mail/lessons.sqlite", "--scope", "a b")
    given = ["--config", "my mail/settings.toml", "--set", "backbones.agent.model=some/other model", "--matts"]
    given += ["best-of-n", "--k", "2", "--set", "tracking.uri=sqlite:///other place.db"]
    taught = ["--bank", "my mail/lessons.sqlite", "--scope", "a b"]
    args = ["--tasks-file", "my mail/to & fro.jsonl", "--no-track", "--out", "my mail/best of.json", "--budget", "30"]
    args += ["--orders", "3"]
    shown = lines(called(capsys, "compile", *args, *given, *taught))
    assert shown[0].startswith("to-fro gepa on stage all")

    keep = offered(shown, "keep and promote it: ")
    kept = lines(called(capsys, *keep))
    assert kept[0] == "to-fro version 1 is champion"
    assert Path("other place.db").exists()
    assert not Path("rb-mlflow.db").exists()
    (line,) = called(capsys, *offered(kept, "look at it: "), "--json").splitlines()
    settings = json.loads(line)["settings"]
    assert {role: each["model"] for role, each in settings["backbones"].items()} == {
        "agent": "some/other model",
        "judge": "some/judge",
    }
    assert (settings["matts"]["mode"], settings["matts"]["k"], settings["scope"]) == ("best_of_n", 2, "a b")

    used = lines(called(capsys, *offered(shown, "use it: ")))
    assert used[0].startswith("my mail/to & fro.jsonl 2 tasks best-of-n MaTTS, 2 rollouts a task")
    assert "agent some/other model, judge some/judge" in used[0]


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


def test_a_compile_begins_with_the_prompts_of_another(capsys: pytest.CaptureFixture[str]) -> None:
    args = (*COMPILE[:3], "--budget", "20", "--stage", "judge", "--program", "program.json", "--out", "both.json")
    called(capsys, *args, "--no-track")
    both = Compiled.load("both.json")
    assert CODES in both.prompts_before["act.predict"]["instructions"]
    assert CODES in both.prompts_after["act.predict"]["instructions"]


def test_a_compile_is_kept_in_mlflow_unless_told_otherwise(
    capsys: pytest.CaptureFixture[str], empty_store: Path
) -> None:
    shutil.copy(empty_store, "rb-mlflow.db")
    found = json.loads(called(capsys, *COMPILE, "--json"))
    assert found["mlflow_run"]
    import mlflow

    client = mlflow.MlflowClient(tracking_uri="sqlite:///rb-mlflow.db")
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


def test_a_run_on_the_file_it_was_compiled_on_says_what_is_new_to_it(capsys: pytest.CaptureFixture[str]) -> None:
    run = ("run", "--stream", "mail.jsonl", "-n", "40", "--bank", "new.sqlite", "--program", "program.json")
    shown = lines(called(capsys, *run))
    assert "of these 40 tasks the prompts were compiled on 20 and chosen by 8; 12 are new to them" in shown
    assert any(
        line == "of those that the prompts had not been compiled on or chosen by: solved 12 of 12 (100%)"
        for line in shown
    )
    last = json.loads(called(capsys, *run, "--scope", "b", "--json").splitlines()[-1])
    assert last["unseen"] == {"tasks": 12, "scored": 12, "solved": 12}
    held_out = split_streams(TaskStream.from_jsonl("mail.jsonl")).held_out
    called(capsys, "programs", "register", "mail", "program.json")
    known = ("run", "--stream", "mail.jsonl", "-n", "40", "--memory", "off", "--program", "models:/mail@champion")
    told = "of these 40 tasks the prompts were compiled on 20 and chosen by 8; 12 are new to them"
    assert told in " ".join(called(capsys, *known).split())
    renamed = tuple(task.model_copy(update={"id": f"new/{task.id}"}) for task in held_out)
    TaskStream("new", renamed).to_jsonl("new.jsonl")
    alone = called(capsys, "run", "--stream", "new.jsonl", "--bank", "new.sqlite", "--program", "program.json")
    assert "compiled on" not in alone


def test_a_compile_says_where_what_is_held_out_was_known_before(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def warned(*args: str) -> str:
        assert main([*COMPILE, "--no-track", "--out", "again.json", *args]) == 0
        return " ".join(capsys.readouterr().err.split())

    assert "held-out tasks" not in warned("--program", "program.json")
    told = warned("--program", "program.json", "--seed", "1")
    assert "of the 12 held-out tasks it was compiled on, or chosen by" in told
    called(capsys, "run", "--stream", "mail.jsonl", "-n", "40", "--bank", "seen.sqlite")
    assert "the bank has learned from 12 of the 12 held-out tasks" in warned("--bank", "seen.sqlite")


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


def test_prompts_serve_with_and_without_scaling_and_it_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    save_program(MaTTS(ReasoningBank()), "scaled.json")
    run = ("run", "--stream", "mail.jsonl", "-n", "1")
    assert "some prompts are not used" in called(capsys, *run, "--program", "scaled.json", "--scope", "a")
    shown = called(capsys, *run, "--program", "program.json", "--matts", "parallel", "--k", "2", "--scope", "b")
    shown = " ".join(shown.split())
    assert "compiled without test-time scaling: its steps have their first prompts" in shown
    assert "verdict on what was handed in agrees with ground truth" in shown
    assert " s of calls, added up · " in shown
    told = called(capsys, *COMPILE, "--program", "scaled.json", code=2)
    assert "compiled with test-time scaling; say how with --matts MODE" in told


def test_what_proposed_prompts_is_paid_by_its_own_price(capsys: pytest.CaptureFixture[str]) -> None:
    """Also where it was named by the role whose model it is."""
    program = ReasoningBank(backbones=backbones(model="local/small"))
    proposer = backbones(model="openai/gpt-4o-mini").lm("judge")
    print_result(made.compiled(program), program, proposer)
    rows = [line.split() for line in lines(capsys.readouterr().out)]
    usd = {row[0]: row[-1] for row in rows if row and row[0] in ("judge", "reflection") and len(row) == 6}
    assert usd == {"judge": "0.0000", "reflection": "0.0011"}


def test_a_matrix_says_what_to_compile_again(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    staffed(monkeypatch, **{"some/deaf": deaf})
    args = ("backbones", "matrix", "--program", "mail=program.json", "--tasks-file", "mail.jsonl")
    args += ("--backbone", "quick=some/quick", "--backbone", "deaf=some/deaf")
    shown = lines(called(capsys, *args))
    assert shown[0] == "mail/held_out 12 tasks in 3 orders, 2 programs on 2 backbones"
    table = [line.split() for line in itertools.takewhile(lambda line: not line.startswith("uncompiled:"), shown[2:])]
    rows = [row for row in table if row[0] in ("quick", "deaf")]
    below = [row for row in table if "base" in row]
    assert [row[:2] for row in rows] == [
        ["quick", "uncompiled"],
        ["quick", "mail"],
        ["deaf", "uncompiled"],
        ["deaf", "mail"],
    ]
    assert rows[1][2] == "100%"
    assert [" ".join(each[:-2]) for each in below] == ["", "better", "", "not shown"]
    balanced = [each for each in table if each not in rows + below]
    assert {name for name, _ in balanced} == {"bal."}
    assert len(balanced) == 3, "of one who solved all nobody knows"
    assert "not better than without, so compile again: mail for deaf" in shown
    assert any("--set backbones.agent.model=some/deaf --out mail/deaf.json" in line for line in shown)
    given = ("--seed", "3", "--set", "program.judge.view_tokens=900", "--set", "backbones.agent.model=some/other")
    shown = called(capsys, *args, *given).splitlines()
    same = "--seed 3 --set program.judge.view_tokens=900 --set backbones.agent.model=some/deaf --out mail/deaf.json"
    assert any(same in line for line in shown), shown

    Path("mail").mkdir()
    shutil.copy("program.json", "mail/default.json")
    save_program(ReasoningBank(), "mail/deaf.json")
    found = json.loads(called(capsys, *args, "--program", "own=mail", "--json"))
    assert found["recompile"] == [{"program": name, "backbone": "deaf"} for name in ("mail", "own")]
    assert {cell["program"]: cell["success"]["mean"] for cell in found["cells"] if cell["backbone"] == "quick"} == {
        "mail": 1.0,
        "own": 1.0,
        "seed": found["cells"][0]["success"]["mean"],
    }


def test_what_a_matrix_offers_works(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The compile is of the cell: its model in all roles, whatever the settings say. Then all have their file."""
    staffed(monkeypatch, **{"some/deaf": deaf})
    Path("rb.toml").write_text(
        '[backbones.agent]\nmodel = "a/b"\napi_base = "http://127.0.0.1:1/v1"\n[backbones.judge]\nmodel = "a/judge"\n'
    )
    args = ["backbones", "matrix", "--tasks-file", "mail.jsonl"]
    args += ["--backbone", "quick=some/quick", "--backbone", "deaf=some/deaf"]
    shown = called(capsys, *args, "--program", "mail=program.json").splitlines()
    (offered,) = (line for line in shown if line.startswith("for example: "))
    command = shlex.split(offered)
    given = command[command.index("compile") :]
    played = load_settings(Path("rb.toml"), [given[given.index("--set") + 1]]).backbones
    assert played == {"agent": BackboneConfig(model="some/deaf")}
    called(capsys, *given, "--budget", "20", "--orders", "3", "--no-track")
    assert shown[-1].endswith("and for others mail/default.json: copy program.json there")
    told = called(capsys, *args, "--program", "mail=mail", code=2)
    assert "mail: holds neither quick.json nor default.json; compile for quick, or add one" in told
    assert "rb-dspy-" not in told
    shutil.copy("program.json", "mail/default.json")
    again = called(capsys, *args, "--program", "mail=mail")
    assert "could not be run" not in again
    assert "--out mail/deaf.json" in again

    Path("deaf.toml").write_text('[backbones.agent]\nmodel = "some/deaf"\n')
    shown = called(capsys, *args[:4], "--program", "mail=mail", "--backbone", "deaf=deaf.toml").splitlines()
    assert any("""--set 'backbones={agent = {model = "some/deaf"}}' --out mail/deaf.json""" in line for line in shown)


def test_a_matrix_offers_no_compile_on_what_it_measured(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    staffed(monkeypatch, deaf)
    args = ("backbones", "matrix", "--program", "mail=program.json", "--tasks-file", "mail.jsonl", "--whole")
    shown = called(capsys, *args, "--backbone", "deaf=some/deaf")
    assert "compile again: mail for deaf" in shown
    assert "for example" not in shown
    assert "on other tasks than these" in shown


@pytest.mark.parametrize(("given", "warned"), [((), False), (("--whole",), False), (("--seed", "1"), True)])
def test_a_matrix_says_where_other_tasks_were_kept_apart(
    capsys: pytest.CaptureFixture[str], given: tuple[str, ...], warned: bool
) -> None:
    args = ("backbones", "matrix", "--program", "mail=program.json", "--tasks-file", "mail.jsonl")
    assert main([*args, "--backbone", "quick=some/quick", *given]) == 0
    told = "so it may have been compiled on some of them"
    assert (told in " ".join(capsys.readouterr().err.split())) is warned


def test_nothing_in_a_prompt_commands_the_terminal() -> None:
    console = Console(file=io.StringIO(), width=120)
    print_diff(console, "--- act.predict before\n+++ act.predict after\n+Look \x1b]0;title\x07\x1b[2Jhere\u202e.")
    assert console.file.getvalue().splitlines()[2] == "+Look \ufffd]0;title\ufffd\ufffd[2Jhere\ufffd."  # type: ignore[attr-defined]


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
        ((*COMPILE, "-n", "4"), "expected at least 3, one for each split"),
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


def test_the_bar_fits_a_narrow_terminal_and_says_each_phase_once() -> None:
    out = io.StringIO()
    usage = {"agent": RoleUsage(calls=9, prompt_tokens=1_200_000, completion_tokens=34_000)}
    with CompileBar(Console(file=out, width=80, force_terminal=True, no_color=True), 1000) as bar:
        bar.on_progress(Progress(0, 1000, None, note="harvesting the compile stream"))
        for calls in (41, 42):
            bar.on_progress(Progress(calls, 1000, 0.625, usage, 7.0, "gepa on 12 examples, 4 of dev"))
    printed = out.getvalue()
    assert printed.count("harvesting the compile stream") == printed.count("gepa on 12 examples, 4 of dev") == 1
    assert "42/1000 metric calls · best 0.62 · 1.2M tokens · 0:00:0" in printed


@pytest.mark.parametrize(
    ("scored", "to_score", "said"),
    [(0, 12, "0/12 scored · best 0.62"), (7, 12, "7/12 scored · best 0.62"), (0, 0, "1000/1000 metric calls")],
)
def test_while_scores_are_taken_the_bar_shows_how_many_there_are(scored: int, to_score: int, said: str) -> None:
    out = io.StringIO()
    with CompileBar(Console(file=out, width=80, force_terminal=True, no_color=True), 1000) as bar:
        bar.on_progress(Progress(1000, 1000, 0.625, note="gepa on 12 examples, 4 of dev"))
        bar.on_progress(Progress(1000, 1000, 0.625, note="scoring dev before", scored=12, to_score=12))
        for done in range(scored + 1):
            bar.on_progress(Progress(1000, 1000, 0.625, note="scoring dev after", scored=done, to_score=to_score))
    assert said in out.getvalue().rpartition("scoring dev after")[2]
    assert out.getvalue().count("scoring dev after") == 1


def test_while_runs_are_harvested_the_bar_moves_with_their_rollouts() -> None:
    out = io.StringIO()

    def told(harvested: int, to_harvest: int) -> str:
        bar.on_progress(
            Progress(0, 30, None, note="harvesting the dev stream", harvested=harvested, to_harvest=to_harvest)
        )
        before = out.tell()
        bar._bars.refresh()
        return out.getvalue()[before:]

    with CompileBar(Console(file=out, width=80, force_terminal=True, no_color=True), 30) as bar:
        assert " 0/12 rollouts · best - · 0 tokens" in told(0, 12)
        assert " 3/12 rollouts" in told(3, 12)
        assert " 5/11 rollouts" in told(5, 11), "one was lost"
        assert "11/11 rollouts" in told(11, 11)
        assert "14/? rollouts" in told(14, 0), "siblings"
        bar.on_progress(Progress(1, 30, None, note="gepa on 12 examples, 4 of dev"))
    assert " 1/30 metric calls" in out.getvalue()
    assert out.getvalue().count("harvesting the dev stream") == 1


def test_without_a_terminal_there_are_phases_and_no_bar() -> None:
    out = io.StringIO()
    with CompileBar(Console(file=out, width=80), 10) as bar:
        bar.on_progress(Progress(1, 10, None, note="scoring dev before"))
    assert out.getvalue().strip() == "scoring dev before"


@pytest.mark.parametrize(
    ("dev", "reflects", "said"),
    [
        (1.0, True, "dev has no task left to be better on, so nothing could be chosen: another --seed, or more tasks"),
        (0.5, True, "what may help: a larger --budget, a stronger model as --reflection, more tasks"),
        (0.5, False, "what may help: a larger --budget, more tasks"),
    ],
)
def test_the_advice_is_for_what_came_of_it(
    capsys: pytest.CaptureFixture[str], dev: float, reflects: bool, said: str
) -> None:
    found = made.compiled(ReasoningBank(), gain=0.0, reach=0.2, after=dev)
    found.prompts_after = found.prompts_before
    if not reflects:
        del found.usage["reflection"]
    print_next(found, keep="keep it", use="use it")
    assert said in " ".join(capsys.readouterr().out.split())


def test_what_is_not_shown_to_be_better_comes_with_its_interval_and_can_be_kept(
    capsys: pytest.CaptureFixture[str],
) -> None:
    print_next(made.compiled(ReasoningBank(), gain=0.1, reach=0.2), keep="keep it", use="use it")
    shown = capsys.readouterr().out
    assert "+0.10 [-0.10, +0.30]" in shown
    assert "keep it" in shown


def test_tasks_that_the_bank_knows_from_another_file_are_not_done_under_its_name(
    capsys: pytest.CaptureFixture[str],
) -> None:
    records = [json.loads(line) for line in Path("mail.jsonl").read_text().splitlines()][:4]
    Path("one.jsonl").write_text(
        "".join(f"{json.dumps({**each, 'id': f'own/{n}'})}\n" for n, each in enumerate(records))
    )
    unnamed = [json.dumps({name: value for name, value in each.items() if name != "id"}) for each in records]
    Path("two.jsonl").write_text("\n".join(unnamed[:3]) + "\n")
    Path("three.jsonl").write_text("\n".join(unnamed) + "\n")

    def done(name: str) -> str:
        assert main(["run", "--stream", name, "--bank", "new.sqlite"]) == 0
        printed = capsys.readouterr()
        assert ("3 tasks left out: the bank has learned from the same" in printed.err) == (name == "three.jsonl")
        return next(line.strip() for line in printed.out.splitlines() if line.startswith("solved"))

    assert " of 4 tasks" in done("one.jsonl")
    assert " of 3 tasks" in done("two.jsonl"), "who names his tasks knows better"
    assert " of 1 task" in done("three.jsonl")
    Path("twice.jsonl").write_text("\n".join([json.dumps({"instruction": MAIL["damage"].format(n=1)})] * 2) + "\n")
    assert main(["run", "--stream", "twice.jsonl", "--bank", "twice.sqlite", "-n", "1"]) == 0
    assert main(["run", "--stream", "twice.jsonl", "--bank", "twice.sqlite"]) == 0
    printed = capsys.readouterr()
    assert "left out" not in printed.err
    assert "1/1  twice/" in printed.out
