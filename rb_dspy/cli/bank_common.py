"""What the bank commands share: opening a bank that is there, and showing what it holds."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from rb_dspy.bank import MemoryBank
from rb_dspy.cli.bank_embedder import named, of_any_embedder
from rb_dspy.cli.common import ConfigOption, out, settings
from rb_dspy.config import Settings
from rb_dspy.errors import InputError
from rb_dspy.schema import Experience, MemoryItem, Removal

AtOption = Annotated[
    str | None, typer.Option("--at", metavar="NAME", help="As it was at this snapshot; see `bank snapshots`.")
]
NoteOption = Annotated[str, typer.Option("--note", help="Why; kept in the history.")]

_LISTED = 20
"""How many experiences, and how many lessons, are shown of what is taken away."""


def opened(
    config: ConfigOption, bank: str | None, scope: str | None, at: str | None = None, *, embeds: bool = False
) -> MemoryBank:
    """The bank that already exists: neither looking into one nor changing what it holds ever makes one.

    Only what ``embeds`` needs the bank's own embedder; all else works on a bank of any.
    """
    chosen = chosen_settings(config, bank, scope).bank
    if not embeds:
        return of_any_embedder(chosen.url, chosen.scope, at)
    with named():
        return MemoryBank.open(chosen.url, scope=chosen.scope, embedder=chosen.embedder, create=False, at=at)


def chosen_settings(config: ConfigOption, bank: str | None, scope: str | None) -> Settings:
    """The settings, with the bank and the scope of the command's own options."""
    return settings(config, None, bank__url=bank, bank__scope=scope)


def table(*headings: str) -> Table:
    """A table without lines. Ids are never cut: they are what other commands take."""
    made = Table(box=None, pad_edge=False, header_style="bold")
    for heading in headings:
        made.add_column(heading, no_wrap=heading == "id", min_width=21 if heading == "id" else None)
    return made


def show_item(item: MemoryItem) -> None:
    """One lesson whole, and where it comes from."""
    out.print(Text.assemble((item.title, "bold"), "  ", (item.id, "dim")))
    out.print(Text(f"{item.description}\n\n{item.content}\n"))
    for number, source in enumerate(item.provenances):
        parts = [f"from a {item.polarity}"] if number == 0 else ["and again"]
        parts += [f"task {source.task_id}", f"experience {source.experience_id}"]
        parts += [f"run {source.run_id}"] if source.run_id else []
        parts += [f"distilled by {source.distiller}"] if source.distiller else []
        parts += [f"brought by {source.origin}"] if source.origin else []
        out.print(Text(" · ".join(parts), "dim"))


def show_experience(experience: Experience) -> None:
    """One experience whole: its task, rollouts and verdicts, and its lessons."""
    out.print(Text.assemble((experience.task.id, "bold"), "  ", (experience.id, "dim")))
    out.print(Text(experience.task.instruction))
    facts = {"run": experience.run_id, "brought by": experience.origin, "at": experience.created_at}
    told = " · ".join(f"{name} {value}" for name, value in facts.items() if value)
    out.print(Text(told, "dim"), end="\n" if told else "")
    for trajectory, verdict in zip(experience.trajectories, experience.verdicts, strict=True):
        why = f"({trajectory.stop_reason})"
        out.print(Text.assemble("\n", (f"rollout {trajectory.rollout_id}", "bold"), " ", (why, "dim")))
        out.print(Text(trajectory.first_observation))
        for number, step in enumerate(trajectory.steps, 1):
            if step.thought:
                out.print(Text(f"{number}. {step.thought}", "dim"))
            out.print(Text(f"{number}. {step.action}", "cyan"))
            if step.observation:
                out.print(Text(step.observation))
        out.print(Text.assemble("\nverdict: ", (verdict.label, "bold"), "  ", (verdict.reasons, "dim")))
    if experience.shown:
        out.print(Text.assemble("\nits agent had been shown: ", (", ".join(experience.shown), "dim")))
    for item in experience.items:
        out.print()
        show_item(item)
    if experience.note:
        out.print(Text(f"\n{experience.note}", "yellow"))


def show_removal(bank: MemoryBank, removal: Removal, verb: str) -> None:
    """What goes, or would go; ``bank`` still holds it."""
    numbers = {"experience": removal.experiences, "lesson": removal.items, "pending rollout": removal.ingestions}
    told = ", ".join(counted(len(ids), what) for what, ids in numbers.items() if ids)
    out.print(f"[bold]{verb}[/] {told or 'nothing'}")
    shown = table("id", "what")
    for ids in (removal.experiences, removal.items):  # of pending ones the bank says nothing by id
        for id in ids[:_LISTED]:
            shown.add_row(id, Text(line(_what(bank, id), max(20, out.width - 24))))
        if len(ids) > _LISTED:
            shown.add_row(f"[dim]and {len(ids) - _LISTED:,} more[/]", "")
    if shown.row_count:
        out.print(shown)


def show_below(text: Text) -> None:
    """Text that belongs to the line before it: set in, also where it goes on to another line."""
    out.print(Padding(text, (0, 0, 0, 2), expand=False))


def counted(number: int, what: str) -> str:
    """``1 lesson``, ``2,000 lessons``."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def line(text: str, limit: int = 80) -> str:
    """``text`` on one line, its end cut."""
    joined = " ".join(text.split())
    return joined if len(joined) <= limit else f"{joined[: limit - 1]}…"


def _what(bank: MemoryBank, id: str) -> str:
    try:
        found = bank.get(id)
    except InputError:  # somebody else took it away just now
        return ""
    return found.title if isinstance(found, MemoryItem) else f"{found.task.id}: {found.task.instruction}"
