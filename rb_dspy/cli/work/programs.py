"""What ``rb-dspy programs`` does to look into the registry, and to make a version the champion."""

from __future__ import annotations

import shutil
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from rich.text import Text

from rb_dspy.cli import registered
from rb_dspy.cli.again import as_argument, options
from rb_dspy.cli.bank_common import table
from rb_dspy.cli.common import command_name, out, print_json
from rb_dspy.cli.registered import Version, registry, versions
from rb_dspy.cli.scored import print_diff, prompts_diff
from rb_dspy.cli.tracked import where_to_look
from rb_dspy.compile.state import Prompts
from rb_dspy.config import Settings, TrackingConfig
from rb_dspy.errors import InputError
from rb_dspy.files import atomic_write
from rb_dspy.text import counted, printable
from rb_dspy.tracking.addresses import registry_options, without_secrets
from rb_dspy.tracking.described import uncompiled

if TYPE_CHECKING:
    from rb_dspy.tracking.where import Place


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
    if found:
        out.print(shown)
        return
    make = f"{command_name()} programs register NAME FILE{registry_options(chosen.tracking.uri)}"
    out.print(Text.assemble("no program is registered yet; ", (make, "bold"), " makes one"), soft_wrap=True)


def show_program(
    chosen: Settings, name: str, version: str | None, *, whole: bool, keep: list[str], json_: bool
) -> None:
    """All that is kept with one version; where none is named, with the champion, or with the newest.

    ``whole``: with the prompts that were not compiled, too, of which there are else only the names.
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
    if found.compile_run:
        out.print(Text(f"compiled in MLflow's run {found.compile_run}", "dim"))
    if found.forced:
        out.print(Text(found.forced, "yellow"))
    matts = kept.get("matts")
    out.print(Text(f"program: {'ReasoningBank' if matts is None else 'MaTTS {mode}, k = {k}'.format(**matts)}"))
    models = kept.get("backbones") or {}
    if isinstance(models, dict):
        models = ", ".join(f"{role} {config['model']}" for role, config in models.items())
    out.print(Text(f"models: {models or 'none named'}"))
    if found.scope:
        get = " ".join([command_name(), "programs lessons", found.name, str(found.number), *keep])
        out.print(Text(f"{counted(found.lessons, 'lesson')} of scope {found.scope} inside: {get}"), soft_wrap=True)
    _print_prompts(prompts, whole=whole)
    uri = f"models:/{found.name}/{found.number}"
    scaled = options(matts=matts["mode"], k=matts["k"]) if isinstance(matts, dict) else []
    run = " ".join([command_name(), "run --program", as_argument(uri), *scaled, *keep])
    load = f'rb_dspy.Tracker({_tracking(chosen.tracking)}).load("{uri}", backbones={{"agent": ...}})'
    out.print(Text(f"\nuse it: {run}", "dim"), soft_wrap=True)
    out.print(Text(f"in Python: {load}", "dim"), soft_wrap=True)
    out.print(where_to_look(chosen.tracking), soft_wrap=True)


def _print_prompts(prompts: Prompts, *, whole: bool) -> None:
    first = uncompiled()
    left_out = []
    for predictor, prompt in prompts.items():
        compiled = prompt != first.get(predictor)
        if not (compiled or whole):
            left_out.append(predictor)
            continue
        demos = len(prompt["demos"])
        how = ("compiled", "green") if compiled else ("not compiled", "dim")
        shown = f", {counted(demos, 'demonstration')}" if demos else ""
        out.print(Text.assemble("\n", (predictor, "bold"), "  ", how, shown))
        out.print(Text(printable(prompt["instructions"])), soft_wrap=not out.is_terminal)
    if left_out:
        out.print(Text(f"\nnot compiled: {', '.join(left_out)} (--all shows them)"), soft_wrap=True)


def compare_programs(chosen: Settings, name: str, old: str, new: str | None, *, json_: bool) -> None:
    """The prompts of two versions, as a diff; of one and the uncompiled ones, where ``old`` or ``new`` says so, or
    where there is no champion besides ``old`` to compare it with."""
    with registry(chosen.tracking) as place:
        before, after = (_version(place, name, which) for which in (old, new))
        if new is None and (after is None or after == before):
            before, after = None, before or registered.version(place, name, registered.CHAMPION)
        texts = [uncompiled() if each is None else registered.kept(each)[0] for each in (before, after)]
    if before is None or after is None:  # without MaTTS there are fewer steps, which is no difference of prompts
        both = set(texts[0]) & set(texts[1])
        texts = [{predictor: prompt for predictor, prompt in each.items() if predictor in both} for each in texts]
    numbers = ["uncompiled" if each is None else str(each.number) for each in (before, after)]
    labels = ["uncompiled" if each is None else f"version {each.number}" for each in (before, after)]
    told = prompts_diff(texts[0], texts[1], (labels[0], labels[1]))
    if json_:
        sides = ["uncompiled" if each is None else asdict(each) for each in (before, after)]
        print_json({"old": sides[0], "new": sides[1], "diff": told})
        return
    out.print(Text(f"{name} {' → '.join(numbers)}", "bold"))
    if told:
        print_diff(out, told)
    else:
        out.print("the prompts are the same")


def _version(place: Place, name: str, which: str | None) -> Version | None:
    """None: the uncompiled prompts, or no champion where none is asked for by name."""
    if which == "uncompiled":
        return None
    return registered.champion(place, name) if which is None else registered.version(place, name, which)


def write_lessons(chosen: Settings, name: str, version: str | None, file: Path, *, json_: bool) -> None:
    """The lessons inside a version, into a file of its own."""
    with TemporaryDirectory(prefix="rb-dspy-") as folder:
        with registry(chosen.tracking) as place:
            found = registered.version(place, name, version)
            lessons = registered.lessons_file(found, folder)
        if lessons is None:
            raise InputError(f"{name} version {found.number}: no lessons inside; programs register --bank puts some in")
        with lessons.open("rb") as kept, atomic_write(file) as written:
            shutil.copyfileobj(kept, written)
    if json_:
        print_json({"path": file, "lessons": found.lessons, "scope": found.scope, "version": found.number})
        return
    out.print(Text(f"{counted(found.lessons, 'lesson')} of scope {found.scope} written to {file}"), soft_wrap=True)
    put = " ".join([command_name(), "bank import", as_argument(file), *options(scope=found.scope or None)])
    out.print(Text.assemble("put them into a bank: ", (put, "bold")), soft_wrap=True)


def promote_program(chosen: Settings, name: str, version: str, *, force: bool, json_: bool) -> None:
    """Make a version the champion; with ``force`` also where it is not shown to be better."""
    with registry(chosen.tracking) as place:
        found = registered.version(place, name, version)
        from rb_dspy.tracking.promotion import Remedies, promote as promoted

        compiling, there = f"{command_name()} compile", registry_options(chosen.tracking.uri)
        remedies = Remedies(
            measure=f"register what {compiling} saves",
            more=f"{compiling} with more tasks or a larger --budget may show it",
            onward=f"compile on from the champion: {compiling} --program models:/{name}@champion{there}",
            force="make it champion all the same with --force",
        )
        promoted(place, name, found.number, force=force, remedies=remedies)
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
