"""Typed settings, one class per component. ``config_file`` reads them from ``rb.toml`` and other sources."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, get_args

import pydantic
from pydantic import Field, JsonValue

from rb_dspy.config_errors import config_error
from rb_dspy.redaction import SECRET_NAME
from rb_dspy.schema import Level

Role = Literal["agent", "judge", "distiller", "contraster", "selector"]
ROLES: tuple[Role, ...] = get_args(Role)
Split = Literal["all", "compile", "dev", "stream", "held_out"]
MattsMode = Literal["parallel", "sequential", "best_of_n", "vanilla"]
CompileStep = Literal["all", "judge", "select", "agent"]

Temperature = Annotated[float, Field(ge=0, le=2)]
_QUERY_PREFIX = "Find earlier tasks whose lessons help with this task: "
"""The authors embed a query after an instruction, whose words are theirs."""
DEFAULT_MODEL = "local/qwen2.5-coder-1.5b"


class _Config(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    if not TYPE_CHECKING:  # type checkers see the fields as parameters

        def __init__(self, /, **values: Any) -> None:
            """Raises ``ConfigError`` that names the first key that is unknown or has a bad value."""
            try:
                super().__init__(**values)
            except pydantic.ValidationError as exc:
                raise config_error(type(self), exc, {}, type(self).__name__) from None

        # Like pydantic's own __init__: otherwise pydantic calls this one for nested tables, and errors lose their path.
        __init__.__pydantic_base_init__ = True

    @classmethod
    def __pydantic_init_subclass__(cls, **options: Any) -> None:
        """Add the fields' descriptions to the docstring, for ``help``."""
        fields = (f"{name}: {' '.join((field.description or '').split())}" for name, field in cls.model_fields.items())
        cls.__doc__ = "\n\n".join([inspect.cleandoc(cls.__doc__ or ""), *fields])


class RetrieveConfig(_Config):
    """What the agent is shown. The paper: the nearest experience, no floor (see ``ProgramConfig.paper``)."""

    k: int = Field(default=4, ge=0)
    """Number of items or experiences; 0 shows none (the program still learns from the rollout)."""
    unit: Literal["item", "experience"] = "item"
    """Rank single lessons (items), or experiences, each shown with all its lessons."""
    mode: Literal["dense", "lexical", "hybrid"] = "dense"
    """Rank by the embedder's cosine, by shared words (BM25), or by both (reciprocal rank fusion)."""
    polarity: Literal["success", "failure"] | None = None
    """Show only lessons from successes, or only those from failures; None: both."""
    candidates: int = Field(default=20, ge=1)
    """Number of results that a reranker chooses from, if the program has one."""
    min_score: float | None = Field(default=None, ge=-1, le=1)
    """Minimum cosine of a result, in dense mode. None: the embedder's own floor, ``Embedder.min_score``, if it has one;
    -1: no floor."""
    min_share: float = Field(default=0.7, ge=0, le=1)
    """Minimum cosine of a result as a share of the best one's, in dense mode without a reranker; 0: no minimum. A small
    model is misled by lessons about another subject."""
    max_tokens: int = Field(default=1500, ge=1)
    """Budget of the memory block, in estimated tokens; items are shown in order until the next would exceed it."""
    query_prefix: str = ""
    """Text before the query, in dense mode, for embedders that take an instruction; lessons are embedded without."""

    @pydantic.model_validator(mode="after")
    def _check_mode(self) -> Self:
        if self.query_prefix and self.mode != "dense":
            raise ValueError(f"query_prefix is for embedders and does not apply to mode {self.mode!r}; remove it")
        if self.min_score is not None and self.mode != "dense":
            raise ValueError(f"min_score is a cosine and does not apply to mode {self.mode!r}; remove it")
        return self


class ActConfig(_Config):
    """How the agent acts. The paper: ReAct at temperature 0.7, at most 30 steps."""

    temperature: Temperature | None = None
    """Sampling temperature of the agent. None: 0 for one rollout, 0.7 for several."""
    max_steps: int = Field(default=30, ge=1)
    """Maximum steps of a rollout."""
    max_tokens: int = Field(default=1024, ge=1)
    """Maximum output tokens of one turn."""
    observation_tokens: int = Field(default=32_000, ge=100)
    """Maximum estimated tokens of one observation; a longer one is cut in the middle, in prompts only."""
    discuss: bool = False
    """The lessons stand in the system prompt, and each thought begins with whether each of them applies now, as in the
    authors' repository; else they stand beside the task, once."""


class CallConfig(_Config):
    """How a language model is asked about rollouts."""

    temperature: Temperature = 0.0
    """Sampling temperature."""
    max_tokens: int = Field(default=512, ge=1)
    """Maximum output tokens of an answer."""
    view_tokens: int = Field(default=4000, ge=100)
    """Maximum estimated tokens of each trajectory in the prompt."""


class JudgeConfig(CallConfig):
    """How rollouts are judged. The paper: the agent's model at temperature 0."""

    strict: bool = True
    """Work that is partly done, unsupported or doubtful is a failure."""
    thoughts: bool = True
    """Show the agent's thoughts."""
    states: int | None = Field(default=None, ge=1)
    """Show only the last observations, this many; None: all."""


class DistillConfig(CallConfig):
    """How lessons are drawn from one rollout. The paper: at most three items."""

    max_tokens: int = Field(default=900, ge=1)
    """Maximum output tokens of the lessons of one rollout."""
    max_items: int = Field(default=3, ge=1, le=3)
    """Maximum lessons of one rollout."""
    distill_unknown: bool = False
    """Distill rollouts whose verdict is unknown, as if they had failed."""
    prompts: Literal["facts", "general", "procedures"] = "facts"
    """``facts``: keep names, codes, rules and corrections exactly; ``general``: strategies without any of them, as the
    authors' published code; ``procedures``: strategies in concrete steps, with when to use them and when not, and with
    the judge's reasons as a source, as their code since April 2026."""
    observations: bool = True
    """With ``general`` and ``procedures``: show what the environment said; the authors' code does not, on web tasks."""
    own_words: bool = True
    """With ``facts``, a lesson that repeats a statement of the environment is stored in the environment's words."""


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
    learn: Literal["two_calls", "one_call"] = "two_calls"
    """``two_calls``: the judge reads a rollout, then the distiller; ``one_call``: the distiller's model does both at
    once. With ``one_call``, a stated verdict, a judge of your own, and several rollouts of a task still take two."""
    skip_known: bool = False
    """After a success, do not call the distiller if a lesson that was shown holds each thing the environment said."""

    @pydantic.model_validator(mode="after")
    def _check_learn(self) -> Self:
        if self.learn == "one_call" and self.distill.prompts != "facts":
            raise ValueError(
                f"learn 'one_call' keeps facts; use two_calls for distill.prompts {self.distill.prompts!r}"
            )
        return self

    @classmethod
    def paper(cls) -> Self:
        """The values of the code published with the paper, for web tasks (google-research/reasoning-bank@1f334c1).

        Where the paper differs: its appendix distills at temperature 1.0.
        """
        return cls(
            retrieve=RetrieveConfig(k=1, unit="experience", min_score=-1.0, min_share=0.0, query_prefix=_QUERY_PREFIX),
            act=ActConfig(temperature=0.7, max_steps=30, discuss=True),
            judge=JudgeConfig(temperature=0.0, strict=False, thoughts=False, states=1),
            distill=DistillConfig(temperature=0.7, max_items=3, prompts="general", observations=False),
        )

    @classmethod
    def paper_2026_04(cls) -> Self:
        """The values of the authors' code since April 2026, for web tasks (50ce587, 95a3fbb of the same repository).

        A strict judge that reads thoughts and the last five states, and a distiller that reads the judge's reasons.
        """
        paper = cls.paper()
        return cls(
            retrieve=paper.retrieve,
            act=paper.act,
            judge=JudgeConfig(temperature=0.0, states=5, view_tokens=60_000),  # 40,000 characters a state
            distill=DistillConfig(temperature=1.0, max_items=3, prompts="procedures", observations=False),
        )


class ContrastConfig(CallConfig):
    """How lessons are drawn from several rollouts at once. The paper: one call, no labels, at most five items."""

    labels: bool = False
    """Show the contraster each rollout's verdict; rollouts are then judged first."""
    max_tokens: int = Field(default=1500, ge=1)
    """Maximum output tokens of the lessons of one task."""
    max_items: int = Field(default=5, ge=1, le=5)
    """Maximum lessons of one task."""
    prompts: Literal["facts", "general"] = "facts"
    """See ``DistillConfig``."""
    observations: bool = True
    """See ``DistillConfig``."""


class SelectConfig(CallConfig):
    """How one of several rollouts is chosen. The paper: one call, which sees neither verdicts nor votes."""

    verdicts: bool = False
    """Show the selector each rollout's verdict, and choose by them if it fails; rollouts are then judged first."""
    seed: int = 0
    """Together with the task's id, this sets the order in which rollouts are listed."""
    orders: int = Field(default=1, ge=1, le=16)
    """Ask in this many orders, each rotated by one place, and count the votes."""


class RefineConfig(CallConfig):
    """How an agent checks its own work. The paper: always k passes, whatever the previous check concluded."""

    until_confirmed: bool = False
    """Stop at the first check that confirms the work, instead of after all passes."""


class MattsConfig(_Config):
    """Memory-aware test-time scaling (paper, section 3.3)."""

    mode: MattsMode = "parallel"
    """Contrast all rollouts, refine one (sequential), distill only the best (best_of_n), or each alone (vanilla)."""
    k: int = Field(default=3, ge=1, le=64)
    """Number of rollouts, or of passes over one; 1 means no scaling. The paper: up to 5."""
    contrast: ContrastConfig = ContrastConfig()
    """How lessons are drawn from all rollouts, in mode parallel."""
    select: SelectConfig = SelectConfig()
    """How the submitted rollout is chosen."""
    refine: RefineConfig = RefineConfig()
    """How a rollout is checked and corrected, in mode sequential."""
    at_once: int | None = Field(default=None, ge=1)
    """Maximum rollouts, or judges and other steps, that run at the same time; None: all of them."""

    @pydantic.field_validator("mode", mode="before")
    @classmethod
    def _underscores(cls, value: Any) -> Any:
        return value.replace("-", "_") if isinstance(value, str) else value

    @classmethod
    def paper(cls) -> Self:
        """The values of the authors' code where the defaults differ."""
        return cls(
            contrast=ContrastConfig(temperature=0.7, prompts="general", observations=False),
            refine=RefineConfig(temperature=0.7),
        )


class BackboneConfig(_Config):
    """One language model. ``model`` is ``local/NAME`` for the embedded engine, else any name that dspy.LM takes."""

    model: str = Field(min_length=1)
    """``local/NAME`` for the embedded engine, else PROVIDER/NAME, as dspy.LM takes it."""
    api_base: str | None = None
    """Address of the server, such as http://127.0.0.1:8000/v1; None: the provider's usual one."""
    api_key_env: str | None = None
    """Name of the environment variable that holds the API key (not the key itself); None: the provider's usual one."""
    max_tokens: int | None = Field(default=None, ge=1)
    """Maximum output tokens of every answer, instead of each step's own limit."""
    temperature: Temperature | Literal["none"] | None = None
    """Sampling temperature of every answer, instead of each step's own; "none": never sent, for servers that reject
    it."""
    timeout: float | None = Field(default=None, gt=0)
    """Seconds until a request times out; None: dspy's own limit, and an hour for local models."""
    num_retries: int = Field(default=8, ge=0)
    """Maximum retries of a request that failed for a temporary reason, with growing waits of up to a minute."""
    options: dict[str, JsonValue] = {}
    """Other arguments of dspy.LM, such as top_p, seed, reasoning_effort, extra_body, model_type; for hosted models."""
    cache: bool = False
    """Use dspy's cache; off by default, so that a run reports its cost."""
    context: int = Field(default=8192, ge=512)
    """Context window of the embedded engine, in tokens, for each slot."""
    slots: int = Field(default=4, ge=1, le=64)
    """Requests that the embedded engine processes at once."""
    threads: int | None = Field(default=None, ge=1)
    """CPU threads of the embedded engine; None: one for each core, at most 8."""

    @pydantic.field_validator("api_base")
    @classmethod
    def _check_address(cls, value: str | None) -> str | None:
        if value is not None and not re.fullmatch(r"(?i)https?://[^\s/?#]\S*", value):
            raise ValueError("expected an address such as http://127.0.0.1:8000/v1; its value is not shown")
        return value

    @pydantic.field_validator("api_key_env")
    @classmethod
    def _check_variable(cls, value: str | None) -> str | None:
        if value is not None and not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,63}", value):
            raise ValueError("expected the name of an environment variable, not the key itself; its value is not shown")
        return value

    @pydantic.field_validator("options")
    @classmethod
    def _check_options(cls, value: dict[str, JsonValue]) -> dict[str, JsonValue]:
        own = [name for name in value if name in cls.model_fields]
        if own:
            raise ValueError(f"{own[0]!r} is a key of the backbone itself; move it out of options")
        secret = next((name for name in _keys(value) if SECRET_NAME.search(name)), None)
        if secret is not None:
            raise ValueError(
                f"{secret!r} is a secret; put it into the provider's environment variable, or one named in api_key_env"
            )
        return value


class BankConfig(_Config):
    """Where lessons are stored."""

    url: str = "rb-bank.sqlite"
    """The SQLite file, or ``postgresql://user@host/database``."""
    scope: str = "default"
    """The bank within the file; scopes do not see each other."""
    embedder: str = "minilm"
    """Name of the embedder; a bank stays with its first embedder until ``bank reindex``."""


class TrustConfig(_Config):
    """Which sources of lessons are trusted, and how far."""

    origins: dict[str, Level] = {}
    """Origin, or a pattern such as ``env:*``, -> level; the longest that matches counts. ``held``: not shown until
    ``bank approve``; ``learned``: shown, without the cap; ``owner``: as what you write yourself."""
    default: Level = "learned"
    """Level of other origins than those above, your own, and environments, which are code that you chose; but
    ``env:web`` shows what strangers write."""
    cap: int | None = Field(default=1, ge=1)
    """Places of k that an origin gets which only has the default level; None: all. Origins that differ after a colon,
    such as ``mail:ann`` and ``mail:bob``, share them, because a sender chooses its name."""
    near: float = Field(default=0.9, ge=0, le=2)
    """Cosine from which two lessons say the same: such a lesson is held if the first was removed, and lessons that say
    the same leave one place of k to others. Above 1: never."""
    corroborate: int = Field(default=2, ge=1)
    """Other origins that must say the same as a held lesson for ``bank list --held`` to point it out."""

    def level(self, origin: str) -> Level:
        """The level of an origin."""
        return self._named(origin) or self.default

    def is_capped(self, origin: str) -> bool:
        """Whether the lessons of an origin share ``cap`` places: those of one that nobody named as trusted."""
        return self.cap is not None and self._named(origin) in (None, "held")

    def _named(self, origin: str) -> Level | None:
        patterns = [each for each in self.origins if fnmatchcase(origin, each)]
        if patterns:
            return self.origins[max(patterns, key=len)]
        return _known_level(origin)


def _known_level(origin: str) -> Level | None:
    """The level of an origin whose texts come from you, your program, or an environment that you chose."""
    if origin == "user":  # MemoryBank.add
        return "owner"
    is_environment = origin.startswith("env:") and not origin.startswith(_STRANGERS)
    return "learned" if origin in ("", "caller") or is_environment else None


_STRANGERS = ("env:web",)
"""Environments whose texts are written by people whom nobody chose."""


def origin_class(origin: str) -> str:
    """What origins share whose names are chosen by others: ``mail`` of ``mail:customer-17``."""
    kind, _, _ = origin.partition(":")
    return origin if kind in ("env", "import") else kind


def source_name(origin: str) -> str:
    """The kind of an origin, for a prompt, such as ``mail`` of ``mail:customer-17``; empty for your program's own."""
    if origin != "user" and _known_level(origin):
        return ""
    return re.sub(r"[^\w-]", "", origin.removeprefix("env:").partition(":")[0])[:20]


class RunConfig(_Config):
    """What ``rb-dspy run`` does."""

    stream: str = "directory"
    """Default tasks: a stream (``rb-dspy envs``), or a file: .jsonl, .csv or .parquet."""
    tasks: int = Field(default=16, ge=1)
    """Number of tasks of a named stream to run; a file runs completely, unless ``-n`` is given."""
    seed: int = 0
    """Selects the tasks of a named stream, and how a compile splits them; a file is shuffled only if ``--seed`` is
    given."""
    templates: tuple[str, ...] | None = None
    """Kinds of tasks of a named stream; None: all."""
    split: Split = "all"
    """Part of the templates of a named stream; parts do not overlap. For families with folds (``twc``,
    ``cookingworld``), ``compile`` is train, ``dev`` is dev, ``held_out`` is test, and there is no ``stream``."""
    memory: Literal["bank", "frozen", "none", "both"] = "bank"
    """As the arms of an evaluation, ``bank``: show lessons and learn; ``none``: neither. Besides, ``frozen``: show, do
    not learn; ``both``: none, then bank, side by side, from an empty bank that is not stored."""


class EvaluateConfig(_Config):
    """What ``rb-dspy evaluate`` does."""

    arms: tuple[str, ...] = ("none", "bank")
    """Memory systems to compare, of those that ``rb-dspy memories`` lists."""
    signal: Literal["judge", "outcome"] = "judge"
    """What all arms learn from: the judge, or the true outcome."""
    baseline: str | None = None
    """The arm to compare with; None: the arm none, else the first."""
    orders: int = Field(default=8, ge=1)
    """Number of task orders; fewer than 8 are exploratory."""
    jobs: int = Field(default=1, ge=1)
    """Streams run in parallel."""

    @pydantic.field_validator("arms", mode="before")
    @classmethod
    def _listed(cls, value: Any) -> Any:
        names = value.split(",") if isinstance(value, str) else value
        return [str(each).strip() for each in names] if isinstance(names, list | tuple) else names


class CompileConfig(_Config):
    """What ``rb-dspy compile`` does."""

    optimizer: str = "gepa"
    """gepa, miprov2, simba, bootstrap or bootstrap_rs."""
    step: CompileStep = "all"
    """One step (judge, select or agent), or all."""
    budget: int = Field(default=100, ge=1)
    """Metric calls: examples that the search may run and score."""
    orders: int = Field(default=8, ge=1)
    """Number of task orders in scoring."""
    window: int | None = Field(default=None, ge=1)
    """Tasks in each example of step all; None: from 2 to 10, by the length of the streams."""
    jobs: int = Field(default=1, ge=1)
    """Examples run in parallel."""


class TrackingConfig(_Config):
    """What is tracked, and where. Relative paths start at the working directory."""

    enabled: bool | None = None
    """Track or not; None: each command's own default (see ``--track``)."""
    uri: str | None = Field(default=None, min_length=1)
    """``sqlite:///FILE``, or the address of an MLflow server; None: MLflow's own setting (``MLFLOW_TRACKING_URI``,
    ``mlflow.set_tracking_uri``)."""
    experiment: str | None = Field(default=None, min_length=1)
    """Name of the MLflow experiment; None: MLflow's own setting (``MLFLOW_EXPERIMENT_NAME``, ``mlflow.set_experiment``,
    an active run)."""
    traces: bool = True
    """Store a trace of every task, with all prompts and answers."""


class Settings(_Config):
    """All settings of ``rb.toml``."""

    run: RunConfig = RunConfig()
    """What ``rb-dspy run`` does."""
    evaluate: EvaluateConfig = EvaluateConfig()
    """What ``rb-dspy evaluate`` does."""
    compile: CompileConfig = CompileConfig()
    """What ``rb-dspy compile`` does."""
    bank: BankConfig = BankConfig()
    """Where lessons are stored."""
    trust: TrustConfig = TrustConfig()
    """Which sources of lessons are trusted, and how far."""
    program: ProgramConfig = ProgramConfig()
    """The steps of the program."""
    matts: MattsConfig | None = None
    """Test-time scaling; None: one rollout a task."""
    backbones: dict[Literal[Role, "reflection"], BackboneConfig] = {"agent": BackboneConfig(model=DEFAULT_MODEL)}
    """Language models by role; a role without one uses the agent's. A string is the model: ``agent =
    "openai/gpt-4o-mini"``. ``reflection`` is the model that proposes prompts in ``rb-dspy compile``."""
    tracking: TrackingConfig = TrackingConfig()
    """What is tracked in MLflow, and where."""

    @property
    def roles(self) -> dict[str, BackboneConfig]:
        """The language models of a program."""
        return {role: each for role, each in self.backbones.items() if role in ROLES}

    @pydantic.field_validator("backbones", mode="before")
    @classmethod
    def _with_agent(cls, value: Any) -> Any:
        if not isinstance(value, Mapping):
            return value
        roles = {role: {"model": each} if isinstance(each, str) else each for role, each in value.items()}
        agent = roles.get("agent", {})
        return {**roles, "agent": {"model": DEFAULT_MODEL, **agent}} if isinstance(agent, Mapping) else roles


def _keys(value: JsonValue) -> Iterator[str]:
    """The keys of all tables in ``value``."""
    if isinstance(value, dict):
        yield from value
        value = list(value.values())
    for each in value if isinstance(value, list) else ():
        yield from _keys(each)
