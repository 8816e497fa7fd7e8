"""A compile that is killed and started again asks for the missing answers only."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]

CHILD = """
import json, os, sys
import dspy
from rb_dspy.testing import scripted_lm
from tests.compile.world import compiled, program, pupil, streams, teacher
folder, limit = sys.argv[1], int(sys.argv[2])
dspy.configure_cache(disk_cache_dir=folder)
calls = 0
def counted(script):
    def play(prompt):
        global calls
        if calls == limit:
            print(calls, file=sys.__stdout__, flush=True)
            os._exit(9)
        calls += 1
        return script(prompt)
    return scripted_lm(play, temperature=0.7)
result = compiled(program=program(counted(pupil)), reflection=counted(teacher), streams=streams(2), budget=16, orders=1)
result.seconds, result.usage = 0.0, {}
print(calls)
print(result.model_dump_json())
"""


def run(folder: Path, limit: int) -> tuple[int, int, Any]:
    """Exit code, calls that were answered, and the result if it ended."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    command = [sys.executable, "-c", CHILD, str(folder), str(limit)]
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    lines = done.stdout.splitlines()
    assert lines, done.stderr[-2000:]
    return done.returncode, int(lines[0]), json.loads(lines[1]) if len(lines) > 1 else None


def test_killed_twice_it_makes_only_the_missing_calls(tmp_path: Path) -> None:
    """Once while the optimizer works, and once while the program is scored."""
    code, whole, expected = run(tmp_path / "whole", 10**9)
    assert code == 0
    answered = 0
    for part in (0.3, 0.4):
        code, calls, _ = run(tmp_path / "parts", int(whole * part))
        assert code == 9
        answered += calls
    code, calls, result = run(tmp_path / "parts", 10**9)
    assert code == 0
    assert 0 < calls < whole / 2
    assert answered + calls == whole
    assert result == expected
