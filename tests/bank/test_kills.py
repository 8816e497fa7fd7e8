"""Writers that are killed: what was acknowledged is there, once, and all else is whole or absent."""

from __future__ import annotations

import random
import signal
import time
from pathlib import Path

import pytest

from tests.bank.helpers import WRITER, check_writers, open_bank, start

pytestmark = pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs kill -9")


def kill_writers(url: str | Path, names: list[str], folder: Path, seconds: float) -> list[Path]:
    """Kill writers ``seconds`` after each has stored something; returns the files of what they said was stored."""
    files = [folder / name for name in names]
    writers = [start(WRITER, str(url), file.name, str(file)) for file in files]
    while not all(file.exists() and file.stat().st_size for file in files):
        assert all(writer.poll() is None for writer in writers)
        time.sleep(0.02)
    time.sleep(seconds)
    for writer in writers:
        writer.kill()
        writer.communicate()
    return files


def test_two_writers_are_killed(url: str | Path, tmp_path: Path) -> None:
    open_bank(url).close()
    assert check_writers(url, kill_writers(url, ["one", "two"], tmp_path, 0.3))


@pytest.mark.stress
def test_four_writers_are_killed_fifty_times(url: str | Path, tmp_path: Path) -> None:
    rng = random.Random()
    files: list[Path] = []
    for turn in range(50):
        files += kill_writers(url, [f"{turn}-{writer}" for writer in range(4)], tmp_path, 2 * rng.random())
        if turn % 10 == 9:
            check_writers(url, files)
