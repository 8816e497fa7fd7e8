"""The command line, in this process: what it prints, and what it exits with."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rb_dspy import MemoryBank, Trajectory, Verdict
from rb_dspy.backbones import models
from rb_dspy.cli import common
from rb_dspy.cli.main import main
from rb_dspy.plugins import embedder
from rb_dspy.schema import Experience, MemoryDraft, Step, Task

HOSTED = "--set", "backbones.agent.model=openai/any"
"""Nobody is asked; the default model need not be on this machine."""

SMALL = "--set", "backbones.agent.model=local/smollm2-135m", "--set", "backbones.agent.threads=1"
"""One thread, since other tests run beside: two that wait for each other take twice as long."""

LESSON = MemoryDraft(
    title="Open first", description="When it is shut; not when open.", content="Open it, then put it in."
)


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")


@pytest.fixture
def filled() -> Experience:
    """The bank that a run in this folder would have left."""
    task = Task(id="t/1", instruction="Put the shirt away.", template="twc")
    rollout = Trajectory(task_id="t/1", steps=(Step(thought="Hm.", action="open wardrobe", observation="It is open."),))
    with MemoryBank.open("rb-bank.sqlite", scope="default", embedder=embedder("minilm")) as bank:
        return bank.append(task, rollout, Verdict(label="success", reasons="Seen."), [LESSON])


def test_a_bank_can_be_looked_into(filled: Experience, capsys: pytest.CaptureFixture[str]) -> None:
    for args, expected in [
        (["list"], ["Open first", filled.items[0].id]),
        (["show", filled.items[0].id], ["Open it, then put it in.", "t/1"]),
        (["show", filled.id], ["Put the shirt away.", "open wardrobe", "It is open.", "success", "Seen."]),
        (["search", "Where does the shirt go?"], ["Open first", "Put the shirt away."]),
        (["search", "Where does the shirt go?", "--items", "-k", "3"], ["Open first"]),
        (["stats"], ["all-MiniLM-L6-v2", "items"]),
    ]:
        assert main(["bank", *args]) == 0
        printed = capsys.readouterr().out
        assert all(text in printed for text in expected), (args, printed)


def _line(capsys: pytest.CaptureFixture[str]) -> str:
    lines = [line for line in capsys.readouterr().err.splitlines() if line.strip()]
    assert len(lines) == 1, lines
    return lines[0]


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        (["bank", "list", "--scope", "nobody"], 6, "no scope 'nobody'; known: default"),
        (["bank", "show", "zzz"], 2, "no item or experience 'zzz'"),
        (["run", "--task", ""], 2, "the instruction is empty"),
        (["run", "--task", "x" * 1_000_000], 2, "1,000,000 characters"),
        (["run", "--task", "What?", "--stream", "a.jsonl"], 2, "--task and --stream: one question, or a stream"),
        (["run", "--stream", "missing.jsonl"], 2, "no such file"),
        (["run", "--stream", "chess"], 2, "unknown stream 'chess'"),
        (["run", "--stream", "twc", "--set", "run.split=stream"], 2, "the split 'stream' has no template"),
        (["run", "--stream", "a.jsonl", "--set", "run.split=held-out"], 2, "run.split is for named streams"),
        (["run", "--stream", "a.jsonl", "--set", 'run.templates=["a"]'], 2, "run.templates is for named streams"),
        (["run", "--set", "run.taks=3"], 2, "unknown key 'run.taks'; did you mean 'tasks'"),
        (["run", "--config", "missing.toml"], 2, "no such file"),
        (["run", "--set", "backbones.agent.model=local/gpt-9"], 2, "model 'gpt-9' is not known"),
        (["run", "--set", "backbones.agent.model=local/none.gguf"], 3, "none.gguf"),
        (["run", *HOSTED, "--set", "bank.embedder=no/such/model"], 3, "no/such/model"),
        (["models", "get", "gpt-9"], 2, "expected one of qwen2.5-coder-1.5b"),
        (["envs", "chess"], 2, "unknown environment 'chess'"),
        (["envs", "--baselines"], 2, "needs the name of one environment"),
    ],
)
def test_bad_input_is_one_clear_line_and_an_exit_code(
    filled: Experience, capsys: pytest.CaptureFixture[str], args: list[str], code: int, message: str
) -> None:
    before = Path("rb-bank.sqlite").read_bytes()
    assert main(args) == code
    assert message in _line(capsys)
    assert Path("rb-bank.sqlite").read_bytes() == before


@pytest.mark.parametrize("command", [["run"], ["compile"], ["backbones", "matrix", "--backbone", "a=openai/x"]])
def test_a_task_of_an_unknown_environment_is_bad_input(capsys: pytest.CaptureFixture[str], command: list[str]) -> None:
    """Which is said before anything is made or asked."""
    lines = ['{"instruction": "What is 1 + 1?"}', "", '{"instruction": "Mate in two.", "env": "chess"}']
    Path("tasks.jsonl").write_text("\n".join(lines))
    args = ["--stream", "tasks.jsonl", "--set", "backbones.agent.model=openai/x"]
    assert main([*command, *args]) == 2
    assert "unknown environment 'chess'" in _line(capsys)
    assert [path.name for path in Path().iterdir()] == ["tasks.jsonl"]


def test_a_file_that_is_no_bank_is_left_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    Path("rb-bank.sqlite").write_bytes(b"not a database" * 1000)
    assert main(["bank", "list"]) == 6
    assert "not a bank" in _line(capsys)
    assert main(["run", *HOSTED, "--task", "What is 1 + 1?"]) == 6
    assert Path("rb-bank.sqlite").read_bytes() == b"not a database" * 1000


def test_looking_into_a_bank_that_is_not_there_makes_none(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bank", "list"]) == 6
    told = _line(capsys)
    assert "rb-bank.sqlite: no bank there; check the path" in told
    assert "create=True" not in told
    assert not Path("rb-bank.sqlite").exists()


def test_a_missing_key_is_named_by_backbones_check(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    assert main(["backbones", "check", "--set", "backbones.agent.model=openai/gpt-4o-mini"]) == 4
    printed = capsys.readouterr()
    assert "no key" in printed.out
    assert "no answer from agent, judge, distiller, contraster, selector" in printed.err


def test_a_missing_key_is_named_by_a_run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    assert main(["run", "--task", "hi", "--set", "backbones.agent.model=openai/gpt-4o-mini"]) == 4
    assert "agent (openai/gpt-4o-mini): no key" in _line(capsys)


@pytest.mark.model
def test_a_run_on_a_real_model(capsys: pytest.CaptureFixture[str]) -> None:
    """The smallest model: shows that everything is connected, not that it solves anything."""
    models.get("smollm2-135m")
    args = ["run", *SMALL]
    for cap in ("act.max_tokens=80", "judge.max_tokens=100", "distill.max_tokens=160"):
        args += ["--set", f"program.{cap}"]
    assert main([*args, "-n", "1", "--json"]) == 0
    *results, last = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(results) == 1
    assert all(result["error"] is None and result["verdict"]["label"] != "unknown" for result in results)
    assert all(result["outcome"] is not None for result in results)
    assert last["summary"]["usage"]["judge"]["calls"] == 1

    assert main(["bank", "stats", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["experiences"] == 1


@pytest.mark.model
def test_backbones_check_shows_what_answered(capsys: pytest.CaptureFixture[str]) -> None:
    models.get("smollm2-135m")
    assert main(["backbones", "check", *SMALL]) == 0
    printed = capsys.readouterr().out
    assert printed.count("local/smollm2-135m") == 5


def test_as_a_program_of_its_own(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "rb_dspy.cli.main"]
    helped = subprocess.run([*command, "--help"], capture_output=True, text=True, timeout=60, check=False)
    assert helped.returncode == 0
    assert "rb-dspy" in helped.stdout or "Usage" in helped.stdout
    wrong = subprocess.run([*command, "run", "--task", " "], capture_output=True, text=True, timeout=60, check=False)
    assert (wrong.returncode, wrong.stderr.count("\n")) == (2, 1)
    piped = subprocess.run(
        f"{sys.executable} -m rb_dspy.cli.main models list | head -n 1",
        shell=True,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "COLUMNS": "100"},
    )
    assert piped.stderr == ""


COMMAND = f"{sys.executable} -m rb_dspy.cli.main"


def shell(line: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """What a shell made of a line; its exit code is that of the first program in a pipe that failed."""
    return subprocess.run(
        ["bash", "-o", "pipefail", "-c", line],
        capture_output=True,
        text=True,
        errors="replace",
        timeout=120,
        check=False,
        env={**os.environ, "COLUMNS": "100", **environment},
    )


@pytest.fixture
def many() -> Experience:
    """A bank whose list is longer than a pipe holds."""
    task = Task(id="t/1", instruction="Put the shirt away, naïvely.")
    drafts = [LESSON.model_copy(update={"title": f"{n} é 😀", "content": "x" * 1500}) for n in range(100)]
    rollout = Trajectory(task_id="t/1", steps=(Step(action="öffne den Schrank"),))
    with MemoryBank.open("rb-bank.sqlite", scope="default", embedder=embedder("minilm")) as bank:
        return bank.append(task, rollout, Verdict(label="success"), drafts)


@pytest.mark.parametrize(
    "line",
    [
        f"{COMMAND} bank list --json | head -n 1",
        f"{COMMAND} bank list | head -n 1",
        f"{COMMAND} bank list | true",
        f"{COMMAND} bank list --json | true",
        f"{COMMAND} bank export - | head -n 1",
        f"{COMMAND} bank show nothing-of-this-id 2>&1 | true",
        f"{COMMAND} --help | true",
        f"{COMMAND} bank list >&-",
    ],
)
def test_a_reader_that_goes_ends_a_command_quietly(many: Experience, line: str) -> None:
    done = shell(line)
    assert (done.returncode, done.stderr) == (2 if "nothing" in line else 0, ""), done


@pytest.mark.parametrize("args", ["bank list", "bank list --json", "bank export -", "bank stats", "--help"])
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux")
def test_output_that_cannot_be_written_is_one_line(many: Experience, args: str) -> None:
    done = shell(f"{COMMAND} {args} > /dev/full")
    assert done.returncode == 6
    assert done.stderr == (
        "error: the output cannot be written: No space left on device; send it where there is room\n"
    )
    assert shell(f"{COMMAND} {args} > /dev/full 2>&1").returncode == 6


def test_a_terminal_of_few_characters_gets_escapes(many: Experience) -> None:
    for encoding in ("ascii", "latin-1:strict"):
        done = shell(f"{COMMAND} bank show {many.id}", PYTHONIOENCODING=encoding)
        assert (done.returncode, done.stderr) == (0, "")
        assert "\\U0001f600" in done.stdout
        done = shell(f"{COMMAND} bank list --json", PYTHONIOENCODING=encoding)
        assert (done.returncode, done.stderr) == (0, "")
        assert json.loads(done.stdout.splitlines()[7])["title"] == "7 é 😀"


def test_json_of_a_lone_surrogate_is_json(capsys: pytest.CaptureFixture[str]) -> None:
    for value in ("a\ud800b", "é"):
        common.print_json({"path": Path(value), "task": Task(id="t", instruction="x", env_args={"é": value})})
        read = json.loads(capsys.readouterr().out)
        assert (read["path"], read["task"]["env_args"]) == (value, {"é": value})


def test_errors_say_what_was_given_as_it_was_given(capsys: pytest.CaptureFixture[str]) -> None:
    for args, text in (
        (["bank", "list", "--bank", "a\\[/x]"], "a\\[/x]"),
        (["bank", "list", "--bank", "a:smile:\\"], "a:smile:\\: "),
        (["bank", "list", "--config", "q\\[/b]"], "q\\[/b]"),
        (["bank", "import", "nn\\[/q]"], "nn\\[/q]"),
        (["models", "get", "n\\[/q]:x:"], "[/q]:x:"),
        (["bank", "list", "--scope", "\\[/x]"], ""),
        (["run", "--stream", "\\[/x]:x:.jsonl"], "\\[/x]:x:.jsonl"),
        (["envs", "\\[/x]"], "[/x]"),
        (["bank", "list", "--bank", "a\x1b[31mb"], ""),
        (["bank", "list", "--bank", os.fsdecode(b"a\xff")], ""),
        (["bank", "list", "--scope", os.fsdecode(b"a\xff")], ""),
        (["bank", "list", "--config", os.fsdecode(b"a\xff")], ""),
    ):
        assert main(args) in (2, 6), args
        line = _line(capsys)
        assert text in line, args
        assert "\x1b" not in line, args
