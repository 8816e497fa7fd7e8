"""The public surface: what users import must not change unnoticed."""

from __future__ import annotations

import inspect

import rb_dspy
from rb_dspy import errors


def test_public_names_are_the_pinned_ones() -> None:
    assert sorted(rb_dspy.__all__) == [
        "BackboneConfig",
        "Backbones",
        "BankStore",
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
        "Task",
        "TaskResult",
        "TaskStream",
        "Trajectory",
        "Verdict",
        "__version__",
        "errors",
        "load_settings",
        "make_environment",
        "run_stream",
        "testing",
    ]
    assert all(hasattr(rb_dspy, name) for name in rb_dspy.__all__)


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
