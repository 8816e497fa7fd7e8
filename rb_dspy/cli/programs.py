"""``rb-dspy programs``: compiled programs in MLflow's model registry."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from rb_dspy.cli import registered
from rb_dspy.cli.again import settings_options
from rb_dspy.cli.bank_common import table
from rb_dspy.cli.built import KOption, LessonsScopeOption, MattsOption, give_prompts, lessons, program_for, settings_for
from rb_dspy.cli.common import ConfigOption, JsonOption, SetOption, command_name, out, print_json, settings
from rb_dspy.cli.registered import Version, registry, versions
from rb_dspy.cli.scored import print_diff, prompts_diff
from rb_dspy.cli.tracked import where_to_look
from rb_dspy.text import visible
from rb_dspy.tracking.names import check_name

app = typer.Typer(no_args_is_help=True, help="Compiled programs in MLflow: versions, scores, who is champion.")

NameArgument = Annotated[str, typer.Argument(help="Name of a registered program.")]


@app.command("list")
def list_programs(
    name: Annotated[str | None, typer.Argument(help="Only the versions of this one.")] = None,
    config: ConfigOption = None,
    set_: SetOption = None,
    json_: JsonOption = False,
) -> None:
    """Programs and their versions: which is champion, and what held-out tasks said of each."""
    with registry(settings(config, set_).tracking) as place:
        found = versions(place, name)
    if json_:
        for version in found:
            print_json(_as_json(version))
        return
    shown = table("program", "version", "", "better", "difference, held-out", "made (UTC)")
    for version in found:
        aliases = Text(", ".join(version.aliases), "bold green")
        better = _better(version)
        shown.add_row(Text(version.name), str(version.number), aliases, better, version.difference, version.made)
    out.print(shown if found else "no program is registered yet; [bold]rb-dspy programs register[/] makes one")


@app.command()
def show(
    name: NameArgument,
    version: Annotated[str, typer.Argument(help="A number, or an alias.")] = "champion",
    config: ConfigOption = None,
    set_: SetOption = None,
    json_: JsonOption = False,
) -> None:
    """One version: its scores, settings, language models and prompts."""
    chosen = settings(config, set_)
    with registry(chosen.tracking) as place:
        found = registered.version(place, name, version)
        prompts, kept = registered.kept(found)
    if json_:
        print_json({**_as_json(found), "settings": kept, "prompts": prompts})
        return
    title = f"{found.name} version {found.number}"
    out.print(Text.assemble((title, "bold"), "  ", (", ".join(found.aliases), "bold green"), f"  {found.made} UTC"))
    out.print(Text(found.summary), soft_wrap=True)
    if found.forced:
        out.print(Text(found.forced, "yellow"))
    matts = kept.get("matts")
    out.print(Text(f"program: {'ReasoningBank' if matts is None else 'MaTTS {mode}, k = {k}'.format(**matts)}"))
    models = kept.get("backbones") or {}
    if isinstance(models, dict):
        models = ", ".join(f"{role} {config['model']}" for role, config in models.items())
    out.print(Text(f"models: {models or 'none named'}"))
    for predictor, prompt in prompts.items():
        demos = len(prompt["demos"])
        out.print(Text.assemble("\n", (predictor, "bold"), f"  {demos} demonstrations" if demos else ""))
        out.print(Text(visible(prompt["instructions"])), soft_wrap=not out.is_terminal)
    out.print(Text(f'\nin Python: Tracker(config).load("models:/{found.name}/{found.number}")', "dim"))
    out.print(where_to_look(chosen.tracking), soft_wrap=True)


@app.command()
def diff(
    name: NameArgument,
    old: Annotated[str, typer.Argument(help="A version, by number or alias.")],
    new: Annotated[str, typer.Argument(help="Another; default: the champion.")] = "champion",
    config: ConfigOption = None,
    set_: SetOption = None,
    json_: JsonOption = False,
) -> None:
    """What is different in the prompts of two versions."""
    with registry(settings(config, set_).tracking) as place:
        before, after = (registered.version(place, name, which) for which in (old, new))
        texts = [registered.kept(version)[0] for version in (before, after)]
    labels = (f"version {before.number}", f"version {after.number}")
    told = prompts_diff(texts[0], texts[1], labels)
    if json_:
        print_json({"old": _as_json(before), "new": _as_json(after), "diff": told})
        return
    out.print(Text(f"{name} {before.number} → {after.number}", "bold"))
    if told:
        print_diff(out, told)
    else:
        out.print("the prompts are the same")


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
    with registry(settings(config, set_).tracking) as place:
        found = registered.version(place, name, version)
        from rb_dspy.tracking.registry import promote as promoted

        promoted(place, name, found.number, force=force)
        found = registered.version(place, name, str(found.number))
    if json_:
        print_json(_as_json(found))
        return
    out.print(Text.assemble(f"{name} version {found.number} is ", ("champion", "bold green")))
    if found.forced:
        out.print(Text(f"kept with it: {found.forced}", "yellow"))


@app.command()
def register(
    name: Annotated[str, typer.Argument(help="What to register it as; a name that is known gets a new version.")],
    file: Annotated[Path, typer.Argument(help="What rb-dspy compile saved, or save_program.")],
    matts: MattsOption = None,
    k: KOption = None,
    bank: Annotated[Path | None, typer.Option("--bank", help="Put the lessons of this bank into it.")] = None,
    scope: LessonsScopeOption = None,
    config: ConfigOption = None,
    set_: SetOption = None,
    json_: JsonOption = False,
) -> None:
    """Keep a program in MLflow, with its settings and models' names; the champion, if it is shown to be better."""
    check_name(name)
    chosen = settings_for(config, set_, matts, k)
    program = program_for(chosen)
    compiled, _ = give_prompts(program, file, whole=True)
    with lessons(chosen, bank, scope) as held, registry(chosen.tracking, create=True) as place:
        from rb_dspy.tracking.registry import register as kept

        before = registered.champion(place, name)
        number = kept(
            place, compiled, program, name, backbones=chosen.backbones, bank=held, embedder=chosen.bank.embedder
        )
        found = registered.version(place, name, str(number))
    if json_:
        print_json(_as_json(found))
        return
    head = Text(f"{name} version {number}", "bold")
    there = settings_options(config, set_, only="tracking")
    promotion = ""
    if "champion" in found.aliases:
        instead = f", in place of version {before.number}" if before is not None else ""
        out.print(Text.assemble(head, " is ", ("champion", "bold green"), instead))
    else:
        why = "held-out tasks do not say that it is better"
        if found.improved and before is not None:
            why = f"it is better than what it came from, but not known to be better than version {before.number}"
            promotion = " ".join([command_name(), "programs promote", name, str(number), *there])
        out.print(Text.assemble(head, f" is registered, not champion: {why}"), soft_wrap=True)
    out.print(Text(found.summary, "dim"), soft_wrap=True)
    look = " ".join([command_name(), "programs show", name, str(number), *there])
    out.print(Text.assemble("look at it: ", (look, "bold")), soft_wrap=True)
    if promotion:
        out.print(Text.assemble("make it champion all the same: ", (promotion, "bold")), soft_wrap=True)


def _better(version: Version) -> Text:
    if version.improved:
        return Text("yes", "green")
    told = "not measured" if not version.held_out else "not shown"
    return Text(f"{told}, forced" if version.forced else told, "yellow")


def _as_json(version: Version) -> dict[str, object]:
    return asdict(version)
