"""What stored evaluations did, task by task."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest

from tests.cli.test_run import lines


@pytest.fixture
def place(cli: Any) -> str:
    code, out, err = cli("evaluate", "tasks.jsonl", "--orders", "2", "--yes", "--json")
    assert code == 0, err
    folder: str = lines(out)[-1]["folder"]
    return folder


def test_evaluations_are_listed_with_their_tasks(cli: Any, place: str) -> None:
    (listed,) = lines(cli("evaluations", "list", "--json")[1])
    assert (listed["folder"], listed["arms"], listed["tasks"], listed["done"]) == (place, ["none", "bank"], 3, 9)
    code, out, err = cli("evaluations", "show", place)
    assert code == 0, err
    assert "sum/1  1 of 1  2 of 2" in out
    assert "sum/3  0 of 1  0 of 2  What is 3 and 5?" in out
    assert max(map(len, out.splitlines())) <= 80
    arms = [row for row in lines(cli("evaluations", "show", place, "--json")[1]) if "arm" in row]
    assert [(row["arm"], row["signal"]) for row in arms] == [("none", "none"), ("bank", "judge")]
    assert arms[0]["tokens_shown"] == 0 < arms[1]["tokens_shown"]
    assert (arms[0]["calls"], arms[1]["tokens_beyond"]) == (1, 0)
    assert "no evaluations yet" in cli("evaluations", "list", "empty")[1]


def test_a_task_has_a_transcript_in_every_arm_and_order(cli: Any, place: str) -> None:
    rows = lines(cli("evaluations", "show", place, "sum/2", "--json")[1])
    assert [(row["arm"], row["order"]) for row in rows] == [("none", 0), ("bank", 0), ("bank", 1)]
    assert all(row["trajectories"][0]["steps"][0]["action"] == "7" for row in rows)
    out = cli("evaluations", "show", place, "sum/2")[1]
    for part in ("none, order 1, position 2", "solved", "→ 7", "lessons shown: Add twice", "learned: Add twice"):
        assert part in out
    assert out.startswith("What is 2 and 5?"), "no other command is needed to know what the task was"
    for part in ("lessons shown: Add twice: Add, and add again.", "learned: Add twice: Add, and add again."):
        assert part in out
    assert {(row["instruction"], *row["learned_content"]) for row in rows if row["learned"]} == {
        ("What is 2 and 5?", "Add, and add again.")
    }
    assert cli("evaluations", "show", place, "sum/9")[0] == 2
    assert cli("evaluations", "show", "nowhere")[0] == 2


def test_rows_are_written_as_csv_and_parquet(cli: Any, place: str) -> None:
    for file in ("rows.csv", "rows.parquet"):
        assert cli("evaluations", "show", place, "--rows", file)[0] == 0
    with Path("rows.csv").open() as text:
        written = list(csv.DictReader(text))
    assert len(written) == 9
    table = pq.read_table("rows.parquet").to_pylist()
    assert [(row["arm"], row["task"], row["solved"]) for row in table] == [
        (row["arm"], row["task"], row["solved"] == "True") for row in written
    ]
    assert cli("evaluations", "show", place, "--rows", "rows.xlsx")[0] == 2
