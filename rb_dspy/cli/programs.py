"""``rb-dspy programs``: compiled programs in MLflow's registry."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from rb_dspy.cli import options
from rb_dspy.cli.output import emit, out, say, table
from rb_dspy.errors import InputError
from rb_dspy.text import counted

app = typer.Typer(no_args_is_help=True, help="Compiled programs in MLflow: versions, scores, the champion.")

NameArgument = Annotated[str, typer.Argument(help="Name of a registered program.")]


@app.command("list", epilog="Example: `rb-dspy programs list`")
@options.shared
def list_programs(
    name: Annotated[str | None, typer.Argument(help="Only the versions of this program.")] = None,
    config: options.Config = None,
    set_: options.Set = None,
) -> None:
    """List programs and their versions, with their scores on held-out tasks."""
    from rb_dspy.cli.program import tracker

    found = tracker(options.settings(config, set_), True).programs(name)
    shown = table("program", "version", "", "improved", "held-out tasks", "step", "created", right=("version",))
    for each in found:
        emit(each)
        champion = Text("champion" if each.champion else "", "bold green")
        improved = Text("yes", "green") if each.improved else Text("not shown", "yellow")
        cells = (each.held_out or "not measured", each.step, f"{each.created:%Y-%m-%d %H:%M}")
        shown.add_row(Text(each.name), str(each.version), champion, improved, *map(Text, cells))
    out.print(shown) if found else say("no program is registered; rb-dspy programs register NAME FILE registers one")


@app.command(epilog="Example: `rb-dspy programs show desk`")
@options.shared
def show(
    name: NameArgument,
    version: Annotated[int | None, typer.Argument(help="Default: the champion, else the newest.")] = None,
    config: options.Config = None,
    set_: options.Set = None,
) -> None:
    """Show the scores and prompts of one version."""
    from rb_dspy.cli.program import tracker
    from rb_dspy.prompts import saved_prompts

    tracking = tracker(options.settings(config, set_), True)
    found = tracking.programs(name)
    if not found:
        raise InputError(f"no program {name!r} is registered; see `rb-dspy programs list`")
    champion = next((each for each in found if each.champion), found[-1])
    each = champion if version is None else next((each for each in found if each.version == version), None)
    if each is None:
        raise InputError(f"{name} has no version {version}; existing: {', '.join(str(each.version) for each in found)}")
    prompts = saved_prompts(tracking.state(name, version=each.version), f"{name} version {each.version}")
    emit({**asdict(each), "prompts": prompts})
    say((f"{each.name} version {each.version}", "bold"), "  ", ("champion" if each.champion else "", "bold green"))
    scores = each.held_out or "not measured"
    say((f"{each.optimizer or 'not compiled'} · held-out tasks: {scores} · {counted(each.lessons, 'lesson')}", "dim"))
    for predictor, prompt in prompts.items():
        demos = f", {counted(len(prompt['demos']), 'demonstration')}" if prompt["demos"] else ""
        out.print(Text.assemble("\n", (predictor, "bold"), demos))
        out.print(Text(prompt["instructions"]))
    say(("\nuse it: ", "dim"), f"rb-dspy run TASKS --program models:/{each.name}/{each.version}")


@app.command(epilog="Example: `rb-dspy programs register desk program.json`")
@options.shared
def register(
    name: Annotated[str, typer.Argument(help="Name; an existing program of this name gets a new version.")],
    file: Annotated[Path, typer.Argument(help="A file saved by rb-dspy compile or save_program.")],
    env: options.Env = None,
    matts: options.Matts = None,
    k: options.K = None,
    bank: Annotated[str | None, typer.Option("--bank", help="Register it with the lessons of this bank.")] = None,
    scope: options.Scope = None,
    config: options.Config = None,
    set_: options.Set = None,
) -> None:
    """Register a program with its prompts, settings and the names of its models; as champion if it improved."""
    from rb_dspy.cli.program import build_program, start_bank, tracker
    from rb_dspy.compile.result import Compiled
    from rb_dspy.errors import RBError

    chosen = options.program_settings(config, set_, matts, k)
    built = build_program(chosen, env, str(file))
    compiled: Compiled | None = None
    with suppress(RBError):  # prompts of save_program have no scores
        compiled = Compiled.load(file)
    tracking = tracker(chosen, True)
    with start_bank(chosen, bank, scope) as start:
        number = tracking.register(compiled, built, name, bank=start, embedder=chosen.bank.embedder, environments=env)
    each = next(each for each in tracking.programs(name) if each.version == number)
    emit(each)
    say((f"{name} version {number}", "bold"), " is the champion" if each.champion else " is registered")
    if not each.champion:
        say((f"held-out tasks: {each.held_out or 'not measured'}", "dim"))
        say("make it the champion anyway: ", (f"rb-dspy programs promote {name} {number} --force", "bold"))


@app.command(epilog="Example: `rb-dspy programs promote desk 2`")
@options.shared
def promote(
    name: NameArgument,
    version: Annotated[int, typer.Argument(help="Number of the version.")],
    force: Annotated[bool, typer.Option("--force", help="Promote even if held-out tasks show no improvement.")] = False,
    config: options.Config = None,
    set_: options.Set = None,
) -> None:
    """Make a version the champion, which is used by default."""
    from rb_dspy.cli.program import tracker

    tracker(options.settings(config, set_), True).promote(name, version, force=force)
    emit({"name": name, "version": version, "champion": True})
    say(f"{name} version {version} is the ", ("champion", "bold green"))
