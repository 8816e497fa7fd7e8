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
url, name, file = sys.argv[1:]
with h.open_bank(url) as bank, open(file, "w") as stored:
    for number in itertools.count():
        task = f"{name}/{number}"
        bank.record(h.a_task(task), h.a_rollout(task), run_id="r")
        h.add(bank, task, lessons=2)
        print(task, file=stored, flush=True)
"""


def acknowledged(url: str | Path, names: list[str], folder: Path, seconds: float) -> set[str]:
    """Tasks that the writers said were stored before they were killed, ``seconds`` after each has stored one."""
    files = [folder / name.replace("/", "-") for name in names]
    writers = [start(WRITER, str(url), name, str(file)) for name, file in zip(names, files, strict=True)]
    while not all(file.exists() and file.stat().st_size for file in files):
        assert all(writer.poll() is None for writer in writers)
        time.sleep(0.02)
    time.sleep(seconds)
    for writer in writers:
        writer.kill()
        writer.communicate()
    return {line for file in files for line in file.read_text().split("\n")[:-1]}


def check(url: str | Path, said: set[str]) -> None:
    with open_bank(url) as bank:
        tasks = [experience.task.id for experience in bank.experiences()]
        assert len(tasks) == len(set(tasks)) == len(bank) // 2
        assert said <= set(tasks)
        assert not {pending.task.id for pending in bank.pending()} & set(tasks)
        assert all(len(experience.items) == 2 for experience in bank.experiences())
        seqs = sorted([each.seq for each in bank.experiences()] + [each.seq for each in bank.items()])
        assert seqs == list(range(1, len(seqs) + 1))
        assert bank.doctor() == []


def test_two_writers_are_killed(url: str | Path, tmp_path: Path) -> None:
    open_bank(url).close()
    said = acknowledged(url, ["one", "two"], tmp_path, 0.3)
    assert said
    check(url, said)


@pytest.mark.stress
def test_four_writers_are_killed_fifty_times(url: str | Path, tmp_path: Path) -> None:
    rng = random.Random()
    said: set[str] = set()
    for turn in range(50):
        said |= acknowledged(url, [f"{turn}/{writer}" for writer in range(4)], tmp_path, 2 * rng.random())
        if turn % 10 == 9:
            check(url, said)
    check(url, said)
