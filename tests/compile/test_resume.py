"""A compile that is killed and started again asks for the missing answers only."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import dspy
import pytest

from rb_dspy.testing import Prompt, Reply, scripted_lm
from tests.compile.world import compiled, program, pupil, streams, teacher

ROOT = Path(__file__).parents[2]


def run(folder: str, limit: int = 10**9) -> tuple[int, dict[str, Any]]:
    """Compile with a cache in ``folder``; the process dies at the call after ``limit``. Returns calls and result."""
    dspy.configure_cache(disk_cache_dir=folder)
    calls: list[int] = []

    def counted(script: Any) -> Any:
        def play(prompt: Prompt) -> Reply:
            if len(calls) == limit:
                os._exit(9)
            calls.append(1)
            reply: Reply = script(prompt)
            return reply

        return scripted_lm(play, temperature=0.7)

    lms = {"program": program(counted(pupil)), "reflection": counted(teacher)}
    result = compiled(**lms, streams=streams(2), budget=16, orders=1)
    return len(calls), result.model_dump(exclude={"seconds", "usage"})


@pytest.mark.parametrize("part", [0.3, 0.8], ids=["optimizing", "scoring"])
def test_after_a_kill_it_makes_only_the_missing_calls(tmp_path: Path, part: float) -> None:
    whole, expected = run(str(tmp_path / "whole"))
    limit = int(part * whole)
    code = f"from tests.compile.test_resume import run; run({str(tmp_path / 'parts')!r}, {limit})"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    killed = subprocess.run([sys.executable, "-c", code], env=environment, cwd=ROOT, capture_output=True, check=False)
    assert killed.returncode == 9, killed.stderr[-2000:]
    calls, result = run(str(tmp_path / "parts"))
    assert calls == whole - limit
    assert result == expected
