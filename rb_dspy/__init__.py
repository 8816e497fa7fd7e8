"""ReasoningBank as an optimizable DSPy program: agents that learn from their own successes and failures.

>>> from rb_dspy import Backbones, MemoryBank, ReasoningBank
>>> program = ReasoningBank(backbones=Backbones(agent="openai/gpt-4o-mini"))
>>> bank = MemoryBank.open("lessons.sqlite", scope="support-desk")
>>> memory = program.recall("Refund an order that was paid twice", bank)
"""

from rb_dspy import errors, testing
from rb_dspy.backbones import Backbones
from rb_dspy.bank import BankStore, MemoryBank
from rb_dspy.config import BackboneConfig, MattsConfig, ProgramConfig, Settings, load_settings
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
from rb_dspy.stream import RunReport, TaskResult, TaskStream, run_stream

__version__ = "0.1.0"

__all__ = [
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
