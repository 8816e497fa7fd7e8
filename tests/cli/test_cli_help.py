"""What the command line tells of itself: help texts, defaults, settings, its version."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

import rb_dspy
from rb_dspy import MemoryBank
from rb_dspy.cli import late, main as main_module
from rb_dspy.cli.main import app, main
from rb_dspy.config import ROLES, Settings
from rb_dspy.plugins import embedder


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "400")


def commands(name: str, command: Any) -> Iterator[tuple[str, Any]]:
    """Every command by its name."""
    yield name, command
    for below, each in getattr(command, "commands", {}).items():
        yield from commands(f"{name} {below}", each)


COMMANDS = {"": typer.main.get_command(app)}
for top, (where, _) in main_module.COMMANDS.items():
    COMMANDS.update(commands(top, late.load(top, where)))


def helped(capsys: pytest.CaptureFixture[str], *command: str) -> str:
    assert main([*command, "--help"]) == 0
    return " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("name", main_module.COMMANDS)
def test_the_list_of_commands_says_of_each_what_it_says_itself(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    told = " ".join((COMMANDS[name].help or "").split("\n\n")[0].split())
    assert f"{name} {told}" in helped(capsys).replace("│", "").replace("  ", " ")
    assert told in helped(capsys, name)


@pytest.mark.parametrize(
    "args", ["--version", "--help", "settings", "models list", "envs", "bank list", "bank export -"]
)
def test_what_needs_no_dspy_does_not_import_it(args: str) -> None:
    MemoryBank.open("rb-bank.sqlite", scope="default", embedder=embedder("minilm")).close()
    code = "import sys; from rb_dspy.cli.main import main; code = main(); print(*sys.modules); sys.exit(code)"
    done = subprocess.run([sys.executable, "-c", code, *args.split()], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    loaded = set(done.stdout.splitlines()[-1].split())
    assert "rb_dspy.cli.main" in loaded
    assert not loaded & {"dspy", "litellm", "mlflow", "torch", "datasets", "scipy"}


def test_no_help_imports_what_a_command_works_with() -> None:
    """In one process: who is first to bring a package is the one that is named."""
    code = """
import contextlib, io, json, sys
from rb_dspy.cli.main import main
heavy = {"dspy", "litellm", "mlflow", "torch", "faiss", "sqlalchemy", "datasets", "scipy", "numpy"}
found = {}
for name in json.loads(sys.stdin.read()):
    with contextlib.redirect_stdout(io.StringIO()) as told:
        code = main([*name.split(), "--help"])
    brought = heavy.intersection(sys.modules)
    heavy -= brought
    found[name] = [code, "Usage" in told.getvalue(), *sorted(brought)]
print(json.dumps(found))
"""
    given = json.dumps([*COMMANDS])
    done = subprocess.run([sys.executable, "-c", code], input=given, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {name: [0, True] for name in COMMANDS}


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"rb-dspy {rb_dspy.__version__}\n"


def keys(capsys: pytest.CaptureFixture[str], *args: str) -> dict[str, dict[str, Any]]:
    assert main(["settings", "--json", *args]) == 0
    return {key["key"]: key for key in map(json.loads, capsys.readouterr().out.splitlines())}


def test_settings_lists_every_key_with_what_it_is_now(capsys: pytest.CaptureFixture[str]) -> None:
    Path("rb.toml").write_text('[bank]\nscope = "mine"\n[backbones.judge]\nmodel = "openai/x"\n')
    found = keys(capsys, "--set", "run.tasks=3", "--set", "matts.k=4", "-s", "tracking.uri=http://me:secret@host/x")
    assert found["run.tasks"] == {
        "key": "run.tasks",
        "type": "integer, at least 1",
        "choices": [],
        "default": 16,
        "value": 3,
        "meaning": "How many tasks that the bank has not seen yet.",
    }
    assert (found["bank.scope"]["default"], found["bank.scope"]["value"]) == ("default", "mine")
    assert found["run.split"]["choices"] == ["all", "compile", "dev", "stream", "held-out"]
    assert (found["matts.k"]["type"], found["matts.k"]["value"]) == ("integer, at least 1, at most 64", 4)
    assert (found["matts.contrast.max_items"]["default"], found["matts.contrast.max_items"]["value"]) == (5, 5)
    assert found["backbones.judge.model"]["value"] == "openai/x"
    assert {f"backbones.{role}.timeout" for role in ROLES} <= found.keys()
    assert "secret" not in json.dumps(found)


@pytest.mark.parametrize("given", ["backbones.judge.model=openai/x", "backbones.agent.threads=2"])
def test_the_agents_model_is_the_default_until_another_is_named(capsys: pytest.CaptureFixture[str], given: str) -> None:
    agent = keys(capsys, "--set", given)["backbones.agent.model"]
    assert agent["value"] == agent["default"] == "local/qwen2.5-coder-1.5b"


def test_all_settings_can_be_given_by_the_keys_that_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    """What is listed is taken, and all that the settings hold is listed."""
    given: dict[str, Any] = {}
    found = keys(capsys, "--set", "matts.k=3")
    for key in found.values():
        if key["value"] is not None:
            *tables, last = key["key"].split(".")
            table = given
            for name in tables:
                table = table.setdefault(name, {})
            table[last] = key["value"]
    assert Settings(**given) == Settings(matts={"k": 3})
    held = [name for name, value in _leaves(Settings(**tomllib.loads("[matts]\nk = 3")).model_dump())]
    assert set(held) <= found.keys()


def _leaves(table: dict[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in table.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{above}{name}.")
        else:
            yield f"{above}{name}", value


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("postgresql://me:hunter2@db.acme/ml", "postgresql://…@db.acme/ml"),
        ("postgresql://db.acme/ml?user=u&password=hunter2", "postgresql://db.acme/ml?user=u&password=…"),
        ("postgresql://db.acme/ml?PWD=hunter2&sslmode=require", "postgresql://db.acme/ml?PWD=…&sslmode=require"),
        ("http://host/x?api_key=hunter2&b=1#access_token=hunter2", "http://host/x?api_key=…&b=1#access_token=…"),
        ("http://u:hun?t=1/er2@host/x", "http://…@host/x"),
        ("sqlite:////home/me@work/keys.db", "sqlite:////home/me@work/keys.db"),
        ("host/x?token=hunter2", "host/x?token=…"),
    ],
)
def test_no_secret_of_an_address_is_shown(capsys: pytest.CaptureFixture[str], address: str, shown: str) -> None:
    texts = ["tracking.uri", "bank.url", *(["backbones.agent.api_base"] if address.startswith("http") else [])]
    given = [word for key in texts for word in ("-s", f"{key}={json.dumps(address)}")]
    given += ["-s", "backbones.agent.model=openai/x", "-s", f"run.templates={json.dumps([address])}"]
    found = keys(capsys, *given)
    assert {found[key]["value"] for key in texts} == {shown}
    assert found["run.templates"]["value"] == [shown]
    assert main(["settings", *given]) == 0
    assert "hunter2" not in capsys.readouterr().out
