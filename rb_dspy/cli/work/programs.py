"""What ``rb-dspy programs`` does to look into the registry, and to make a version the champion."""

from __future__ import annotations

from dataclasses import asdict

from rich.text import Text

from rb_dspy.addresses import without_secrets
from rb_dspy.cli import registered
from rb_dspy.cli.again import as_argument, options
from rb_dspy.cli.bank_common import table
from rb_dspy.cli.common import command_name, out, print_json
from rb_dspy.cli.registered import Version, registry, versions
from rb_dspy.cli.scored import print_diff, prompts_diff
from rb_dspy.cli.tracked import where_to_look
from rb_dspy.config import Settings, TrackingConfig
from rb_dspy.text import visible


def list_programs(chosen: Settings, name: str | None, *, json_: bool) -> None:
    """The versions of ``name``, or of every program."""
    with registry(chosen.tracking) as place:
        found = versions(place, name)
    if json_:
        for version in found:
            print_json(asdict(version))
        return
    shown = table("program", "", "", "better", "difference, held-out")
    shown.columns[3].no_wrap = True
    for version in found:
        aliases = Text(", ".join(version.aliases), "bold green")
        better = _better(version)
        of = version.measure.partition(";")[0]
        about = Text(f"{of}{' · ' if of else ''}made {version.made} UTC", "dim")
        told = Text("\n").join([Text(version.difference), about] if version.difference else [about])
        shown.add_row(Text(version.name), str(version.number), aliases, better, told)
    out.print(shown if found else "no program is registered yet; [bold]rb-dspy programs register[/] makes one")


def show_program(chosen: Settings, name: str, version: str | None, *, keep: list[str], json_: bool) -> None:
    """All that is kept with one version; where none is named, with the champion, or with the newest.

    ``keep``: options with which another command finds the registry as this one does.
    """
    with registry(chosen.tracking) as place:
        found = registered.version(place, name, version)
        prompts, kept = registered.kept(found)
    if json_:
        print_json({**asdict(found), "settings": kept, "prompts": prompts})
        return
    title = f"{found.name} version {found.number}"
    aliases = (", ".join(found.aliases), "bold green")
    if version is None and "champion" not in found.aliases:
        aliases = ("no champion yet; this is the newest", "yellow")
    out.print(Text.assemble((title, "bold"), "  ", aliases, f"  {found.made} UTC"))
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
    uri = f"models:/{found.name}/{found.number}"
    scaled = options(matts=matts["mode"], k=matts["k"]) if isinstance(matts, dict) else []
    run = " ".join([command_name(), "run --program", as_argument(uri), *scaled, *keep])
    load = f'rb_dspy.Tracker({_tracking(chosen.tracking)}).load("{uri}", backbones={{"agent": ...}})'
    out.print(Text(f"\nuse it: {run}", "dim"), soft_wrap=True)
    out.print(Text(f"in Python: {load}", "dim"), soft_wrap=True)
    out.print(where_to_look(chosen.tracking), soft_wrap=True)


def compare_programs(chosen: Settings, name: str, old: str, new: str, *, json_: bool) -> None:
    """The prompts of two versions, as a diff."""
    with registry(chosen.tracking) as place:
        before, after = (registered.version(place, name, which) for which in (old, new))
        texts = [registered.kept(version)[0] for version in (before, after)]
    labels = (f"version {before.number}", f"version {after.number}")
    told = prompts_diff(texts[0], texts[1], labels)
    if json_:
        print_json({"old": asdict(before), "new": asdict(after), "diff": told})
        return
    out.print(Text(f"{name} {before.number} → {after.number}", "bold"))
    if told:
        print_diff(out, told)
    else:
        out.print("the prompts are the same")


def promote_program(chosen: Settings, name: str, version: str, *, force: bool, json_: bool) -> None:
    """Make a version the champion; with ``force`` also where it is not shown to be better."""
    with registry(chosen.tracking) as place:
        found = registered.version(place, name, version)
        from rb_dspy.tracking.registry import promote as promoted

        promoted(place, name, found.number, force=force)
        found = registered.version(place, name, str(found.number))
    if json_:
        print_json(asdict(found))
        return
    out.print(Text.assemble(f"{name} version {found.number} is ", ("champion", "bold green")))
    if found.forced:
        out.print(Text(f"kept with it: {found.forced}", "yellow"))


def _tracking(config: TrackingConfig) -> str:
    """The argument of a ``Tracker`` for the registry that was looked at, without what is secret in an address."""
    given = {"uri": without_secrets(config.uri, "..."), "experiment": config.experiment}
    usual = TrackingConfig()
    told = ", ".join(f'{key}="{value}"' for key, value in given.items() if value != getattr(usual, key))
    return f"rb_dspy.TrackingConfig({told})" if told else ""


def _better(version: Version) -> Text:
    if version.improved:
        return Text("yes", "green")
    told = "not measured" if not version.held_out else "not shown"
    return Text(f"{told}, forced" if version.forced else told, "yellow")
