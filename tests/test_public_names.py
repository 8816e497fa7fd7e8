"""The public surface: what users import must not change unnoticed."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys

import pytest

import rb_dspy
from rb_dspy import errors


def test_public_names_are_the_pinned_ones() -> None:
    assert sorted(rb_dspy.__all__) == [
        "BackboneConfig",
        "Backbones",
        "BankStore",
        "Compiled",
        "Embedder",
        "Environment",
        "EnvironmentFactory",
        "EnvironmentFamily",
        "Experience",
        "ExperienceDraft",
        "Judge",
        "MaTTS",
        "MattsConfig",
        "Memory",
        "MemoryBank",
        "MemoryDraft",
        "MemoryItem",
        "Outcome",
        "ProgramConfig",
        "RBError",
        "ReasoningBank",
        "Reranker",
        "RunReport",
        "Settings",
        "Step",
        "StreamProgram",
        "Streams",
        "Task",
        "TaskResult",
        "TaskStream",
        "Tracker",
        "TrackingConfig",
        "Trajectory",
        "Verdict",
        "__version__",
        "compile_program",
        "errors",
        "load_program",
        "load_settings",
        "make_environment",
        "run_stream",
        "save_program",
        "split_streams",
        "testing",
    ]
    assert all(hasattr(rb_dspy, name) for name in rb_dspy.__all__)


def test_importing_the_package_brings_none_of_what_few_need() -> None:
    """dspy itself brings gepa."""
    code = "import sys, dspy; before = set(sys.modules); import rb_dspy; print(*(set(sys.modules) - before))"
    environment = {**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    brought = {name.partition(".")[0] for name in done.stdout.split()}
    assert "rb_dspy" in brought
    assert not brought & {"mlflow", "gepa", "optuna", "scipy", "matplotlib", "datasets", "torch", "faiss"}


def test_a_name_that_is_not_there_is_missed_as_in_any_module() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'compile_programme'"):
        rb_dspy.compile_programme  # noqa: B018
    assert rb_dspy.compile_program.__module__ == "rb_dspy.compile.compile"
    assert rb_dspy.Compiled.__module__ == "rb_dspy.compile.result"


def test_the_loop_is_called_as_documented() -> None:
    assert list(inspect.signature(rb_dspy.ReasoningBank.forward).parameters)[1:3] == ["task", "bank"]
    assert list(inspect.signature(rb_dspy.ReasoningBank.recall).parameters)[1:] == ["task", "bank"]
    assert list(inspect.signature(rb_dspy.ReasoningBank.learn).parameters)[1:4] == ["task", "trajectory", "bank"]
    opened = inspect.signature(rb_dspy.MemoryBank.open).parameters
    assert opened["scope"].default is inspect.Parameter.empty
    assert opened["scope"].kind is inspect.Parameter.KEYWORD_ONLY


def test_every_error_is_in_the_tree_that_the_module_draws() -> None:
    assert errors.__doc__
    found = [name for name, value in vars(errors).items() if inspect.isclass(value)]
    for name in found:
        assert issubclass(getattr(errors, name), errors.RBError)
        assert name in errors.__doc__
