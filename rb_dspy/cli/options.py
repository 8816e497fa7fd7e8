"""The options that several commands share, as they are written and as ``--help`` explains them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from rb_dspy.cli.common import CONFIG_FILE
from rb_dspy.config import BankConfig, RunConfig


def default(key: str, value: object) -> str:
    """How a help text ends that is of an option which a setting stands in for."""
    return f"default: {key} in {CONFIG_FILE}, else {value}."


def _track_option(usual: str) -> Any:
    told = f"Whether it is kept in MLflow (tracking.uri); {default('tracking.enabled', usual)}"
    return typer.Option("--track/--no-track", show_default=False, help=told)


ConfigOption = Annotated[
    Path | None, typer.Option("--config", "-c", help="TOML settings; default: rb.toml in this folder, if there is one.")
]
SetOption = Annotated[
    list[str] | None, typer.Option("--set", "-s", metavar="KEY=VALUE", help="Override one setting; may be repeated.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]
JsonLinesOption = Annotated[bool, typer.Option("--json", help="Print JSON, one object a line, for scripts.")]
"""Of commands that may print several."""

BankOption = Annotated[
    str | None,
    typer.Option(
        "--bank", help=f"The bank's file, or postgresql://user@host/database; {default('bank.url', BankConfig().url)}"
    ),
]
ScopeOption = Annotated[
    str | None, typer.Option("--scope", help=f"The bank's scope; {default('bank.scope', BankConfig().scope)}")
]
AtOption = Annotated[
    str | None, typer.Option("--at", metavar="NAME", help="As it was at this snapshot; see `bank snapshots`.")
]
NoteOption = Annotated[str, typer.Option("--note", help="Why; kept in the history.")]

LessonsOption = Annotated[
    str | None, typer.Option("--bank", help="Begin every run with the lessons of this bank; default: with none.")
]
LessonsScopeOption = Annotated[
    str | None, typer.Option("--scope", help=f"The scope of --bank; {default('bank.scope', BankConfig().scope)}")
]

TasksFileOption = Annotated[
    Path | None,
    typer.Option(
        "--tasks-file", metavar="FILE", help="Tasks of your own: JSON Lines, CSV or Parquet (.jsonl, .csv, .parquet)."
    ),
]
StreamOption = Annotated[
    str | None,
    typer.Option(help=f"A named stream instead (see rb-dspy envs); {default('run.stream', RunConfig().stream)}"),
]
SeedOption = Annotated[
    int | None, typer.Option(help=f"Which tasks, and how they are split; {default('run.seed', RunConfig().seed)}")
]

ProgramOption = Annotated[
    str | None,
    typer.Option(
        "--program",
        metavar="FILE",
        help="With the prompts that rb-dspy compile saved, or those of a registered program: models:/NAME@champion.",
    ),
]
TrackOption = Annotated[bool | None, _track_option("no")]
CompileTrackOption = Annotated[bool | None, _track_option("yes")]
