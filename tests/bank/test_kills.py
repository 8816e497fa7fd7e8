"""Writers that are killed: what was acknowledged is there, once, and all else is whole or absent."""

from __future__ import annotations

import random
import signal
import time
from pathlib import Path

import pytest

from tests.bank.helpers import open_bank, start

pytestmark = pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs kill -9")

WRITER = """
import itertools, sys
import tests.bank.helpers as h
path, name = sys.argv[1:]
with h.open_bank(path) as bank:
    for number in itertools.count():
        task = f"{name}/{number}"
        bank.record(h.a_task(task), h.a_rollout(task), run_id="r")
        h.add(bank, task, lessons=2)
        print(task, flush=True)
"""


def acknowledged(path: Path, names: list[str], seconds: float) -> set[str]:
    """Tasks that the writers said were stored before they were killed."""
    writers = [start(WRITER, str(path), name) for name in names]
    time.sleep(seconds)
    for writer in writers:
        writer.kill()
    return {
        line for writer in writers for line in writer.communicate()[0].splitlines(keepends=True) if line[-1] == "\n"
    }


def check(path: Path, said: set[str]) -> None:
    with open_bank(path) as bank:
        tasks = [experience.task.id for experience in bank.experiences()]
        assert len(tasks) == len(set(tasks)) == len(bank) // 2
        assert {line.strip() for line in said} <= set(tasks)
        assert not {pending.task.id for pending in bank.pending()} & set(tasks)
        assert all(len(experience.items) == 2 for experience in bank.experiences())
        seqs = sorted([each.seq for each in bank.experiences()] + [each.seq for each in bank.items()])
        assert seqs == list(range(1, len(seqs) + 1))
        assert bank.doctor() == []


def test_two_writers_are_killed(tmp_path: Path) -> None:
    path = tmp_path / "bank.sqlite"
    open_bank(path).close()
    said = acknowledged(path, ["one", "two"], 4.0)
    assert said
    check(path, said)


@pytest.mark.stress
def test_four_writers_are_killed_fifty_times(tmp_path: Path) -> None:
    path = tmp_path / "bank.sqlite"
    rng = random.Random()
    said: set[str] = set()
    for turn in range(50):
        said |= acknowledged(path, [f"{turn}/{writer}" for writer in range(4)], 3 + 2 * rng.random())
        if turn % 10 == 9:
            check(path, said)
    check(path, said)
