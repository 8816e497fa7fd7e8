"""``rb-dspy programs``: compiled programs in MLflow's model registry."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rb_dspy.cli import work
from rb_dspy.cli.again import settings_options
from rb_dspy.cli.common import settings
from rb_dspy.cli.options import ConfigOption, JsonLinesOption, JsonOption, LessonsScopeOption, SetOption
from rb_dspy.cli.scaling import KOption, MattsOption

app = typer.Typer(no_args_is_help=True, help="Compiled programs in MLflow: versions, scores, who is champion.")

NameArgument = Annotated[str, typer.Argument(help="Name of a registered program.")]


@app.command("list")
def list_programs(
    name: Annotated[str | None, typer.Argument(help="Only the versions of this one.")] = None,
    config: ConfigOption = None,
    set_: SetOption = None,
    json_: JsonLinesOption = False,
) -> None:
    """Programs and their versions: which is champion, and what held-out tasks said of each."""
    work.list_programs(settings(config, set_), name, json_=json_)


@app.command()
def show(
    name: NameArgument,
    version: Annotated[
        str | None, typer.Argument(help="A number, or an alias; default: the champion, else the newest.")
    ] = None,
    all_: Annotated[bool, typer.Option("--all", help="Also the prompts that were not compiled, whole.")] = False,
    config: ConfigOption = None,
    set_: SetOption = None,
    json_: JsonOption = False,
) -> None:
    """One version: its scores, settings, language models and the prompts that were compiled."""
    keep = settings_options(config, set_)
    work.show_program(settings(config, set_), name, version, whole=all_, keep=keep, json_=json_)


@app.command()
def diff(
    name: NameArgument,
    old: Annotated[str, typer.Argument(help="A version, by number or alias; or uncompiled.")],
    new: Annotated[
        str | None,
        typer.Argument(
            help="Another; default: the champion. Where there is no other, OLD is compared with uncompiled."
        ),
    ] = None,
    config: ConfigOption = None,
    set_: SetOption = None,
    json_: JsonOption = False,
) -> None:
    """What is different in the prompts of two versions, or of one and those before any compile."""
    work.compare_programs(settings(config, set_), name, old, new, json_=json_)


@app.command()
def lessons(
    name: NameArgument,
    version: Annotated[
        str | None, typer.Argument(help="A number, or an alias; default: the champion, else the newest.")
    ] = None,
    out_file: Annotated[Path, typer.Option("--out", metavar="FILE", help="Where they go, as JSON Lines.")] = Path(
        "lessons.jsonl"
    ),
    config: ConfigOption = None,
    set_: SetOption = None,
    json_: JsonOption = False,
) -> None:
    """Write the lessons inside a version to a file, which `bank import` puts into a bank."""
    work.write_lessons(settings(config, set_), name, version, out_file, json_=json_)


@app.command()
def promote(
    name: NameArgument,
    version: Annotated[str, typer.Argument(help="A number, or an alias.")],
    force: Annotated[bool, typer.Option("--force", help="Also where held-out tasks do not say better.")] = False,
    config: ConfigOption = None,
    set_: SetOption = None,
    json_: JsonOption = False,
) -> None:
    """Make a version the champion, if held-out tasks say that it is better: the interval must be above 0."""
    work.promote_program(settings(config, set_), name, version, force=force, json_=json_)


@app.command()
def register(
    name: Annotated[str, typer.Argument(help="What to register it as; a name that is known gets a new version.")],
    file: Annotated[Path, typer.Argument(help="What rb-dspy compile saved, or save_program.")],
    matts: MattsOption = None,
    k: KOption = None,
    bank: Annotated[str | None, typer.Option("--bank", help="Put the lessons of this bank into it.")] = None,
    scope: LessonsScopeOption = None,
    config: ConfigOption = None,
    set_: SetOption = None,
    json_: JsonOption = False,
) -> None:
    """Keep a program in MLflow, with its settings and models' names; the champion, if it is shown to be better."""
    work.register_program(name, file, matts=matts, k=k, bank=bank, scope=scope, config=config, set_=set_, json_=json_)
