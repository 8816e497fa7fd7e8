"""What the bank commands share: their settings, and how they show what a bank holds."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from rb_dspy.cli.common import out, settings
from rb_dspy.config import Settings
from rb_dspy.errors import BankError, InputError
from rb_dspy.schema import Change, Experience, MemoryItem, Removal, Step
from rb_dspy.text import counted

if TYPE_CHECKING:
    from rb_dspy.bank import MemoryBank

_LISTED = 20
"""How many experiences, and how many lessons, are shown of what is taken away."""

FEW = 5
"""How many times of those that a lesson was learned are shown."""


def chosen_settings(config: Path | None, bank: str | None, scope: str | None) -> Settings:
    """The settings, with the bank and the scope of the command's own options."""
    return settings(config, None, bank__url=bank, bank__scope=scope)


def table(*headings: str) -> Table:
    """A table without lines. Ids are never cut: they are what other commands take."""
    made = Table(box=None, pad_edge=False, header_style="bold")
    for heading in headings:
        made.add_column(heading, no_wrap=heading == "id", min_width=21 if heading == "id" else None)
    return made


def show_item(item: MemoryItem, changes: Iterable[Change] = (), *, every: bool = False) -> None:
    """One lesson whole, where it comes from, and which of its ``changes`` were edits: these words are not a model's.

    Of where it comes from, the first few, unless ``every`` is wanted.
    """
    out.print(Text.assemble((item.title, "bold"), "  ", (item.id, "dim")))
    out.print(Text(f"{item.description}\n\n{item.content}\n"))
    shown = item.provenances[: None if every else FEW]
    for number, source in enumerate(shown):
        parts = [f"from a {item.polarity}"] if number == 0 else ["and again"]
        parts += [f"task {source.task_id}", f"experience {source.experience_id}"]
        parts += [f"run {source.run_id}"] if source.run_id else []
        parts += [f"distilled by {source.distiller}"] if source.distiller else []
        parts += [f"brought by {source.origin}"] if source.origin else []
        out.print(Text(" · ".join(parts), "dim"))
    if len(shown) < len(item.provenances):
        out.print(Text(f"and {len(item.provenances) - len(shown):,} more; bank show --all lists them", "dim"))
    for change in changes:
        if change.kind == "edit":
            why = f": {change.note}" if change.note else ""
            out.print(Text(f"edited {change.created_at}{why}", "yellow"))


def show_experience(experience: Experience, changes: Callable[[str], Iterable[Change]], *, every: bool) -> None:
    """One experience whole: its task, rollouts and verdicts, and its lessons with their ``changes``."""
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
            _show_step(number, step)
        out.print(Text.assemble("\nverdict: ", (verdict.label, "bold"), "  ", (verdict.reasons, "dim")))
    if experience.shown:
        out.print(Text.assemble("\nits agent had been shown: ", (", ".join(experience.shown), "dim")))
    for item in experience.items:
        out.print()
        show_item(item, changes(item.id), every=every)
    if experience.note:
        out.print(Text(f"\n{experience.note}", "yellow"))


def _show_step(number: int, step: Step) -> None:
    """One turn, as a run shows it, but whole: what was thought, what was done after →, what was seen."""
    parts = [Text(step.thought, "dim")] if step.thought else []
    parts += [Text(f"→ {step.action}", "cyan")]
    parts += [Text(step.observation, "dim")] if step.observation else []
    grid = Table.grid(padding=(0, 1))
    grid.add_column(width=9, justify="right", style="bold")
    grid.add_column(overflow="fold")
    for place, part in enumerate(parts):
        grid.add_row("" if place else f"step {number}", part)
    out.print(grid)


def show_removal(bank: MemoryBank, removal: Removal, verb: str) -> None:
    """What goes, or would go; ``bank`` still holds it."""
    out.print(f"[bold]{verb}[/] {removal_counts(removal)}")
    shown = table("id", "what")
    for ids in (removal.experiences, removal.items):  # of pending ones the bank says nothing by id
        for id in ids[:_LISTED]:
            shown.add_row(id, Text(line(_what(bank, id), max(20, out.width - 24))))
        if len(ids) > _LISTED:
            shown.add_row(f"[dim]and {len(ids) - _LISTED:,} more[/]", "")
    if shown.row_count:
        out.print(shown)


def removal_counts(removal: Removal) -> str:
    """How much goes."""
    numbers = {"experience": removal.experiences, "lesson": removal.items, "pending rollout": removal.pending}
    return ", ".join(counted(len(ids), what) for what, ids in numbers.items() if ids) or "nothing"


def show_below(text: Text) -> None:
    """Text that belongs to the line before it: set in, also where it goes on to another line."""
    out.print(Padding(text, (0, 0, 0, 2), expand=False))


def line(text: str, limit: int = 80) -> str:
    """``text`` on one line, its end cut."""
    joined = " ".join(text.split())
    return joined if len(joined) <= limit else f"{joined[: limit - 1]}…"


def _what(bank: MemoryBank, id: str) -> str:
    try:
        found = bank.get(id)
    except InputError:  # somebody else took it away just now
        return ""
    except BankError:  # of one that is damaged there is nothing to show, and it can go all the same
        return "damaged: it cannot be shown"
    return found.title if isinstance(found, MemoryItem) else f"{found.task.id}: {found.task.instruction}"
