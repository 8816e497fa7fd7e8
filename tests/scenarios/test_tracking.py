"""A scaled run in MLflow."""

from __future__ import annotations

import shutil
from pathlib import Path

import mlflow
import pytest

from rb_dspy import MaTTS, MemoryBank, TaskStream, Tracker, TrackingConfig, run_stream
from rb_dspy.testing import lock
from tests.scenarios.helpers import easy, program


def test_a_scaled_run_has_pass_at_k(empty_store: Path, tmp_path: Path, bank: MemoryBank) -> None:
    uri = f"sqlite:///{shutil.copy(empty_store, tmp_path / 'store.db')}"
    run, stream = MaTTS(program(), k=2), TaskStream("doors", [easy(0), lock("Yale", 1, "9999")])
    tracker = Tracker(TrackingConfig(uri=uri, experiment="scenarios", traces=False))
    with tracker.stream_run(run, stream, bank, run_id="monday") as tracked:
        run_stream(run, stream, bank, run_id="monday", on_result=tracked.on_result)
    logged = mlflow.MlflowClient(tracking_uri=uri).get_run(str(tracked.id))
    assert logged.info.status == "FINISHED"
    assert logged.data.metrics["pass_at_2"] == pytest.approx(0.5)
