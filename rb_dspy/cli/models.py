"""``rb-dspy models``: download local language models; check that the model of every role answers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from rb_dspy.cli import options
from rb_dspy.cli.output import err, out, print_json, say, table
from rb_dspy.errors import BackboneError

app = typer.Typer(no_args_is_help=True, help="Language models: local files, and a check of every role.")


@app.command("list")
def list_models(
    verify: Annotated[bool, typer.Option("--verify", help="Compute the checksums of files; slow.")] = False,
    json_: options.Json = False,
) -> None:
    """List models that can run on this machine, and which are downloaded."""
    from rb_dspy.backbones import models

    shown = table("name", "size", "license", "here", "SHA-256")
    for spec in models.catalog():
        status = models.status(spec.name, verify=verify)
        if json_:
            print_json({**spec.model_dump(mode="json"), "status": status})
        hint = f"[dim]rb-dspy models get {spec.name}[/]"
        mark = {"present": "[green]yes[/]", "absent": hint, "damaged": f"[red]damaged:[/] {hint}"}[status]
        shown.add_row(spec.name, f"{spec.size / 1e6:,.0f} MB", spec.license, mark, f"[dim]{spec.sha256[:12]}…[/]")
    if not json_:
        out.print(shown)


@app.command()
def get(
    name: Annotated[str, typer.Argument(help="A name from rb-dspy models list.")],
    source: Annotated[Path | None, typer.Option("--from", help="Copy this file instead of downloading.")] = None,
    verify: Annotated[bool, typer.Option("--verify", help="Check an existing file; replace it if damaged.")] = False,
    json_: options.Json = False,
) -> None:
    """Download a model, unless it exists. Continues an interrupted download."""
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    from rb_dspy.backbones import models

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as progress:
        bar = progress.add_task(name, total=None)

        def show(done: int, total: int, what: str) -> None:
            progress.update(bar, completed=done, total=total, description=what)

        path = models.get(name, source=source, progress=show, verify=verify)
    print_json({"name": name, "path": path}) if json_ else say(f"{name} is here: {path}")


@app.command()
def check(config: options.Config = None, set_: options.Set = None, json_: options.Json = False) -> None:
    """Call the model of each role once; shows its answer and time, or the problem."""
    from dataclasses import asdict

    from rb_dspy.backbones.check import check as probes

    shown = table("role", "model", "seconds", "answer")
    problems: dict[str, list[str]] = {}
    with err.status("calling each model once …"):
        for probe in probes(options.settings(config, set_).backbones):
            if json_:
                print_json(asdict(probe))
            if probe.problem:
                problems.setdefault(probe.problem, []).append(probe.role)
            answer = Text("no answer", "red") if probe.problem else Text(probe.answer)
            shown.add_row(probe.role, Text(probe.model), f"{probe.seconds:.1f}", answer)
    if not json_:
        out.print(shown)
    if problems:
        raise BackboneError("; ".join(f"{', '.join(roles)}: {problem}" for problem, roles in problems.items()))
