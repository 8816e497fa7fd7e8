"""What holds for every command: help, JSON, one line and an exit code for what is wrong."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

from rb_dspy import MemoryBank, MemoryDraft, Task, Trajectory, Verdict, errors
from rb_dspy.backbones import Backbones
from rb_dspy.cli import output
from rb_dspy.cli.main import app, main
from rb_dspy.testing import HashEmbedder
from tests.served import Served

COMMAND = [sys.executable, "-m", "rb_dspy.cli.main"]
SOURCE = str(Path(__file__).parents[2])


def commands(name: str, command: Any) -> Iterator[tuple[str, Any]]:
    below = getattr(command, "commands", {})
    for part, each in below.items():
        yield from commands(f"{name} {part}".strip(), each)
    if not below:
        yield name, command


COMMANDS = dict(commands("", typer.main.get_command(app)))


@pytest.mark.parametrize("name", COMMANDS)
def test_help_explains_every_option(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*name.split(), "--help"]) == 0
    assert "Usage" in capsys.readouterr().out
    assert COMMANDS[name].help
    assert f"Example: `rb-dspy {name}" in COMMANDS[name].epilog or f"- `rb-dspy {name} " in COMMANDS[name].epilog
    assert [param.name for param in COMMANDS[name].params if getattr(param, "help", "x") is None] == []


def test_every_command_can_print_json() -> None:
    assert [name for name, each in COMMANDS.items() if not any("--json" in param.opts for param in each.params)] == []


def test_help_imports_nothing_heavy() -> None:
    code = "import sys; from rb_dspy.cli.main import main; main(['run', '--help']); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=SOURCE)
    loaded = set(done.stdout.splitlines()[-1].split())
    assert "rb_dspy.cli.main" in loaded
    assert not loaded & {"dspy", "litellm", "mlflow", "torch", "faiss", "sqlalchemy", "datasets", "scipy", "numpy"}


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("rb-dspy 0.")


def test_json_is_one_value_a_line(cli: Any) -> None:
    assert cli("run", "tasks.jsonl", "-n", "1")[0] == 0
    for args in (
        *("config", "config program.act", "envs", "envs directory", "models list", "runs list", "bank list"),
        *("bank list --experiences", "bank search sum", "bank stats", "bank pending", "bank doctor", "bank reindex"),
        *("run tasks.jsonl", "runs show last", "models check", "bank export out.jsonl", "bank add T C"),
    ):
        code, out, err = cli(*args.split(), "--json")
        assert code == 0, err
        assert [json.loads(line) for line in out.splitlines()] or args in ("bank pending", "bank doctor")


def test_tables_cut_nothing_at_80_columns(cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    long, arms = "a-file-of-many-questions-of-customers.jsonl", ("none", "success_only", "true_verdicts")
    Path("tasks.jsonl").rename(long)
    monkeypatch.setattr(output.out, "width", 80)
    commands = ("run", long), ("evaluate", long, "--arms", ",".join(arms), "--orders", "1", "--yes")
    commands += ("runs", "list"), ("evaluations", "list"), ("bank", "list", "--experiences"), ("runs", "show", "last")
    for command in commands:
        code, shown, err = cli(*command)
        assert code == 0, err
        assert "…" not in shown, shown
        assert max(map(len, shown.splitlines())) <= 80 or command[0] in ("run", "evaluate"), "what can be copied"
        if command[0] == "evaluate":
            rows = [line for line in shown.splitlines() if line.startswith(tuple(f" {arm} " for arm in arms))]
            assert all(len(line.split("  ")) > 3 for line in rows)
            heads = "solved steps shown judge right errors learned tokens/task tokens/success cost/task verdict"
            assert set(heads.split()) <= set(shown.split())


ERRORS = [
    each
    for each in vars(errors).values()
    if isinstance(each, type) and issubclass(each, errors.RBError) and each.__init__ is errors.RBError.__init__
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda each: each.__name__)
def test_an_error_is_one_line_and_its_exit_code(
    cli: Any, monkeypatch: pytest.MonkeyPatch, error: type[errors.RBError]
) -> None:
    def fail(configs: object) -> Backbones:
        raise error("the first line\nand \x1b[31mthe second")

    monkeypatch.setattr(Backbones, "from_settings", fail)
    code, out, err = cli("run", "tasks.jsonl")
    assert code == error.exit_code
    assert (out, err.count("\n")) == ("", 1)
    assert "\x1b" not in err


@pytest.mark.parametrize(
    ("args", "code", "part"),
    [
        (["run", "--task", ""], 2, "instruction is empty"),
        (["run", "tasks.jsonl", "--task", "What?"], 2, "--task"),
        (["run", "missing.jsonl"], 2, "missing.jsonl"),
        (["run", "chess"], 2, "unknown stream 'chess'"),
        (["run", "bad.jsonl"], 2, "bad.jsonl:1"),
        (["run", "foreign.jsonl"], 2, "unknown environment 'chess'"),
        (["run", "outside.jsonl"], 2, "--files"),
        (["run", "tasks.jsonl", "--set", "run.split=dev"], 2, "run.split"),
        (["run", "tasks.jsonl", "--matts", "sideways"], 2, "sideways"),
        (["run", "tasks.jsonl", "--k", "3"], 2, "--k 3"),
        (["run", "tasks.jsonl", "--program", "missing.json"], 2, "missing.json"),
        (["run", "tasks.jsonl", "--env", "nothing:Here"], 2, "nothing:Here"),
        (["run", "tasks.jsonl", "--env", "json:JSONDecoder"], 2, "has no reset"),
        (["run", "tasks.jsonl", "--set", "backbones.agent.model=local/gpt-9"], 2, "gpt-9"),
        (["run", "tasks.jsonl", "--set", "backbones.agent.api_key_env=RB_UNSET"], 4, "RB_UNSET"),
        (["run", "tasks.jsonl", "--memory", "both", "--track"], 2, "--track"),
        (["evaluate", "tasks.jsonl", "--arms", "none,luck"], 2, "luck"),
        (["evaluate", "tasks.jsonl", "--arms", "none"], 2, "at least two"),
        (["evaluate", "tasks.jsonl", "--screen"], 2, "--lessons"),
        (["evaluate", "tasks.jsonl", "--lessons", "x.jsonl"], 2, "oracle"),
        (["compile", "tasks.jsonl", "--save", "nowhere/x.json"], 2, "nowhere"),
        (["runs", "show", "zzz"], 2, "zzz"),
        (["runs", "compare", "a", "b"], 2, "no such run"),
        (["bank", "list"], 6, "rb-bank.sqlite"),
        (["bank", "import", "missing.jsonl"], 2, "missing.jsonl"),
        (["bank", "edit", "x"], 2, "--title"),
        (["learn", "--bank", "nowhere.sqlite"], 6, "nowhere.sqlite"),
        (["bank", "list", "--bank", "a\\[/x]"], 6, "a\\[/x]"),
        (["models", "get", "gpt-9"], 2, "gpt-9"),
        (["envs", "chess"], 2, "chess"),
        (["config", "no.such.key"], 2, "no.such.key"),
        (["config", "--config", "missing.toml"], 2, "missing.toml"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_bad_input_is_one_line_and_changes_nothing(
    cli: Any, served: Served, args: list[str], code: int, part: str
) -> None:
    Path("bad.jsonl").write_text("{oops\n")
    Path("foreign.jsonl").write_text('{"instruction": "Mate in two.", "env": "chess"}\n')
    database = {"database": "../private.db", "query": "SELECT 1"}
    Path("outside.jsonl").write_text(json.dumps({"instruction": "?", "env": "sql", "env_args": database}))
    before = sorted(Path().rglob("*"))
    status, out, err = cli(*args)
    assert (status, err.count("\n")) == (code, 1), err
    assert part in err
    assert out == ""
    assert served.prompts == []
    assert sorted(path for path in Path().rglob("*") if path.name != "__pycache__") == before


@pytest.mark.parametrize(
    "args", [["--no-such"], ["run", "--no-such"], ["nothing"], ["bank", "search", "x", "--mode", "m"]]
)
def test_bad_usage_is_exit_code_2(cli: Any, args: list[str]) -> None:
    assert cli(*args)[0] == 2


def shell(line: str, folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "COLUMNS": "100", "PYTHONPATH": SOURCE}
    command = ["bash", "-o", "pipefail", "-c", line.replace("rb-dspy", " ".join(COMMAND))]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=120, check=False, env=environment, cwd=folder
    )


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a bank whose list is longer than a pipe holds."""
    folder = tmp_path_factory.mktemp("many")
    drafts = [MemoryDraft(title=f"{number} é", description="", content="x" * 1500) for number in range(100)]
    task = Task(id="t/1", instruction="Put the shirt away.")
    with MemoryBank.open(folder / "rb-bank.sqlite", scope="default", embedder=HashEmbedder()) as bank:
        bank.append(task, Trajectory(task_id="t/1"), Verdict(label="success"), drafts)
    return folder


@pytest.mark.parametrize("args", ["bank list | true", "bank export - | head -n 1"])
def test_a_reader_that_ends_early_is_no_error(many: Path, args: str) -> None:
    done = shell(f"rb-dspy {args}", many)
    assert (done.returncode, done.stderr) == (0, ""), done


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux")
def test_a_full_disk_behind_the_output_is_one_line(many: Path) -> None:
    done = shell("rb-dspy bank list --json > /dev/full", many)
    assert (done.returncode, done.stderr.count("\n")) == (6, 1), done


def test_a_terminal_of_few_characters_gets_escapes(many: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", terminal)
    assert main(["bank", "list", "--json", "--bank", str(many / "rb-bank.sqlite")]) == 0
    assert json.loads(terminal.buffer.getvalue().splitlines()[0])["title"] == "0 é"  # type: ignore[attr-defined]
