"""A compile that is killed and started again asks for the missing answers only."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dspy
import pytest

from rb_dspy.testing import Prompt, Reply, scripted_lm
from tests.compile.helpers import apprentice, compiled, program, streams, teacher

ROOT = Path(__file__).parents[2]


def run(
    folder: str, limit: int = 10**9, stop: Callable[[], object] = lambda: os._exit(9)
) -> tuple[int, dict[str, Any]]:
    """Compile with a cache in ``folder``; ``stop`` ends it at the call after ``limit``. Returns calls and result."""
    dspy.configure_cache(disk_cache_dir=folder)
    calls: list[int] = []

    def counted(script: Any) -> Any:
        def play(prompt: Prompt) -> Reply:
            if len(calls) == limit:
                stop()
            calls.append(1)
            reply: Reply = script(prompt)
            return reply

        return scripted_lm(play, temperature=0.7)

    lms = {"program": program(counted(apprentice)), "reflection": counted(teacher)}
    result = compiled(**lms, streams=streams(2, 1), budget=16)
    return len(calls), result.model_dump(exclude={"seconds", "usage"})


def test_after_a_kill_and_an_interrupt_it_makes_only_the_missing_calls(tmp_path: Path) -> None:
    """The process is killed while it optimizes; the second one is interrupted while it scores."""
    whole, expected = run(str(tmp_path / "whole"))
    first, second = int(0.3 * whole), int(0.5 * whole)
    folder = str(tmp_path / "parts")
    code = f"from tests.compile.test_resume import run; run({folder!r}, {first})"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    killed = subprocess.run([sys.executable, "-c", code], env=environment, cwd=ROOT, capture_output=True, check=False)
    assert killed.returncode == 9, killed.stderr[-2000:]

    def interrupt() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(folder, second, interrupt)
    calls, result = run(folder)
    assert calls == whole - first - second
    assert result == expected
