"""Options that several commands share, and the settings that they select."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import shlex
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_type_hints
from urllib.parse import urlsplit

import typer

from rb_dspy.cli.output import out
from rb_dspy.config import BankConfig, MattsConfig, MattsMode, RunConfig, Settings
from rb_dspy.errors import ConfigError, EmbedderMismatch, UnknownScope
from rb_dspy.redaction import without_secrets

if TYPE_CHECKING:
    from rb_dspy.bank import MemoryBank
    from rb_dspy.cli.tasks import Source
    from rb_dspy.matts import BankProgram

CONFIG_FILE = Path("rb.toml")
MODES = ", ".join(mode.replace("_", "-") for mode in get_args(MattsMode))


def default(key: str, value: object) -> str:
    """Help text for the default of an option: its setting, or ``value``."""
    return f"default: {key} in {CONFIG_FILE}, else {value}."


def setting(key: str, *names: str, metavar: str = "N") -> Any:
    """An option whose help and default are those of a setting."""
    table, _, name = key.partition(".")
    field = type(getattr(Settings(), table)).model_fields[name]
    value = ",".join(field.default) if isinstance(field.default, tuple) else field.default
    meaning, _, unset = (field.description or "").replace("``", "").removesuffix(".").partition("; None: ")
    help_ = f"{' '.join(meaning.split())}; {default(key, unset if value is None else value)}"
    return typer.Option(*names, metavar=metavar, help=help_)


Config = Annotated[
    Path | None,
    typer.Option(
        "--config", "-c", metavar="FILE", help="TOML settings; default: rb.toml in this folder, if there is one."
    ),
]
Set = Annotated[
    list[str] | None, typer.Option("--set", "-s", metavar="KEY=VALUE", help="Override one setting; may be repeated.")
]
_Json = Annotated[bool, typer.Option("--json", help="Print JSON for scripts, one value per line.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before a deletion or more than 1,000 model calls.")]

Bank = Annotated[str | None, setting("bank.url", "--bank", metavar="BANK")]
Scope = Annotated[str | None, setting("bank.scope", "--scope", metavar="NAME")]
StartBank = Annotated[
    str | None, typer.Option("--bank", metavar="BANK", help="Start from a copy of this bank; default: empty.")
]
Env = Annotated[
    str | None,
    typer.Option(
        "--env",
        metavar="MODULE:NAME",
        help="Your own environment, imported from this folder: a function (task, rollout_id) that returns one, an"
        " Environment class, or an EnvironmentFamily class; parameters named otherwise keep their defaults.",
    ),
]
ProgramName = Annotated[
    str | None,
    typer.Option(
        "--program",
        metavar="PROGRAM",
        help="Prompts that rb-dspy compile saved: a file, the NAME of a registered program, or models:/NAME/2.",
    ),
]
Matts = Annotated[
    str | None,
    typer.Option(
        "--matts",
        metavar="MODE",
        help=f"Several rollouts of each task: {MODES}; off for one; {default('matts.mode', 'one rollout')}",
    ),
]
K = Annotated[
    int | None,
    typer.Option(
        "--k", "-k", metavar="N", help=f"Rollouts or passes of --matts; {default('matts.k', MattsConfig().k)}"
    ),
]


@dataclasses.dataclass(frozen=True)
class OnBank:
    """The options of a command on a bank."""

    bank: Bank = None
    scope: Scope = None
    config: Config = None

    @property
    def settings(self) -> Settings:
        """The settings of the command."""
        return settings(self.config, None, parts=("bank", "trust"), bank__url=self.bank, bank__scope=self.scope)

    def open(self, *, embeds: bool = False, create: bool = False, any_scope: bool = False) -> MemoryBank:
        """Open the bank.

        ``embeds``: the command needs the bank's own embedder; others work on any bank. ``any_scope``: the command works
        on all scopes, so that only a ``--scope`` must exist.
        """
        from rb_dspy.bank import MemoryBank
        from rb_dspy.bank.opening import scopes

        chosen, trust = self.settings.bank, self.settings.trust
        embedder = chosen.embedder if embeds else None
        try:
            return MemoryBank.open(chosen.url, scope=chosen.scope, embedder=embedder, create=create, trust=trust)
        except EmbedderMismatch as exc:
            raise EmbedderMismatch(f"{exc}; set bank.embedder in rb.toml to the bank's embedder") from None
        except UnknownScope:
            names = scopes(chosen.url) if any_scope and self.scope is None else []
            if not names:
                raise
        return MemoryBank.open(chosen.url, scope=names[0], embedder=embedder, create=False, trust=trust)


def bank_options(bank: BankConfig) -> str:
    """Options that name ``bank`` in a command to be pasted; an address with a password stands in a variable."""
    usual, address, text = BankConfig(), urlsplit(bank.url), ""
    if bank.url != usual.url:
        public = address._replace(netloc=address.netloc.rpartition("@")[2]).geturl()
        secret = address.password is not None or without_secrets(public) != public
        text = ' --bank "$RB_DSPY_BANK__URL"' if secret else f" --bank {shlex.quote(bank.url)}"
    return text if bank.scope == usual.scope else f"{text} --scope {shlex.quote(bank.scope)}"


@dataclasses.dataclass(frozen=True)
class OnTasks:
    """The options of a command that runs a program on tasks."""

    tasks: Annotated[
        str | None,
        typer.Argument(
            metavar="TASKS",
            show_default=False,
            help="A file of tasks (.jsonl, .csv, .parquet), or the name of a stream (see rb-dspy envs);"
            f" {default('run.stream', RunConfig().stream)}",
        ),
    ] = None
    number: Annotated[
        int | None,
        typer.Option(
            "--number", "-n", min=1, metavar="N", help="How many tasks; default: all of a file, run.tasks of a stream."
        ),
    ] = None
    seed: Annotated[
        int | None,
        typer.Option("--seed", metavar="N", help="Chooses the tasks of a stream; shuffles those of a file."),
    ] = None
    files: Annotated[
        Path | None,
        typer.Option(
            "--files", metavar="FOLDER", help="Folder of databases that a file of tasks may name, besides its own."
        ),
    ] = None
    env: Env = None
    agent: Annotated[
        str | None,
        typer.Option(
            "--agent",
            metavar="MODULE:NAME",
            help="Your own agent, imported from this folder: a function (task, lessons) that returns messages, steps or"
            " an answer, or a dspy.Module; it may be async.",
        ),
    ] = None
    score: Annotated[
        str | None,
        typer.Option(
            "--score",
            metavar="MODULE:NAME",
            help="Says whether an answer is right, in the place of an environment: a function (task, answer) that"
            " returns True, False or a number from 0 to 1.",
        ),
    ] = None
    program: ProgramName = None
    matts: Matts = None
    k: K = None
    max_tokens: Annotated[
        int | None,
        typer.Option("--max-tokens", min=1, metavar="N", help="Stop, to be continued, after so many tokens."),
    ] = None
    max_cost: Annotated[
        float | None,
        typer.Option("--max-cost", metavar="USD", help="Stop, to be continued, after so many US dollars."),
    ] = None
    max_minutes: Annotated[
        float | None, typer.Option("--max-minutes", metavar="N", help="Stop, to be continued, after so many minutes.")
    ] = None
    track: Annotated[
        bool | None,
        typer.Option(
            "--track/--no-track",
            show_default=False,
            help="Track in MLflow; default: tracking.enabled in rb.toml, else on if it has a table [tracking].",
        ),
    ] = None
    config: Config = None
    set_: Set = None

    def budget(self) -> AbstractContextManager[object]:
        """The limits of the command."""
        from rb_dspy.backbones import budget

        return budget(max_tokens=self.max_tokens, max_cost=self.max_cost, max_minutes=self.max_minutes)

    def settings(self, **options: Any) -> Settings:
        """The settings of the command; ``options``: its own options as ``section__key=value``."""
        return program_settings(self.config, self.set_, self.matts, self.k, run__seed=self.seed, **options)

    def source(self, chosen: Settings, text: str | None = None) -> Source:
        """The tasks, or ``text`` as the only task. Raises ``InputError`` if they cannot be used."""
        from rb_dspy.cli.tasks import source

        return source(self, chosen.run, text)

    def build(self, chosen: Settings) -> BankProgram:
        """The program of the settings. Raises ``InputError`` for an environment or prompts that cannot be used."""
        from rb_dspy.cli.program import build_program

        return build_program(chosen, self.env, self.program, self.agent, self.score)


def shared(command: Callable[..., None]) -> Callable[..., None]:
    """Add ``--json`` to ``command``, and replace its parameter ``on``, a dataclass of options, with these options."""
    hints = get_type_hints(command, include_extras=True)
    group = hints.pop("on", None)
    ours = {} if group is None else get_type_hints(group, include_extras=True)
    added = {name: (getattr(group, name), hint) for name, hint in ours.items()} | {"json_": (False, _Json)}
    own = inspect.signature(command).parameters.values()
    parameters = [each.replace(annotation=hints[each.name]) for each in own if each.name != "on"]
    for name, (default, hint) in added.items():
        parameters.append(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hint))

    @functools.wraps(command)
    def call(**values: Any) -> None:
        out.quiet = values.pop("json_")
        on = {} if group is None else {"on": group(**{name: values.pop(name) for name in ours})}
        command(**on, **values)

    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    call.__annotations__ = {each.name: each.annotation for each in parameters}
    return call


def settings(
    config: Path | None, overrides: list[str] | None, *, parts: Collection[str] = (), **options: Any
) -> Settings:
    """Settings of all sources, of which the command uses ``parts``; empty: all.

    ``options``: the command's own as ``section__key=value``; None: not set.
    """
    from rb_dspy.config_file import load_settings, own_file

    path = config if config is not None else (CONFIG_FILE if CONFIG_FILE.exists() else None)
    names = {"bank__url": "--bank"}
    chosen = {
        name.replace("__", "."): (names.get(name, f"--{name.rpartition('__')[2]}"), value)
        for name, value in options.items()
        if value is not None
    }
    return load_settings(path, overrides or (), chosen, own=own_file(), parts=parts)


def program_settings(
    config: Path | None, overrides: list[str] | None, matts: str | None, k: int | None, **options: Any
) -> Settings:
    """``settings`` of a command that works with a program."""
    mode = matts and matts.strip().lower().replace("-", "_")
    if mode not in (None, "off", *get_args(MattsMode)):
        raise ConfigError(f"--matts {matts!r}: no such mode; expected {MODES}, or off")
    load = functools.partial(settings, config, overrides, **options)
    chosen = load()
    if k is not None and (mode == "off" or (mode is None and chosen.matts is None)):
        raise ConfigError(f"--k {k} needs test-time scaling; add --matts MODE: {MODES}")
    if mode == "off":
        return chosen.model_copy(update={"matts": None})
    return load(matts__mode=mode, matts__k=k)
