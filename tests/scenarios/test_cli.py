"""The command line, with a language model that answers over HTTP on loopback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rb_dspy.testing import Prompt
from tests.scenarios.world import role_of
from tests.served import TASKS, Served, lines

RUN = ("run", "tasks.jsonl", "--bank", "bank.sqlite", "--no-track")


def test_a_run_learns_from_every_task_and_says_how_it_went(cli: Any, served: Served) -> None:
    code, out, err = cli(*RUN)
    assert code == 0, err
    said = out + err
    assert all(task["id"] in said for task in TASKS) or all(str(task["instruction"]) in said for task in TASKS)
    assert "2 of 3" in said or "67" in said
    assert [role_of(prompt) for prompt in served.prompts] == ["agent", "judge", "distiller"] * 3

    code, out, _ = cli("bank", "list", "--bank", "bank.sqlite", "--json")
    assert code == 0
    assert [item["title"] for item in lines(out)] == ["Add twice"]
    code, out, _ = cli("bank", "list", "--bank", "bank.sqlite")
    assert "Add twice" in out


def test_json_output_is_lines_of_json(cli: Any) -> None:
    code, out, _ = cli(*RUN, "--json")
    assert code == 0
    rows = [row for row in lines(out) if row.get("task")]
    assert [row["task"] if isinstance(row["task"], str) else row["task"]["id"] for row in rows] == [
        task["id"] for task in TASKS
    ]


def test_a_second_run_does_only_what_is_left(cli: Any, served: Served) -> None:
    assert cli(*RUN, "-n", "1")[0] == 0
    assert len(served.prompts) == 3
    assert cli(*RUN)[0] == 0
    assert [role_of(prompt) for prompt in served.prompts[3:]] == ["agent", "judge", "distiller"] * 2
    before = len(served.prompts)
    code, _out, err = cli(*RUN)
    assert code == 0, err
    assert len(served.prompts) == before, "everything has been learned from"


def test_a_run_again_resumes_what_waits(cli: Any, served: Served) -> None:
    def judge_breaks(prompt: Prompt) -> int | None:
        return 400 if role_of(prompt) == "judge" and "What is 2 and" in prompt.text else None

    served.refuse = judge_breaks
    code, _out, err = cli(*RUN)
    assert code == 0, err
    served.refuse, before = lambda prompt: None, len(served.prompts)
    assert cli(*RUN)[0] == 0
    assert [role_of(prompt) for prompt in served.prompts[before:]] == ["judge", "distiller"]


def test_a_scaled_run_reports_pass_at_k(cli: Any, served: Served) -> None:
    code, out, err = cli(*RUN, "-n", "1", "--matts", "parallel", "--k", "2")
    assert code == 0, err
    assert "pass@2" in out + err
    assert sorted(role_of(prompt) for prompt in served.prompts) == sorted(
        ["agent"] * 2 + ["judge"] * 2 + ["selector", "distiller"]
    )


def test_without_memory_nothing_is_learned(cli: Any, served: Served) -> None:
    assert cli(*RUN, "--memory", "off")[0] == 0
    assert {role_of(prompt) for prompt in served.prompts} == {"agent"}


def test_both_runs_the_same_tasks_without_and_with_memory_and_stores_nothing(cli: Any, served: Served) -> None:
    code, out, err = cli(*RUN, "--memory", "both")
    assert code == 0, err
    asked = [role_of(prompt) for prompt in served.prompts]
    assert asked == ["agent"] * 3 + ["agent", "judge", "distiller"] * 3
    assert "Add twice" in served.prompts[6].text, "the second task is shown what the first one taught"
    assert not any("Add twice" in prompt.text for prompt in served.prompts[:4])
    assert any(line.count("2 of 3") == 2 for line in out.splitlines() if "solved" in line)
    code, out, _ = cli(*RUN, "--memory", "both", "--json")
    *rows, last = lines(out)
    assert [(row["memory"], row["task"]) for row in rows] == [
        (on, each["id"]) for on in ("off", "on") for each in TASKS
    ]
    assert (last["comparison"]["without"], last["comparison"]["with"], last["comparison"]["judge_right"]) == (2, 2, 2)
    assert not list(Path().glob("*.sqlite"))


def test_what_a_terminal_would_execute_is_escaped(cli: Any) -> None:
    hostile = {
        "id": "t/1",
        "instruction": "What is 1 and 5? \x1b]0;owned\x07 \u202e \x9b2J",
        "env_args": {"answer": "6"},
    }
    Path("tasks.jsonl").write_text(json.dumps(hostile))
    for more in ((), ("--memory", "both"), ("--json", "--scope", "other")):
        code, out, err = cli(*RUN, *more)
        assert code == 0, err
        assert not any(each in out + err for each in "\x1b\x07\u202e\x9b")


def test_what_is_exported_can_be_imported_into_another_bank(cli: Any) -> None:
    assert cli(*RUN)[0] == 0
    code, _, err = cli("bank", "export", "lessons.jsonl", "--bank", "bank.sqlite")
    assert code == 0, err
    assert Path("lessons.jsonl").read_text().count("\n") >= len(TASKS)
    for _ in range(2):  # twice is once
        code, _, err = cli("bank", "import", "lessons.jsonl", "--bank", "other.sqlite")
        assert code == 0, err
    code, out, _ = cli("bank", "list", "--bank", "other.sqlite", "--json")
    assert [item["title"] for item in lines(out)] == ["Add twice"]


def test_models_and_settings_can_be_listed(cli: Any) -> None:
    code, out, _ = cli("models", "list")
    assert code == 0
    assert "qwen2.5-coder-1.5b" in out
    code, out, _ = cli("config")
    assert code == 0
    assert "bank.embedder" in out or "[bank]" in out


@pytest.mark.parametrize(
    ("args", "options"),
    [
        (["compile"], ["TASKS", "--optimizer", "--budget"]),
        (["run"], ["TASKS", "--matts", "--memory", "--env"]),
        ([], []),
    ],
)
def test_help_lists_the_options(cli: Any, args: list[str], options: list[str]) -> None:
    code, out, _ = cli(*args, "--help")
    assert code == 0
    assert all(option in out for option in options)


@pytest.mark.parametrize("status", [401, 403])
def test_a_refused_key_is_exit_code_4_and_nothing_is_learned(cli: Any, served: Served, status: int) -> None:
    served.refuse = lambda prompt: status
    code, _, err = cli(*RUN)
    assert code == 4
    assert "Traceback" not in err
    assert "a-key" not in err
    code, out, _ = cli("bank", "list", "--bank", "bank.sqlite", "--json")
    assert lines(out) == []


@pytest.mark.parametrize(
    "args",
    [
        ["run", "missing.jsonl"],
        ["run", "no-such-stream"],
        ["run", "bad.jsonl"],
        ["run", "--set", "no.such=1"],
        ["run", "--matts", "sideways"],
        ["run", "--no-such-option"],
        ["compile", "missing.jsonl"],
        ["bank", "import", "missing.jsonl"],
        ["no-such-command"],
    ],
    ids=" ".join,
)
def test_bad_input_is_exit_code_2_in_one_line(cli: Any, served: Served, args: list[str]) -> None:
    Path("bad.jsonl").write_text("{oops\n")
    code, _, err = cli(*args)
    assert code == 2, err
    assert "Traceback" not in err
    assert served.prompts == []


def test_a_bank_that_is_not_there_is_exit_code_6(cli: Any) -> None:
    code, _, err = cli("bank", "list", "--bank", "missing.sqlite")
    assert code == 6
    assert "missing.sqlite" in err
    assert not Path("missing.sqlite").exists()


def test_the_installed_command_gives_its_exit_code(served: Served, tmp_path: Path) -> None:
    command = Path(sys.executable).parent / "rb-dspy"
    made = subprocess.run(
        [command, "run", "missing.jsonl"],
        cwd=tmp_path,
        env={**os.environ, "COLUMNS": "200", "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert made.returncode == 2, made.stderr
    assert "missing.jsonl" in made.stderr
    assert "Traceback" not in made.stderr
