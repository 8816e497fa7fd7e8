"""What a call reads does not grow with the bank."""

import random
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rb_dspy.bank import MemoryBank
from rb_dspy.schema import ExperienceDraft, Verdict
from tests.bank.helpers import a_draft, a_rollout, a_task, add, open_bank

CALLS: dict[str, Callable[[MemoryBank], object]] = {
    "retrieve items": lambda bank: bank.retrieve("sort the numbers 7", k=5, unit="item"),
    "retrieve experiences": lambda bank: bank.retrieve(a_task("t7"), k=5),
    "retrieve by a mark": lambda bank: bank.retrieve("sort", k=5, unit="item", marks={"stale": None}),
    "retrieve by a kind": lambda bank: bank.retrieve("sort", k=5, unit="item", kinds=["lesson"]),
    "append": lambda bank: add(bank, "new", lessons=2),
    "retire": lambda bank: add(bank, "new", retired={bank.retrieve("sort", unit="item")[0].items[0].id: "not used"}),
    "append to a fork": lambda bank: add(bank.fork(), "new", lessons=2),
    "record": lambda bank: bank.record(a_task("new"), a_rollout("new"), run_id="r2"),
    "get": lambda bank: bank.get(bank.retrieve("sort", unit="item")[0].items[0].id),
    "uses": lambda bank: bank.uses(bank.retrieve("sort", unit="item")[0].items[0].id),
    "mark": lambda bank: bank.mark(bank.retrieve("sort", unit="item")[0].items[0].id, "stale", "yes"),
    "fork": lambda bank: bank.fork(),
}


def experience(number: int) -> ExperienceDraft:
    """One whose lesson says something else than those of others."""
    words = random.Random(number).sample(range(10_000), 12)
    task, rollout = a_task(f"t{number}", f"sort the numbers {number}"), a_rollout(f"t{number}")
    lesson = a_draft(f"Of {words[:4]}", f"Say {words[4:]}.")
    return ExperienceDraft(
        task=task, trajectories=(rollout,), verdicts=(Verdict(label="success"),), drafts=(lesson,), run_id="r"
    )


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many tens of steps SQLite's machine has made."""
    steps = [0]

    def count() -> int:
        steps[0] += 1
        return 0

    def connect(*args: Any, **kwargs: Any) -> sqlite3.Connection:
        connection = real(*args, **kwargs)
        connection.set_progress_handler(count, 10)
        return connection

    real = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", connect)
    return steps


@pytest.mark.parametrize("name", CALLS)
def test_the_rows_that_a_call_reads_do_not_grow_with_the_bank(name: str, tmp_path: Path, steps: list[int]) -> None:
    costs = []
    for size in (30, 600):
        with open_bank(tmp_path / f"{size}.sqlite") as bank:
            bank.append_many(map(experience, range(size)))
            bank.mark(bank.items()[3].id, "stale", "yes")
            bank.retrieve("sort", unit="item")
            bank.retrieve("sort")
            steps[0] = 0
            CALLS[name](bank)
            costs.append(steps[0])
    assert costs[1] < costs[0] + 200


@pytest.mark.parametrize("name", ["retrieve items", "uses", "append"])
def test_the_rows_that_a_call_reads_do_not_grow_with_what_was_retired(
    name: str, tmp_path: Path, steps: list[int]
) -> None:
    costs = []
    for size in (30, 600):
        with open_bank(tmp_path / f"{size}.sqlite") as bank:
            bank.append_many(map(experience, range(size + 30)))
            add(bank, "last", retired={item.id: "old" for item in bank.items()[:size]})
            bank.retrieve("sort", unit="item")
            bank.retrieve("sort")
            steps[0] = 0
            CALLS[name](bank)
            costs.append(steps[0])
    assert costs[1] < costs[0] + 200
