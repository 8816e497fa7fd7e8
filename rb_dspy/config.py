"""Typed settings, one class per component, and the ``rb.toml`` that holds them.

Keys of LM providers come from the environment only; a key in a file is refused.
"""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

import pydantic

from rb_dspy import lm_options, toml

_ADDRESS = re.compile(r"https?://[^\s/?#]\S*", re.IGNORECASE)
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_LIKE_A_KEY = re.compile(r"(?:sk|pk|rk|gsk|hf|xai|r8)_[A-Za-z0-9]{16,}|.{65,}")
"""Keys as some providers make them, which could be names as well."""

Role = Literal["agent", "judge", "distiller", "contraster", "selector"]
Split = Literal["all", "compile", "dev", "stream", "held-out"]
ROLES: tuple[Role, ...] = ("agent", "judge", "distiller", "contraster", "selector")
MattsMode = Literal["parallel", "sequential", "best_of_n", "vanilla"]

MOST_OF_ONE = 3
MOST_OF_SEVERAL = 5
"""Lessons of one rollout, and of several rollouts of a task, as the prompts ask for them."""

DEFAULT_MODEL = "local/qwen2.5-coder-1.5b"


class _Config(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    if not TYPE_CHECKING:  # who checks types knows the fields, and not this

        def __init__(self, /, **given: Any) -> None:
            """Raises ``ConfigError`` that names the first key that is unknown or has a bad value."""
            try:
                super().__init__(**given)
            except pydantic.ValidationError as exc:
                raise toml.refused(type(self), exc, type(self).__name__, {}) from None

        # As pydantic marks its own: else it would call this for each table within a table, and the error of one would
        # not say where the table stands.
        __init__.__pydantic_base_init__ = True

    @classmethod
    def __pydantic_init_subclass__(cls, **options: Any) -> None:
        """``help`` of the class says of each field what its schema says."""
        fields = (f"{name}: {' '.join((field.description or '').split())}" for name, field in cls.model_fields.items())
        cls.__doc__ = "\n\n".join([inspect.cleandoc(cls.__doc__ or ""), *fields])


class RetrieveConfig(_Config):
    """What the agent is shown. The paper: the single nearest experience, no threshold (its ablation: more is worse)."""

    k: int = pydantic.Field(default=1, ge=0)
    """How many experiences, or items; 0 shows none (what is done is learned from all the same)."""
    unit: Literal["experience", "item"] = "experience"
    """Whether the nearest experiences are shown, each with all its lessons, or the nearest lessons (items)."""
    mode: Literal["dense", "lexical", "hybrid"] = "dense"
    """What ranks: the embedder's cosine, shared words (BM25), or both by reciprocal rank."""
    candidates: int = pydantic.Field(default=20, ge=1)
    """How many a reranker gets to choose from, where the program has one."""
    min_score: float | None = pydantic.Field(default=None, ge=-1, le=1)
    """Cosine similarity below which nothing is shown; in dense mode only."""
    max_tokens: int = pydantic.Field(default=1500, ge=1)
    """Budget of the memory block, in estimated tokens: items are shown in order until the next would exceed it."""

    @pydantic.model_validator(mode="after")
    def _one_that_can_work(self) -> Self:
        if self.min_score is not None and self.mode != "dense":
            raise ValueError(f"min_score is a cosine, and mode {self.mode!r} ranks by something else; leave it out")
        return self


class ActConfig(_Config):
    """How the agent acts. The paper: ReAct at temperature 0.7, at most 30 steps on the web."""

    temperature: float = pydantic.Field(default=0.7, ge=0, le=2)
    """Sampling temperature of the agent's turns; a temperature of the backbone goes before it."""
    max_steps: int = pydantic.Field(default=30, ge=1)
    """Steps after which a rollout is ended."""
    max_tokens: int = pydantic.Field(default=1024, ge=1)
    """Cap of one turn's output; the embedded engine keeps half of it for the action."""
    observation_tokens: int = pydantic.Field(default=32_000, ge=100)
    """How much of one observation is shown, in estimated tokens; a longer one is cut in its middle, in prompts only."""
    step_seconds: float | None = pydantic.Field(default=None, gt=0)
    """Seconds that one call of an environment may take: a step, closing it, or making it with its reset. After them the
    rollout is lost, and a thread is left behind until the call comes back. None: as long as it will."""


class JudgeConfig(_Config):
    """How rollouts are judged. The paper: same backbone, temperature 0."""

    temperature: float = pydantic.Field(default=0.0, ge=0, le=2)
    """Sampling temperature of a verdict; a temperature of the backbone goes before it."""
    max_tokens: int = pydantic.Field(default=512, ge=1)
    """Cap of a verdict, reasons included, in tokens."""
    view_tokens: int = pydantic.Field(default=4000, ge=100)
    """How much of the trajectory is shown, in estimated tokens."""


class DistillConfig(_Config):
    """How lessons are drawn. The paper: same backbone, temperature 1.0, at most three items a trajectory."""

    temperature: float = pydantic.Field(default=1.0, ge=0, le=2)
    """Sampling temperature of the lessons; a temperature of the backbone goes before it."""
    max_tokens: int = pydantic.Field(default=900, ge=1)
    """Cap of the lessons of one rollout, in tokens."""
    max_items: int = pydantic.Field(default=MOST_OF_ONE, ge=1, le=MOST_OF_ONE)
    """Lessons of one rollout, at most; fewer than usual are asked for as such, the most useful first."""
    view_tokens: int = pydantic.Field(default=4000, ge=100)
    """How much of the trajectory is shown, in estimated tokens."""
    distill_unknown: bool = False
    """Distil rollouts whose verdict is unknown, as if they had failed."""


class ProgramConfig(_Config):
    """All steps of the ReasoningBank program."""

    retrieve: RetrieveConfig = RetrieveConfig()
    """What the agent is shown."""
    act: ActConfig = ActConfig()
    """How the agent acts."""
    judge: JudgeConfig = JudgeConfig()
    """How rollouts are judged."""
    distill: DistillConfig = DistillConfig()
    """How lessons are drawn."""


class ContrastConfig(_Config):
    """How lessons are drawn from several rollouts at once. The paper: one call, no labels, at most five items."""

    labels: bool = False
    """Whether the contraster is told each rollout's verdict; then judging has to come first."""
    temperature: float = pydantic.Field(default=1.0, ge=0, le=2)
    """Sampling temperature of the lessons; a temperature of the backbone goes before it."""
    max_tokens: int = pydantic.Field(default=1500, ge=1)
    """Cap of the lessons of one task, in tokens."""
    max_items: int = pydantic.Field(default=MOST_OF_SEVERAL, ge=1, le=MOST_OF_SEVERAL)
    """Lessons of one task, at most; fewer than usual are asked for as such, the most useful first."""
    view_tokens: int = pydantic.Field(default=4000, ge=100)
    """How much of each trajectory is shown, in estimated tokens; short ones leave room to long ones."""


class SelectConfig(_Config):
    """How one of several rollouts is chosen. The paper: one call, which sees neither verdicts nor votes."""

    verdicts: bool = False
    """Whether the selector is told each rollout's verdict, and they decide where it fails; then judging comes first."""
    agreement: bool = False
    """Whether the selector is told how many rollouts gave the same answer."""
    seed: int = 0
    """With the task's id, decides the order in which the rollouts are listed."""
    orders: int = pydantic.Field(default=1, ge=1, le=16)
    """Ask in so many orders, each the one before turned by a place, and count the votes."""
    temperature: float = pydantic.Field(default=0.0, ge=0, le=2)
    """Sampling temperature of a choice; a temperature of the backbone goes before it."""
    max_tokens: int = pydantic.Field(default=512, ge=1)
    """Cap of a choice, analysis included, in tokens."""
    view_tokens: int = pydantic.Field(default=4000, ge=100)
    """How much of each trajectory is shown, in estimated tokens; short ones leave room to long ones."""


class RefineConfig(_Config):
    """How an agent checks its own work. The paper: again and again, whatever the check before said."""

    until_confirmed: bool = False
    """Stop at the first check that confirms the work, instead of after all passes."""
    temperature: float = pydantic.Field(default=0.7, ge=0, le=2)
    """Sampling temperature of a check; a temperature of the backbone goes before it."""
    max_tokens: int = pydantic.Field(default=512, ge=1)
    """Cap of a check, findings included, in tokens."""
    view_tokens: int = pydantic.Field(default=4000, ge=100)
    """How much of the trajectory is shown, in estimated tokens."""


class AdaptiveConfig(_Config):
    """Whether some rollouts are launched first, and the others only where those disagree in verdict or answer."""

    enabled: bool = False
    """Whether it is done; else all rollouts are launched at once."""
    first: int = pydantic.Field(default=2, ge=2)
    """Rollouts of the first wave: fewer than two cannot agree."""
    wave: int = pydantic.Field(default=1, ge=1)
    """Rollouts of each further wave, while fewer than two have ended since others broke, so that nobody knows whether
    they agree. Once those that ended disagree, all that are left are launched at once: no later one can change that."""


class MattsConfig(_Config):
    """Memory-aware test-time scaling (paper, section 3.3)."""

    mode: MattsMode = "parallel"
    """What the rollouts are for: to contrast all, to refine one, to distil only the best (best_of_n), or each alone."""
    k: int = pydantic.Field(default=3, ge=1, le=64)
    """Rollouts, or passes over one; 1 is unscaled. The paper: up to 5."""
    contrast: ContrastConfig = ContrastConfig()
    """How lessons are drawn from all rollouts, in mode parallel."""
    select: SelectConfig = SelectConfig()
    """How the rollout that is handed in is chosen."""
    refine: RefineConfig = RefineConfig()
    """How a rollout is checked and corrected, in mode sequential."""
    adaptive: AdaptiveConfig = AdaptiveConfig()
    """Whether rollouts are spared where the first ones agree."""
    at_once: int | None = pydantic.Field(default=None, ge=1)
    """Rollouts, and then judges and other steps, at the same time, for providers that limit it; None: all of them."""

    @pydantic.field_validator("mode", mode="before")
    @classmethod
    def _as_the_command_line_has_it(cls, given: Any) -> Any:
        return given.replace("-", "_") if isinstance(given, str) else given


class BackboneConfig(_Config):
    """One language model. ``model`` is ``local/NAME`` for the embedded engine, else any name that dspy.LM takes."""

    model: str = pydantic.Field(min_length=1)
    """``local/NAME`` for the embedded engine, else PROVIDER/NAME, as dspy.LM takes it."""
    api_base: str | None = None
    """Address of the server, where the provider's usual one is not meant; for hosted models."""
    api_key_env: str | None = None
    """Name of the environment variable that holds the key, where the provider's usual one is not meant."""
    max_tokens: int | None = pydantic.Field(default=None, ge=1)
    """Cap of every answer, in tokens, instead of each step's own."""
    temperature: float | None = pydantic.Field(default=None, ge=0, le=2)
    """Sampling temperature of every answer, instead of each step's own."""
    timeout: float | None = pydantic.Field(default=None, gt=0)
    """Seconds that a server may send nothing, where dspy's own 600 are not meant; for hosted models."""
    patience: float | None = pydantic.Field(default=None, ge=0, allow_inf_nan=False)
    """Seconds that a call waits, at most, for a server that has too many requests, where 120 are not meant; for hosted
    models."""
    options: dict[str, Any] = {}
    """What else ``dspy.LM`` takes, as top_p, seed, reasoning_effort, extra_body or model_type; for hosted models."""
    omit: tuple[Literal["temperature", "max_tokens"], ...] = ()
    """Settings that are never sent, for a server that refuses them; for hosted models."""
    cache: bool = False
    """Whether dspy may answer from its cache; off, so that what a run reports is what it cost."""
    context: int = pydantic.Field(default=8192, ge=512)
    """Context window of the embedded engine, in tokens, for each slot."""
    slots: int = pydantic.Field(default=4, ge=1, le=64)
    """Sequences that the embedded engine keeps warm at once."""
    threads: int | None = pydantic.Field(default=None, ge=1)
    """CPU threads of the embedded engine; None: as many as there are cores."""

    @pydantic.field_validator("api_base")
    @classmethod
    def _an_address(cls, given: str | None) -> str | None:
        if given is not None and not _ADDRESS.fullmatch(given):  # an empty one would send all to the provider's usual
            raise toml.unshown("expected an address, as http://127.0.0.1:8000/v1, or none for the provider's usual one")
        return given

    @pydantic.field_validator("api_key_env")
    @classmethod
    def _a_name(cls, given: str | None) -> str | None:
        if given is not None and (not _NAME.fullmatch(given) or _LIKE_A_KEY.fullmatch(given)):
            raise toml.unshown(
                "expected the name of an environment variable, as MY_SERVER_KEY, and not the key itself, which belongs"
                " in that variable"
            )
        return given

    @pydantic.field_validator("options")
    @classmethod
    def _no_secrets(cls, given: dict[str, Any]) -> dict[str, Any]:
        if why := lm_options.wrong_with(given):
            raise toml.unshown(why)
        return given

    @pydantic.model_validator(mode="after")
    def _sent_or_not(self) -> Self:
        both = [name for name in self.omit if getattr(self, name) is not None]
        if both:
            raise ValueError(f"{both[0]} is set, and omit leaves it out; remove one of them")
        return self


class BankConfig(_Config):
    """Where lessons are kept."""

    url: str = "rb-bank.sqlite"
    """The SQLite file."""
    scope: str = "default"
    """The bank within the file: nothing of one scope shows in another."""
    embedder: str = "minilm"
    """Name of what makes vectors of texts; a bank keeps the one it was made with, until ``bank reindex``."""


class RunConfig(_Config):
    """What ``rb-dspy run`` does."""

    stream: str = "reasoning-gym-small"
    """A named stream (``rb-dspy envs``), or a file of tasks: .jsonl, .csv or .parquet."""
    tasks: int = pydantic.Field(default=8, ge=1)
    """How many tasks that the bank has not seen yet."""
    seed: int = 0
    """Which tasks a named stream is made of, how a compile splits them, and, if set, how a run shuffles a file."""
    templates: tuple[str, ...] | None = None
    """Kinds of tasks of a named stream; None: all that it has."""
    split: Split = "all"
    """Which part of the templates of a named stream; no two parts share one. Where a family has folds, as ``twc`` and
    ``cookingworld``, ``compile`` is train, ``dev`` is dev, ``held-out`` is test, and there is no ``stream``."""
    memory: Literal["on", "frozen", "off"] = "on"
    """``frozen``: lessons are shown, and nothing is judged or learned; ``off``: none are shown either. Both do tasks
    that the bank has seen as well, so that runs with and without memory do the same ones."""


class TrackingConfig(_Config):
    """Where MLflow keeps what runs did. Relative paths are those of the working directory."""

    enabled: bool | None = None
    """Whether anything is kept. None: as is usual, which ``--track`` tells of each command; a ``Tracker`` keeps it."""
    uri: str = pydantic.Field(
        default_factory=lambda: os.environ.get("MLFLOW_TRACKING_URI") or "sqlite:///rb-mlflow.db", min_length=1
    )
    """A SQLite file, whose artifacts lie in a folder beside it, or the address of any MLflow tracking server. Default:
    MLflow's own setting (``MLFLOW_TRACKING_URI``, ``mlflow.set_tracking_uri``), else ``sqlite:///rb-mlflow.db``."""
    experiment: str = pydantic.Field(
        default_factory=lambda: os.environ.get("MLFLOW_EXPERIMENT_NAME") or "rb_dspy", min_length=1
    )
    """Name of the MLflow experiment that runs are kept in. Default: MLflow's own setting (``MLFLOW_EXPERIMENT_NAME``,
    ``mlflow.set_experiment``), else ``rb_dspy``."""
    traces: bool = True
    """Whether every task is kept as a trace, with all prompts and answers."""


class Settings(_Config):
    """The whole of ``rb.toml``."""

    run: RunConfig = RunConfig()
    """What ``rb-dspy run`` does."""
    bank: BankConfig = BankConfig()
    """Where lessons are kept."""
    program: ProgramConfig = ProgramConfig()
    """The steps of the program."""
    matts: MattsConfig | None = None
    """Test-time scaling; None: one rollout a task."""
    backbones: dict[Role, BackboneConfig] = {"agent": BackboneConfig(model=DEFAULT_MODEL)}
    """Whoever names other roles only, or other keys of the agent's, keeps the agent's model."""
    tracking: TrackingConfig = pydantic.Field(default_factory=TrackingConfig)
    """Where MLflow keeps what runs did."""

    @pydantic.field_validator("backbones", mode="before")
    @classmethod
    def _with_agent(cls, given: Any) -> Any:
        agent = given.get("agent", {}) if isinstance(given, Mapping) else None
        return {**given, "agent": {"model": DEFAULT_MODEL, **agent}} if isinstance(agent, Mapping) else given


def load_settings(
    path: Path | str | None = None,
    overrides: Iterable[str] = (),
    options: Mapping[str, tuple[str, Any]] | None = None,
) -> Settings:
    """Settings from ``path`` (TOML), ``key=value`` overrides such as ``run.tasks=3``, and ``options``; the last win.

    ``options``: keys -> a command's option, which errors name, and the value that it was given.
    Raises ``ConfigError`` for a file that is missing or not TOML, an unknown key, or a bad value.
    """
    return toml.load(Settings, path, overrides, options or {})
