# The public names; see ``__init__.py``.

from . import errors as errors, testing as testing
from .agents import Agent as Agent
from .backbones import Backbones as Backbones, budget as budget
from .bank import MemoryBank as MemoryBank, Pending as Pending
from .compile.compile import compile_program as compile_program
from .compile.result import Compiled as Compiled
from .config import (
    ActConfig as ActConfig,
    BackboneConfig as BackboneConfig,
    DistillConfig as DistillConfig,
    JudgeConfig as JudgeConfig,
    MattsConfig as MattsConfig,
    ProgramConfig as ProgramConfig,
    RetrieveConfig as RetrieveConfig,
    Settings as Settings,
    TrackingConfig as TrackingConfig,
    TrustConfig as TrustConfig,
)
from .config_file import load_settings as load_settings
from .environments import make_environment as make_environment
from .errors import RBError as RBError
from .evaluation.run import evaluate as evaluate
from .matts import MaTTS as MaTTS
from .memories import MemorySystem as MemorySystem
from .program import ReasoningBank as ReasoningBank
from .prompts import load_program as load_program, save_program as save_program
from .protocols import (
    Embedder as Embedder,
    Environment as Environment,
    EnvironmentFactory as EnvironmentFactory,
    EnvironmentFamily as EnvironmentFamily,
    Judge as Judge,
    Redactor as Redactor,
    Reranker as Reranker,
)
from .schema import (
    Change as Change,
    Experience as Experience,
    ExperienceDraft as ExperienceDraft,
    ItemDraft as ItemDraft,
    MemoryDraft as MemoryDraft,
    MemoryItem as MemoryItem,
    Outcome as Outcome,
    Removal as Removal,
    Retrieved as Retrieved,
    Snapshot as Snapshot,
    Step as Step,
    Task as Task,
    Trajectory as Trajectory,
    Uses as Uses,
    Verdict as Verdict,
)
from .steps import Memory as Memory
from .stream import (
    RunReport as RunReport,
    Streams as Streams,
    Summary as Summary,
    TaskResult as TaskResult,
    TaskStream as TaskStream,
    run_stream as run_stream,
    split_streams as split_streams,
)
from .stream.program import StreamProgram as StreamProgram
from .tracking import Tracker as Tracker

__version__: str
