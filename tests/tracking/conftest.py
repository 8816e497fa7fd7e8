"""One MLflow store for each module, copied from one that is made once: making its database takes seconds."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import dspy
import pytest

from rb_dspy.config import TrackingConfig
from rb_dspy.tracking import Tracker


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tracking")


@pytest.fixture(scope="module")
def tracker(folder: Path, empty_store: Path) -> Tracker:
    shutil.copy(empty_store, folder / "store.db")
    return Tracker(TrackingConfig(uri=f"sqlite:///{folder / 'store.db'}", experiment="tests"))


@pytest.fixture(scope="module")
def client(tracker: Tracker) -> object:
    """MLflow's own, on the same store."""
    import mlflow

    return mlflow.MlflowClient(tracking_uri=tracker.config.uri, registry_uri=tracker.config.uri)


@pytest.fixture(autouse=True)
def _nothing_is_left(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Tracking leaves MLflow's settings, the environment, dspy's callbacks and the working directory as they were."""
    import mlflow

    monkeypatch.chdir(tmp_path)
    variables = {name: value for name, value in os.environ.items() if name.startswith("MLFLOW")}
    before = mlflow.is_tracking_uri_set(), mlflow.active_run(), list(dspy.settings.callbacks)
    yield
    assert (mlflow.is_tracking_uri_set(), mlflow.active_run(), list(dspy.settings.callbacks)) == before
    assert {name: value for name, value in os.environ.items() if name.startswith("MLFLOW")} == variables
    assert not list(tmp_path.glob("mlruns")) + list(tmp_path.glob("*.db"))
