"""ReasoningBank as an optimizable DSPy program: agents that learn from their own successes and failures.

>>> from rb_dspy import Backbones, MemoryBank, ReasoningBank
>>> program = ReasoningBank(backbones=Backbones(agent="openai/gpt-4o-mini"))
>>> bank = MemoryBank.open("lessons.sqlite", scope="support-desk")
>>> memory = program.recall("Refund an order that was paid twice", bank)
"""

from typing import TYPE_CHECKING, Any

from rb_dspy import errors, testing
from rb_dspy.backbones import Backbones
from rb_dspy.bank import BankStore, MemoryBank
from rb_dspy.compile.state import load_program, save_program
from rb_dspy.config import BackboneConfig, MattsConfig, ProgramConfig, Settings, TrackingConfig, load_settings
from rb_dspy.environments import make_environment
from rb_dspy.errors import RBError
from rb_dspy.matts import MaTTS
from rb_dspy.program import ReasoningBank
from rb_dspy.protocols import Embedder, Environment, EnvironmentFactory, EnvironmentFamily, Judge, Reranker
from rb_dspy.schema import (
    Experience,
    ExperienceDraft,
    MemoryDraft,
    MemoryItem,
    Outcome,
    Step,
    Task,
    Trajectory,
    Verdict,
)
from rb_dspy.steps import Memory
from rb_dspy.stream import RunReport, Streams, TaskResult, TaskStream, run_stream, split_streams
from rb_dspy.stream.program import StreamProgram

if TYPE_CHECKING:
    from rb_dspy.compile.compile import compile_program
    from rb_dspy.compile.result import Compiled
    from rb_dspy.tracking import Tracker

__version__ = "0.1.0"

__all__ = [
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

_LATE = {
    "Compiled": "rb_dspy.compile.result",
    "Tracker": "rb_dspy.tracking",
    "compile_program": "rb_dspy.compile.compile",
}
"""Names whose modules are imported when they are used: compiling brings scipy, which takes as long as all the rest."""


def __getattr__(name: str) -> Any:
    """A name of ``_LATE``."""
    if name not in _LATE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_LATE[name]), name)
