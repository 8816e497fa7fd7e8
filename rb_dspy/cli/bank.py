"""``rb-dspy bank``: look into a bank."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from rb_dspy.bank import MemoryBank
from rb_dspy.cli.common import BankOption, ConfigOption, JsonOption, ScopeOption, out, print_json, settings
from rb_dspy.schema import Experience, MemoryItem

app = typer.Typer(no_args_is_help=True, help="Look into a bank.")


@app.command("list")
def list_items(
    config: ConfigOption = None,
    bank: BankOption = None,
    scope: ScopeOption = None,
    last: Annotated[int | None, typer.Option("--last", min=1, help="Only the newest N.")] = None,
    json_: JsonOption = False,
) -> None:
    """The lessons, oldest first."""
    with _open(config, bank, scope) as opened:
        items = list(opened.items())[-last if last else 0 :]
    if json_:
        for item in items:
            print_json(item)
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("id", no_wrap=True, min_width=21)  # whole, whatever the width: it is what `show` takes
    for heading in ("from", "title", "description"):
        table.add_column(heading)
    for item in items:
        colour = "green" if item.polarity == "success" else "yellow"
        table.add_row(
            item.id, f"[{colour}]{item.polarity}[/]", escape(item.title), f"[dim]{escape(item.description)}[/]"
        )
    out.print(table if items else "this scope holds no lessons yet; [bold]rb-dspy run[/] makes some")


@app.command()
def show(
    id: Annotated[str, typer.Argument(help="Id of an item or of an experience.")],
    config: ConfigOption = None,
    bank: BankOption = None,
    scope: ScopeOption = None,
    json_: JsonOption = False,
) -> None:
    """One lesson, or one experience with its whole trajectory."""
    with _open(config, bank, scope) as opened:
        found = opened.get(id)
    if json_:
        print_json(found)
    elif isinstance(found, MemoryItem):
        _show_item(found)
    else:
        _show_experience(found)


@app.command()
def search(
    query: Annotated[str, typer.Argument(help="A task, in words.")],
    k: Annotated[int, typer.Option("-k", min=1, help="How many.")] = 5,
    items: Annotated[bool, typer.Option("--items", help="Rank single lessons instead of experiences.")] = False,
    config: ConfigOption = None,
    bank: BankOption = None,
    scope: ScopeOption = None,
    json_: JsonOption = False,
) -> None:
    """What an agent would be shown for a task."""
    with _open(config, bank, scope) as opened:
        found = opened.retrieve(query, k=k, unit="item" if items else "experience")
    if json_:
        for match in found:
            print_json(match)
        return
    for match in found:
        out.print(f"[bold]{match.score:.3f}[/]  {match.experience_id}  [dim]{escape(_line(match.instruction))}[/]")
        for item in match.items:
            out.print(f"       • {escape(item.title)} [dim]({item.id})[/]")
    if not found:
        out.print("nothing found: this scope holds no lessons yet")


@app.command()
def stats(
    config: ConfigOption = None, bank: BankOption = None, scope: ScopeOption = None, json_: JsonOption = False
) -> None:
    """Counts, sizes, and which embedder the bank belongs to."""
    with _open(config, bank, scope) as opened:
        found = opened.stats()
    if json_:
        print_json(found)
        return
    table = Table(box=None, show_header=False, pad_edge=False)
    for name, value in found.model_dump().items():
        shown = ", ".join(f"{key}: {count}" for key, count in value.items()) if isinstance(value, dict) else str(value)
        table.add_row(name.replace("_", " "), escape(shown))
    out.print(table)


def _open(config: ConfigOption, bank: BankOption, scope: ScopeOption) -> MemoryBank:
    """The bank that already exists: looking never creates one."""
    chosen = settings(config, None, bank__url=bank, bank__scope=scope).bank
    return MemoryBank.open(chosen.url, scope=chosen.scope, embedder=chosen.embedder, create=False)


def _show_item(item: MemoryItem) -> None:
    out.print(f"[bold]{escape(item.title)}[/]\n{escape(item.description)}\n\n{escape(item.content)}\n")
    source = item.provenance
    out.print(
        f"[dim]from a {item.polarity} · task {escape(source.task_id)} · experience {source.experience_id}", end=""
    )
    out.print(f"[dim] · distilled by {escape(source.distiller)}" if source.distiller else "")


def _show_experience(experience: Experience) -> None:
    out.print(f"[bold]{escape(experience.task.id)}[/]\n{escape(experience.task.instruction)}")
    for trajectory, verdict in zip(experience.trajectories, experience.verdicts, strict=True):
        out.print(f"\n[bold]rollout {trajectory.rollout_id}[/] [dim]({trajectory.stop_reason})[/]")
        out.print(escape(trajectory.first_observation))
        for number, step in enumerate(trajectory.steps, 1):
            if step.thought:
                out.print(f"[dim]{number}. {escape(step.thought)}[/]")
            out.print(f"[cyan]{number}. {escape(step.action)}[/]")
            if step.observation:
                out.print(escape(step.observation))
        out.print(f"\nverdict: [bold]{verdict.label}[/]  [dim]{escape(verdict.reasons)}[/]")
    for item in experience.items:
        out.print()
        _show_item(item)
    if experience.note:
        out.print(f"\n[yellow]{escape(experience.note)}[/]")


def _line(text: str, limit: int = 80) -> str:
    line = " ".join(text.split())
    return line if len(line) <= limit else f"{line[: limit - 1]}…"
