"""Fixtures for all tests: no settings, caches or network leak from one test into another."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import chdir
from pathlib import Path

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # before dspy: else litellm waits for a network that is not there
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"  # before MLflow: else it asks a network that is not there
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # before numpy: else threads of two workers spin on the same cores

import dspy
import pytest
from hypothesis import settings

from rb_dspy.backbones import models
from rb_dspy.bank import MemoryBank
from rb_dspy.testing.embedder import HashEmbedder

# The same examples in every run; HYPOTHESIS_PROFILE=stress looks for new ones.
settings.register_profile("ci", max_examples=20, derandomize=True, deadline=None, database=None)
settings.register_profile("stress", max_examples=500, derandomize=False, deadline=None, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


@pytest.fixture(autouse=True, scope="module")
def _what_is_loaded_is_not_collected() -> None:
    """Else each collection looks through torch, dspy and thousands of tests again, which takes a second."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="session")
def _only_the_small_model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A test that would need another one is red everywhere, not only where nobody has fetched that."""
    known = models.default_directory() / models.find("smollm2-135m").file
    cache = tmp_path_factory.mktemp("cache")
    here = cache / "rb_dspy" / "models"
    here.mkdir(parents=True)
    if known.is_file():
        (here / known.name).symlink_to(known)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(cache))
        yield


@pytest.fixture(autouse=True)
def _fresh_dspy() -> Iterator[None]:
    dspy.configure_cache(enable_disk_cache=False, enable_memory_cache=True)
    dspy.configure(lm=None, adapter=None, track_usage=False, callbacks=[])
    yield
    dspy.configure(lm=None, adapter=None, track_usage=False, callbacks=[])


@pytest.fixture(scope="session")
def empty_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with MLflow's tables, to be copied: making one takes seconds."""
    import mlflow

    file = tmp_path_factory.mktemp("empty") / "store.db"
    with chdir(file.parent):  # MLflow's files of the first experiment are below the working directory
        mlflow.MlflowClient(tracking_uri=f"sqlite:///{file}").search_experiments()
    return file


@pytest.fixture
def bank() -> Iterator[MemoryBank]:
    with MemoryBank.open(None, scope="test", embedder=HashEmbedder()) as opened:
        yield opened
