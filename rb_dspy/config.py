"""Typed settings, one class per component, and the ``rb.toml`` that holds them.

Keys of LM providers come from the environment only; a key in a file is refused.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Iterable, Mapping
from copy import deepcopy
from pathlib import Path
from types import NoneType
from typing import Any, Literal, Self, get_args

import pydantic

from rb_dspy.errors import ConfigError

Role = Literal["agent", "judge", "distiller", "contraster", "selector"]
Split = Literal["all", "compile", "dev", "stream", "held-out"]
ROLES: tuple[Role, ...] = ("agent", "judge", "distiller", "contraster", "selector")
MattsMode = Literal["parallel", "sequential", "best_of_n", "vanilla"]

DEFAULT_MODEL = "local/qwen2.5-coder-1.5b"


class _Config(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(frozen=True, extra="forbid")


class RetrieveConfig(_Config):
    """What the agent is shown. The paper: the single nearest experience, no threshold (its ablation: more is worse)."""

    k: int = pydantic.Field(default=1, ge=0)
    """How many experiences, or items; 0 shows none (what is done is learned from all the same: see ``learn``)."""
    unit: Literal["experience", "item"] = "experience"
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
    max_steps: int = pydantic.Field(default=30, ge=1)
    max_tokens: int = pydantic.Field(default=1024, ge=1)
    """Cap of one turn's output; the embedded engine keeps half of it for the action."""


class JudgeConfig(_Config):
    """How rollouts are judged. The paper: same backbone, temperature 0."""

    temperature: float = pydantic.Field(default=0.0, ge=0, le=2)
    max_tokens: int = pydantic.Field(default=512, ge=1)
    view_tokens: int = pydantic.Field(default=4000, ge=100)
    """How much of the trajectory is shown, in estimated tokens."""


class DistillConfig(_Config):
    """How lessons are drawn. The paper: same backbone, temperature 1.0, at most three items a trajectory."""

    temperature: float = pydantic.Field(default=1.0, ge=0, le=2)
    max_tokens: int = pydantic.Field(default=900, ge=1)
    max_items: int = pydantic.Field(default=3, ge=1, le=3)
    view_tokens: int = pydantic.Field(default=4000, ge=100)
    distill_unknown: bool = False
    """Distil rollouts whose verdict is unknown, as if they had failed."""


class ProgramConfig(_Config):
    """All steps of the ReasoningBank program."""

    retrieve: RetrieveConfig = RetrieveConfig()
    act: ActConfig = ActConfig()
    judge: JudgeConfig = JudgeConfig()
    distill: DistillConfig = DistillConfig()


class ContrastConfig(_Config):
    """How lessons are drawn from several rollouts at once. The paper: one call, no labels, at most five items."""

    labels: bool = False
    """Whether the contraster is told each rollout's verdict; then judging has to come first."""
    temperature: float = pydantic.Field(default=1.0, ge=0, le=2)
    max_tokens: int = pydantic.Field(default=1500, ge=1)
    max_items: int = pydantic.Field(default=5, ge=1, le=5)
    view_tokens: int = pydantic.Field(default=5000, ge=200)
    """How much of all trajectories together is shown, in estimated tokens; half of it where the prompt does not fit."""


class SelectConfig(_Config):
    """How one of several rollouts is chosen. The paper: one call, which sees neither verdicts nor votes."""

    verdicts: bool = False
    """Whether the selector is told each rollout's verdict; then judging has to come first."""
    agreement: bool = False
    """Whether the selector is told how many rollouts gave the same answer."""
    seed: int = 0
    """With the task's id, decides the order in which the rollouts are listed."""
    orders: int = pydantic.Field(default=1, ge=1, le=16)
    """Ask in so many orders, each the one before turned by a place, and count the votes."""
    temperature: float = pydantic.Field(default=0.0, ge=0, le=2)
    max_tokens: int = pydantic.Field(default=512, ge=1)
    view_tokens: int = pydantic.Field(default=5000, ge=200)
    """How much of all trajectories together is shown, in estimated tokens; half of it where the prompt does not fit."""


class RefineConfig(_Config):
    """How an agent checks its own work. The paper: again and again, whatever the check before said."""

    until_confirmed: bool = False
    """Stop at the first check that confirms the work, instead of after all passes."""
    temperature: float = pydantic.Field(default=0.7, ge=0, le=2)
    max_tokens: int = pydantic.Field(default=512, ge=1)
    view_tokens: int = pydantic.Field(default=4000, ge=100)
    """How much of the trajectory is shown, in estimated tokens."""


class AdaptiveConfig(_Config):
    """Whether rollouts are launched in waves, until their verdicts and answers agree."""

    enabled: bool = False
    first: int = pydantic.Field(default=2, ge=2)
    """Rollouts of the first wave: fewer than two cannot agree."""
    wave: int = pydantic.Field(default=1, ge=1)
    """Rollouts of each further wave."""


class MattsConfig(_Config):
    """Memory-aware test-time scaling (paper, section 3.3)."""

    mode: MattsMode = "parallel"
    k: int = pydantic.Field(default=3, ge=1, le=64)
    """Rollouts, or passes over one; 1 is unscaled. The paper: up to 5."""
    contrast: ContrastConfig = ContrastConfig()
    select: SelectConfig = SelectConfig()
    refine: RefineConfig = RefineConfig()
    adaptive: AdaptiveConfig = AdaptiveConfig()
    at_once: int | None = pydantic.Field(default=None, ge=1)
    """Rollouts, and then judges and other steps, at the same time, for providers that limit it; None: all of them."""


class BackboneConfig(_Config):
    """One language model. ``model`` is ``local/NAME`` for the embedded engine, else any name that dspy.LM takes."""

    model: str = pydantic.Field(min_length=1)
    api_base: str | None = None
    api_key_env: str | None = None
    """Name of the environment variable that holds the key, where the provider's usual one is not meant."""
    max_tokens: int | None = pydantic.Field(default=None, ge=1)
    temperature: float | None = pydantic.Field(default=None, ge=0, le=2)
    timeout: float | None = pydantic.Field(default=None, gt=0)
    """Seconds; for hosted models."""
    cache: bool = False
    """Whether dspy may answer from its cache; off, so that what a run reports is what it cost."""
    context: int = pydantic.Field(default=8192, ge=512)
    """Context window of the embedded engine, in tokens, for each slot."""
    slots: int = pydantic.Field(default=4, ge=1, le=64)
    """Sequences that the embedded engine keeps warm at once."""
    threads: int | None = pydantic.Field(default=None, ge=1)
    """CPU threads of the embedded engine; None: as many as there are cores."""


class BankConfig(_Config):
    """Where lessons are kept."""

    url: str = "rb-bank.sqlite"
    scope: str = "default"
    embedder: str = "minilm"


class RunConfig(_Config):
    """What ``rb-dspy run`` does."""

    stream: str = "reasoning-gym-small"
    """A named stream (``rb-dspy envs``), or a ``.jsonl`` file of tasks."""
    tasks: int = pydantic.Field(default=8, ge=1)
    """How many tasks that the bank has not seen yet."""
    seed: int = 0
    templates: tuple[str, ...] | None = None
    split: Split = "all"
    memory: Literal["on", "frozen", "off"] = "on"
    """``frozen``: lessons are shown, and nothing is judged or learned; ``off``: none are shown either. Both do tasks
    that the bank has seen as well, so that runs with and without memory do the same ones."""


class TrackingConfig(_Config):
    """Where MLflow keeps what runs did. Relative paths are those of the working directory."""

    enabled: bool | None = None
    """Whether anything is kept. None: as is usual, which ``--track`` tells of each command; a ``Tracker`` keeps it."""
    uri: str = pydantic.Field(default="sqlite:///rb-mlflow.db", min_length=1)
    """A SQLite file, whose artifacts lie in a folder beside it, or the address of any MLflow tracking server."""
    experiment: str = pydantic.Field(default="rb_dspy", min_length=1)
    traces: bool = True
    """Whether every task is kept as a trace, with all prompts and answers."""


class Settings(_Config):
    """The whole of ``rb.toml``."""

    run: RunConfig = RunConfig()
    bank: BankConfig = BankConfig()
    program: ProgramConfig = ProgramConfig()
    matts: MattsConfig | None = None
    """Test-time scaling; None: one rollout a task."""
    backbones: dict[Role, BackboneConfig] = {"agent": BackboneConfig(model=DEFAULT_MODEL)}
    """Whoever names other roles only, or other keys of the agent's, keeps the agent's model."""
    tracking: TrackingConfig = TrackingConfig()

    @pydantic.field_validator("backbones", mode="before")
    @classmethod
    def _with_agent(cls, given: Any) -> Any:
        agent = given.get("agent", {}) if isinstance(given, Mapping) else None
        return {**given, "agent": {"model": DEFAULT_MODEL, **agent}} if isinstance(agent, Mapping) else given


def load_settings(path: Path | str | None = None, overrides: Iterable[str] = ()) -> Settings:
    """Settings from ``path`` (TOML) and ``key=value`` overrides such as ``run.tasks=3``; the overrides win.

    Raises ``ConfigError`` for a file that is missing or not TOML, an unknown key, or a bad value.
    """
    data: dict[str, Any] = {}
    if path is not None:
        try:
            data = tomllib.loads(Path(path).read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise ConfigError(f"{path}: no such file; expected a TOML configuration") from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as exc:
            raise ConfigError(f"{path}: not valid TOML: {exc}") from None
        except (ValueError, RecursionError) as exc:
            raise ConfigError(_unreadable(str(path), exc)) from None
        except OSError as exc:
            raise ConfigError(f"{path}: cannot be read: {exc.strerror}") from None
    of_file = deepcopy(data)
    for override in overrides:
        _set(data, override)
    if path is not None and _first_error(of_file) == _first_error(data):  # which is the file's own, or none
        return parse_settings(data, source=str(path))
    return parse_settings(data, source="--set")


def _first_error(data: Mapping[str, Any]) -> object:
    try:
        Settings.model_validate(data)
    except pydantic.ValidationError as exc:
        first = exc.errors()[0]
        return first["loc"], first["type"], repr(first["input"])
    return None


def parse_settings(data: Mapping[str, Any], source: str = "settings") -> Settings:
    """``data``, checked. ``ConfigError`` names the first key that is unknown or has a bad value."""
    try:
        return Settings.model_validate(data)
    except pydantic.ValidationError as exc:
        first = exc.errors()[0]
        location = [str(part) for part in first["loc"] if part != "[key]"]
        key = ".".join(location)
        if first["type"] == "extra_forbidden" or "[key]" in first["loc"]:
            known = _known_keys(location)
            near = difflib.get_close_matches(location[-1], known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known here: {', '.join(known)}"
            raise ConfigError(f"{source}: unknown key {key!r}; {hint}") from None
        if first["type"] == "missing":
            raise ConfigError(f"{source}: {key} is missing") from None
        raise ConfigError(f"{source}: {key} = {_shown(first['input'])}: {first['msg'].lower()}") from None


def _known_keys(location: list[str]) -> list[str]:
    """The keys that are allowed where the last part of ``location`` stands."""
    model: type[pydantic.BaseModel] = Settings
    for i, part in enumerate(location[:-1]):
        if part == "backbones":
            if i == len(location) - 2:
                return list(ROLES)
            model = BackboneConfig
        elif part in model.model_fields:
            annotation = model.model_fields[part].annotation
            annotation = next((kind for kind in get_args(annotation) if kind is not NoneType), annotation)
            if isinstance(annotation, type) and issubclass(annotation, pydantic.BaseModel):
                model = annotation
    return list(model.model_fields)


def _set(data: dict[str, Any], override: str) -> None:
    """Put ``a.b=value`` into ``data``; the value is TOML where it parses, else text."""
    key, sign, text = override.partition("=")
    if not sign or not key.strip():
        raise ConfigError(f"--set {override!r}: expected key=value, for example run.tasks=3")
    try:
        value: Any = tomllib.loads(f"v = {text}")["v"]
    except tomllib.TOMLDecodeError:
        value = text
    except (ValueError, RecursionError) as exc:
        raise ConfigError(_unreadable(f"--set {key.strip()}", exc)) from None
    *parents, last = key.strip().split(".")
    for parent in parents:
        child = data.setdefault(parent, {})
        if not isinstance(child, dict):
            raise ConfigError(f"--set {override!r}: {parent!r} is not a table")
        data = child
    data[last] = value


def _unreadable(source: str, exc: Exception) -> str:
    """A number of too many digits, or brackets inside brackets: TOML to its grammar, and too much for Python."""
    return f"{source}: TOML that cannot be read ({type(exc).__name__}); give a shorter number, or fewer brackets"


def _shown(value: Any) -> str:
    """``value`` in a line of an error."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # a long 0xF… or a.b.c… is read, and never shown
        return f"a {type(value).__name__} too large to be shown"
    return text if len(text) <= 200 else f"{text[:200]}…"
