"""One MLflow store for the session, copied from one that exists: making its tables takes seconds."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dspy
import pytest

from rb_dspy import Tracker, TrackingConfig
from tests.served import install_embedder


@pytest.fixture(autouse=True, scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with a package that brings the embedder ``hash``, as anybody's would."""
    folder = tmp_path_factory.mktemp("site")
    install_embedder(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        yield folder


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory, empty_store: Path) -> str:
    """The address of the store; its experiment "tests" has its files beside it."""
    import mlflow

    folder = tmp_path_factory.mktemp("tracking")
    uri = f"sqlite:///{shutil.copy(empty_store, folder / 'store.db')}"
    mlflow.MlflowClient(tracking_uri=uri).create_experiment("tests", (folder / "files").as_uri())
    return uri


@pytest.fixture
def tracker(store: str) -> Tracker:
    return Tracker(TrackingConfig(uri=store, experiment="tests"))


@pytest.fixture
def client(tracker: Tracker) -> Any:
    """MLflow's own, on the same store."""
    import mlflow

    return mlflow.MlflowClient()


@pytest.fixture(autouse=True)
def _process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """MLflow's settings are those of a fresh process; DSPy's are put back by whatever changed them."""
    import mlflow

    before = {name: value for name, value in os.environ.items() if name.startswith("MLFLOW")}
    callbacks, track_usage = list(dspy.settings.callbacks), dspy.settings.track_usage
    with contextlib.chdir(tmp_path):
        yield
    assert mlflow.active_run() is None
    assert (list(dspy.settings.callbacks), dspy.settings.track_usage) == (callbacks, track_usage)
    mlflow.set_tracking_uri(None)
    for name in [name for name in os.environ if name.startswith("MLFLOW")]:
        del os.environ[name]
    os.environ.update(before)
