"""The public surface: what users import must not change unnoticed."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import rb_dspy
from rb_dspy import backbones, errors, signatures, steps, stream, testing, tracking

PUBLIC = """
    ActConfig Agent BackboneConfig Backbones Change Compiled DistillConfig Embedder Environment EnvironmentFactory
    EnvironmentFamily Experience ExperienceDraft ItemDraft Judge JudgeConfig MaTTS MattsConfig Memory MemoryBank
    MemoryDraft MemoryItem MemorySystem Outcome Pending ProgramConfig RBError ReasoningBank Redactor Removal Reranker
    RetrieveConfig Retrieved RunReport Settings Snapshot Step StreamProgram Streams Summary Task TaskResult
    TaskStream Tracker TrackingConfig Trajectory TrustConfig Uses Verdict __version__ budget compile_program errors
    evaluate load_program load_settings make_environment run_stream save_program split_streams testing
"""


def test_public_names_are_the_pinned_ones() -> None:
    assert sorted(rb_dspy.__all__) == PUBLIC.split()
    assert all(hasattr(rb_dspy, name) for name in rb_dspy.__all__)


def test_the_fakes_are_these() -> None:
    """Tests of other people's parts are written with them."""
    fakes = """
        Answer Corridor Doors Faulty HashEmbedder Lock Prompt Reply ScriptedEngine corridor hall lock locks
        locksmith scripted_lm scripted_program toys
    """
    assert testing.__all__ == fakes.split()


FEW = {"mlflow", "optuna", "scipy", "matplotlib", "datasets", "torch", "faiss", "sentence_transformers"}
NEEDLESS = {
    "import rb_dspy": {"dspy", "litellm", "numpy", "pydantic", *FEW},
    "rb_dspy.Settings": {"dspy", "numpy", *FEW},
    "rb_dspy.Task": {"dspy", "numpy", *FEW},
    "rb_dspy.make_environment": {"dspy", *FEW},
    "rb_dspy.MemoryBank": {"dspy", *FEW},
    "from rb_dspy.embedder import minilm; minilm().id, minilm().dimension": {"dspy", *FEW},
    "rb_dspy.ReasoningBank, rb_dspy.MaTTS": FEW,
    "rb_dspy.run_stream": FEW,
    "[getattr(rb_dspy, name) for name in rb_dspy.__all__]": {"torch"},
}
"""Steps of one process -> what none of them has loaded when it is done."""


def test_a_name_loads_none_of_what_others_need() -> None:
    """Without ``os.fork``, as on Windows."""
    script = "import os, sys; del os.fork, os.register_at_fork\n"
    script += "\n".join(f"{step}\nprint(*{{name.partition('.')[0] for name in sys.modules}})" for step in NEEDLESS)
    environment = {**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for (step, needless), loaded in zip(NEEDLESS.items(), done.stdout.splitlines(), strict=True):
        assert "rb_dspy" in loaded.split()
        assert not needless & set(loaded.split()), step


@pytest.mark.parametrize(
    "package", [rb_dspy, testing, signatures, backbones, steps, stream, tracking], ids=lambda it: it.__name__
)
def test_the_names_of_a_package_are_what_they_are_where_they_come_from(package: ModuleType) -> None:
    """Each name is loaded late, from where the stub says."""
    names = set(package.__all__) - {"errors", "testing", "__version__"}
    assert names
    assert names <= set(dir(package))
    for name in names:
        found = getattr(package, name)
        assert not isinstance(found, ModuleType), name


def test_a_name_that_is_not_there_is_missed() -> None:
    with pytest.raises(AttributeError, match="compile_programme"):
        rb_dspy.compile_programme  # noqa: B018
    with pytest.raises(ImportError, match="compile_programme"):
        from rb_dspy import compile_programme  # noqa: F401


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


ONCE = "Outcome Check Verdict Trajectory Experience Candidate Embedder Episode Program Prompts Unit"


@pytest.mark.parametrize("word", ONCE.split())
def test_a_word_names_one_thing_on_every_floor(word: str) -> None:
    """The first is the environment's ground truth, and must not be taken for what a job or a request gave."""
    package = Path(rb_dspy.__file__).parent
    meaning = re.compile(rf"^(class {word}\b|{word}\b[^=\n]* = )", re.MULTILINE)
    assert len([path for path in package.rglob("*.py") if meaning.search(path.read_text("utf-8"))]) == 1
