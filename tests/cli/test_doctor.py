"""``rb-dspy doctor``: one row for everything that a run needs, and the exit code of the worst problem."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

from tests.served import Served, lines

CHECKS = ["python", "extras", "models", "bank", "mlflow", "disk"]


def test_all_is_well_before_the_first_run_and_after_it(cli: Any, served: Served) -> None:
    code, out, err = cli("doctor", "--json")
    rows = lines(out)
    assert (code, [row["check"] for row in rows], {row["ok"] for row in rows}) == (0, CHECKS, {True}), err
    assert len(served.checks) == 1
    found = {row["check"]: row["found"] for row in rows}
    assert "agent, judge, distiller, contraster, selector: openai/scripted" in found["models"]
    assert "no bank at rb-bank.sqlite yet" in found["bank"]
    assert not Path("rb-bank.sqlite").exists()
    assert "not used" in found["mlflow"]
    assert cli("run", "tasks.jsonl", "-n", "1")[0] == 0
    assert "no errors in 1 scope of rb-bank.sqlite" in cli("doctor")[1]


def test_each_problem_is_named_and_the_worst_one_decides(cli: Any, served: Served) -> None:
    assert cli("run", "tasks.jsonl", "-n", "1")[0] == 0
    served.refuse = lambda prompt: 401
    with Path("rb.toml").open("a") as file:
        file.write('[tracking]\nuri = "http://127.0.0.1:9"\n')
    code, out, err = cli("doctor", "--json")
    assert (code, err.count("\n")) == (4, 1)
    assert [row["check"] for row in lines(out) if not row["ok"]] == ["models", "mlflow"]
    assert "refused the key" in err
    with sqlite3.connect("rb-bank.sqlite") as database:
        database.execute("DROP TABLE experiences")
    code, out, err = cli("doctor", "--json")
    assert (code, err.count("\n")) == (6, 1)
    assert [row["check"] for row in lines(out) if not row["ok"]] == ["models", "bank", "mlflow"]
