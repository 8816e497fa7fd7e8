"""Beside MLflow's own autologging, which cannot be taken back in a process: so it is switched on in another one."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

_ROOT = Path(__file__).resolve().parents[2]

_COMPILES = """
import json, sys
import mlflow
from rb_dspy.errors import RBError
from rb_dspy.testing import scripted_lm
from tests.compile.teacher import pupil
from tests.compile.school import compiled, program

mlflow.set_tracking_uri(sys.argv[1])
mlflow.set_experiment("auto")
mlflow.dspy.autolog(log_compiles=True, log_evals=True, log_traces=False)
found = {}

def compiles(name, **given):
    try:
        compiled(stage="judge", budget=45, **given)
    except (RBError, KeyboardInterrupt) as exc:
        found[name] = type(exc).__name__
    left = mlflow.active_run()
    found[name] = [found.get(name, ""), None if left is None else left.info.run_name]
    while mlflow.active_run():
        mlflow.end_run()

def breaks(prompt):
    breaks.asked += 1
    if breaks.asked > 80:
        raise ValueError("gone")
    return pupil(prompt)

breaks.asked = 0
for optimizer in ("gepa", "miprov2"):
    compiles(optimizer, optimizer=optimizer)
compiles("broken", optimizer="gepa", program=program(scripted_lm(breaks)))
with mlflow.start_run() as own:
    compiled(stage="judge", budget=45, optimizer="gepa")
    found["own"] = mlflow.active_run().info.run_id == own.info.run_id
runs = mlflow.search_runs(output_format="list")
found["states"] = sorted({run.info.status for run in runs if "mlflow.autologging" in run.data.tags})
print(json.dumps(found))
"""


@pytest.mark.stress
def test_a_compile_leaves_no_run_of_autologging_open(tmp_path: Path, empty_store: Path) -> None:
    shutil.copy(empty_store, tmp_path / "store.db")
    environment = {**os.environ, "PYTHONPATH": str(_ROOT), "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    command = [sys.executable, "-c", _COMPILES, f"sqlite:///{tmp_path / 'store.db'}"]
    ran = subprocess.run(command, cwd=tmp_path, env=environment, check=False, capture_output=True, text=True)
    (tmp_path / "store.db").unlink()
    shutil.rmtree(tmp_path / "mlruns", ignore_errors=True)
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout.splitlines()[-1])
    assert found.pop("own") is True  # the caller's own stays what it was
    assert "RUNNING" not in found.pop("states")
    assert {name: left for name, (_, left) in found.items()} == dict.fromkeys(found)
    assert found["broken"][0] == "InfrastructureError"
