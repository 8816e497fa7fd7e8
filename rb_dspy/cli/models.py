"""``rb-dspy models``: the language models that run on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from rb_dspy.backbones import models
from rb_dspy.cli.common import err, out, print_json
from rb_dspy.cli.options import JsonLinesOption, JsonOption

app = typer.Typer(no_args_is_help=True, help="The language models that run on this machine.")


@app.command("list")
def list_models(
    verify: Annotated[bool, typer.Option("--verify", help="Compare what is here with its checksum; slow.")] = False,
    json_: JsonLinesOption = False,
) -> None:
    """The catalogue, and what of it is here."""
    table = Table("name", "size", "licence", "here", "SHA-256", box=None, pad_edge=False, header_style="bold")
    for spec in models.catalogue():
        status = models.status(spec.name, verify=verify)
        if json_:
            print_json({**spec.model_dump(mode="json"), "status": status})
        hint = f"[dim]rb-dspy models get {spec.name}[/]"
        mark = {"present": "[green]yes[/]", "absent": hint, "damaged": f"[red]damaged:[/] {hint}"}[status]
        table.add_row(spec.name, f"{spec.size / 1e6:,.0f} MB", spec.licence, mark, f"[dim]{spec.sha256[:12]}…[/]")
    if not json_:
        out.print(table)


@app.command()
def get(
    name: Annotated[str, typer.Argument(help="A name from rb-dspy models list.")],
    source: Annotated[Path | None, typer.Option("--from", help="A file you already have; it is copied.")] = None,
    verify: Annotated[bool, typer.Option("--verify", help="Check one that is here, replace a bad one.")] = False,
    json_: JsonOption = False,
) -> None:
    """Download a model, unless it is here. Finished parts of an interrupted download are not fetched again."""
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=err, transient=True) as progress:
        bar = progress.add_task(name, total=None)

        def show(done: int, total: int, what: str) -> None:
            progress.update(bar, completed=done, total=total, description=what)

        path = models.get(name, source=source, progress=show, verify=verify)
    if json_:
        print_json({"name": name, "path": path})
    else:
        out.print(Text(f"{name} is here: {path}"), soft_wrap=True)
