"""The command line, with a language model that answers over HTTP on loopback."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.served import TASKS, Served, lines

RUN = ("run", "tasks.jsonl", "--bank", "bank.sqlite", "--no-track")


def test_a_scaled_run_says_how_it_went_and_its_lessons_can_be_imported_into_another_bank(
    cli: Any, served: Served
) -> None:
    code, out, err = cli(*RUN, "--matts", "parallel", "--k", "2")
    assert code == 0, err
    assert "2 of 3" in out
    assert "pass@2" in out
    roles = [*["agent", "judge"] * 2, "selector", "distiller"]
    assert sorted(prompt.role for prompt in served.prompts) == sorted(roles * 3)

    code, _, err = cli("bank", "export", "lessons.jsonl", "--bank", "bank.sqlite")
    assert code == 0, err
    for _ in range(2):  # twice is once
        code, _, err = cli("bank", "import", "lessons.jsonl", "--bank", "other.sqlite")
        assert code == 0, err
    code, out, _ = cli("bank", "list", "--bank", "other.sqlite", "--json")
    assert [item["title"] for item in lines(out)] == ["Add twice"]


def test_both_runs_the_same_tasks_without_and_with_memory_and_stores_nothing(cli: Any, served: Served) -> None:
    code, out, err = cli(*RUN, "--memory", "both")
    assert code == 0, err
    asked = [prompt.role for prompt in served.prompts]
    assert asked == ["agent"] * 3 + ["agent", "judge", "distiller"] * 3
    assert "Add twice" in served.prompts[6].text, "the second task is shown what the first one taught"
    assert not any("Add twice" in prompt.text for prompt in served.prompts[:4])
    assert any(line.count("2 of 3") == 2 for line in out.splitlines() if "solved" in line)
    assert "2 of 3" in out.splitlines()[-1]
    first, second = out.split("now with memory")
    numbered = [line for line in first.splitlines() if line[:3].strip().isdecimal()]
    assert len(numbered) == 3, "a file has a line for each task from the first one on"
    learned = [line for line in second.splitlines() if "learned:" in line]
    assert len(learned) == 3
    assert all(line.endswith(".") for line in learned), "a lesson is on one line, whole"
    code, out, _ = cli(*RUN, "--memory", "both", "--json")
    *rows, last = lines(out)
    assert [(row["memory"], row["task"]) for row in rows] == [
        (on, each["id"]) for on in ("none", "bank") for each in TASKS
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


@pytest.mark.parametrize("status", [401, 403])
def test_a_refused_key_is_exit_code_4_and_nothing_is_learned(cli: Any, served: Served, status: int) -> None:
    served.refuse = lambda prompt: status
    code, _, err = cli(*RUN)
    assert code == 4
    assert "Traceback" not in err
    assert "a-key" not in err
    code, out, _ = cli("bank", "list", "--bank", "bank.sqlite", "--json")
    assert lines(out) == []
