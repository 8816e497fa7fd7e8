"""``rb-dspy bank``: look into a bank. What changes one is in ``bank_change``, what keeps one whole in ``bank_keep``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal, get_args

import typer
from rich.table import Table
from rich.text import Text

from rb_dspy.cli import bank_change, bank_keep, work
from rb_dspy.cli.again import bank_command
from rb_dspy.cli.bank_common import (
    FEW,
    chosen_settings,
    line,
    show_below,
    show_experience,
    show_item,
    table,
)
from rb_dspy.cli.bank_experiences import show_experiences
from rb_dspy.cli.common import out, print_json
from rb_dspy.cli.options import AtOption, BankOption, ConfigOption, JsonLinesOption, JsonOption, ScopeOption
from rb_dspy.errors import InputError
from rb_dspy.schema import Change, Experience, MemoryDraft, MemoryItem
from rb_dspy.text import counted

Mode = Literal["dense", "lexical", "hybrid"]
"""As in ``rb_dspy.bank.retrieval``, which imports numpy."""

AllOption = Annotated[bool, typer.Option("--all", help=f"Every time that it was learned, not the first {FEW} only.")]

app = typer.Typer(no_args_is_help=True, help="Look into a bank, change it, keep it.")


@app.command("list")
def list_items(
    config: ConfigOption = None,
    bank: BankOption = None,
    scope: ScopeOption = None,
    at: AtOption = None,
    last: Annotated[int | None, typer.Option("--last", min=1, help="Only the newest N.")] = None,
    experiences: Annotated[
        bool, typer.Option("--experiences", help="The tasks that were learned from instead, with or without lessons.")
    ] = False,
    json_: JsonLinesOption = False,
) -> None:
    """The lessons, oldest first; an edited one stays where it was learned."""
    run = Text(bank_command("run", config, bank, scope), "bold")
    with work.opened_bank(config, bank, scope, at) as found:
        if experiences:
            _list_experiences(found.experiences()[-last if last else 0 :], run, json_=json_)
            return
        items = found.items()[-last if last else 0 :]
        learned_from = 0 if items else len(found.seen_tasks())
    if json_:
        for item in items:
            print_json(item)
        return
    shown = table("id", "from", "title", "description")
    for item in items:
        colour = "green" if item.polarity == "success" else "yellow"
        times = f" (first of {len(item.provenances)})" if len(item.provenances) > 1 else ""
        source = Text.assemble((item.polarity, colour), times)
        shown.add_row(item.id, source, Text(item.title), Text(item.description, "dim"))
    if items:
        out.print(shown)
    elif learned_from:
        told = f"no lessons came of the {counted(learned_from, 'task')} that this scope has learned from"
        out.print(f"{told}; [bold]--experiences[/] lists them")
    else:
        out.print(Text.assemble("this scope holds no lessons yet; ", run, " makes some"), soft_wrap=True)


def _list_experiences(found: Sequence[Experience], run: Text, *, json_: bool) -> None:
    if json_:
        for experience in found:
            print_json(experience)
        return
    if found:
        show_experiences(found)
    else:
        out.print(Text.assemble("this scope holds no experiences yet; ", run, " makes some"), soft_wrap=True)


@app.command()
def show(
    id: Annotated[str, typer.Argument(help="Id of a lesson or of an experience.")],
    config: ConfigOption = None,
    bank: BankOption = None,
    scope: ScopeOption = None,
    at: AtOption = None,
    all_: AllOption = False,
    json_: JsonOption = False,
) -> None:
    """One lesson, or one experience with its whole trajectory."""
    with work.opened_bank(config, bank, scope, at) as looked_into:
        found = looked_into.get(id)
        if json_:
            print_json(found)
        elif isinstance(found, MemoryItem):
            show_item(found, looked_into.history(id), every=all_)
        else:
            show_experience(found, looked_into.history, every=all_)


@app.command()
def search(
    query: Annotated[str, typer.Argument(help="A task, in words.")],
    k: Annotated[int, typer.Option("-k", min=1, help="How many.")] = 5,
    items: Annotated[bool, typer.Option("--items", help="The same as --unit item.")] = False,
    unit: Annotated[
        Literal["item", "experience"] | None,
        typer.Option(help="Compare with lessons (item) or with tasks (experience); default: program.retrieve.unit."),
    ] = None,
    mode: Annotated[
        Mode | None, typer.Option(help=f"What decides: {', '.join(get_args(Mode))}; default: as in the settings.")
    ] = None,
    config: ConfigOption = None,
    bank: BankOption = None,
    scope: ScopeOption = None,
    at: AtOption = None,
    json_: JsonLinesOption = False,
) -> None:
    """The lessons nearest to a task: an agent is shown the first of them.

    How many is program.retrieve.k, and how near they must be program.retrieve.min_score; the others are marked.
    """
    if items and unit == "experience":
        raise InputError("--items and --unit experience: lessons, or tasks; give one of the two")
    usual = chosen_settings(config, bank, scope).program.retrieve
    items = items or (unit or usual.unit) == "item"
    how = mode or usual.mode
    with work.opened_bank(config, bank, scope, at, embeds=how != "lexical") as looked_into:
        found = looked_into.retrieve(query, k=k, unit="item" if items else "experience", mode=how)
        usual_floor = getattr(looked_into.embedder, "min_score", None) if usual.mode == "dense" and found else None
    floor = usual_floor if usual.min_score is None else usual.min_score
    if json_:
        for match in found:
            print_json(match)
        return
    other = "--unit experience compares with tasks" if items else "--unit item compares with lessons"
    out.print(Text(f"compared with {'lessons' if items else 'tasks'}, by mode {how}; {other}", "dim"))
    near = [match for match in found[: usual.k] if floor is None or match.score >= floor]
    as_usual = how == usual.mode and items == (usual.unit == "item")
    for number, match in enumerate(found):
        if as_usual and number == len(near):
            out.print(Text("── what follows, an agent is not shown (program.retrieve.k, min_score)", "dim"))
        instruction = line(match.instruction, 300)
        head = Text.assemble((f"{match.score:.3f}", "bold"), f"  {match.experience_id}  ", (instruction, "dim"))
        out.print(head, no_wrap=True, overflow="ellipsis")
        for item in match.items:
            out.print(Text.assemble(f"       • {item.title} ", (f"({item.id})", "dim")))
    if not found:
        out.print("nothing found")


@app.command()
def stats(
    config: ConfigOption = None, bank: BankOption = None, scope: ScopeOption = None, json_: JsonOption = False
) -> None:
    """Counts, sizes, and which embedder the bank belongs to."""
    with work.opened_bank(config, bank, scope) as looked_into:
        found = looked_into.stats()
    if json_:
        print_json(found)
        return
    shown = Table(box=None, show_header=False, pad_edge=False)
    for name, value in found.model_dump().items():
        text = ", ".join(f"{key}: {count}" for key, count in value.items()) if isinstance(value, dict) else str(value)
        shown.add_row(name.replace("_", " "), Text(text))
    out.print(shown)


@app.command()
def scopes(config: ConfigOption = None, bank: BankOption = None, json_: JsonLinesOption = False) -> None:
    """The banks within the file: how many lessons each has, from how many experiences."""
    with work.whole_bank(chosen_settings(config, bank, None).bank, None) as looked_into:
        names = looked_into.scopes()
    shown = table("scope", "lessons", "experiences")
    for name in names:
        with work.opened_bank(config, bank, name) as each:
            found = each.stats()
        if json_:
            print_json({"scope": name, "lessons": found.items, "experiences": found.experiences})
        shown.add_row(Text(name), f"{found.items:,}", f"{found.experiences:,}")
    if not json_:
        out.print(shown)


@app.command()
def history(
    id: Annotated[str, typer.Argument(help="Id of a lesson or of an experience, also of one that is gone.")],
    config: ConfigOption = None,
    bank: BankOption = None,
    scope: ScopeOption = None,
    all_: AllOption = False,
    json_: JsonLinesOption = False,
) -> None:
    """What happened to a lesson or an experience, oldest first."""
    with work.opened_bank(config, bank, scope) as looked_into:
        found = looked_into.history(id)
    if json_:
        for change in found:
            print_json(change)
        return
    appends = [change.seq for change in found if change.kind == "append"]
    left_out = set() if all_ else set(appends[FEW:])
    for change in found:
        if change.seq in left_out:
            continue
        when = f"{change.created_at} · number {change.seq}"
        out.print(Text.assemble((change.kind, "bold"), " ", (when, "dim")))
        if change.note:
            show_below(Text(change.note, "yellow"))
        _show_edit(change)
    if left_out:
        out.print(Text(f"and learned {counted(len(left_out), 'time')} more; --all shows when", "dim"))


@app.command()
def pending(
    config: ConfigOption = None, bank: BankOption = None, scope: ScopeOption = None, json_: JsonLinesOption = False
) -> None:
    """Rollouts that nothing was learned from yet, oldest first; `rb-dspy resume` learns from them."""
    with work.opened_bank(config, bank, scope) as looked_into:
        found = looked_into.pending()
        ids = [waiting.id for waiting in found]
    shown = table("id", "task", "run", "rollouts", "tries", "error")
    for id, waiting in zip(ids, found, strict=True):
        rollouts, error = len(waiting.trajectories), Text(line(waiting.error, 300), "dim")
        if json_:
            names = ("task", "trajectories", "run_id", "tries", "error", "created_at")
            print_json({"id": id, **{name: getattr(waiting, name) for name in names}})
        shown.add_row(id, Text(line(waiting.task.id)), Text(waiting.run_id), str(rollouts), str(waiting.tries), error)
    if not json_:
        out.print(shown if found else "nothing is pending")


@app.command()
def duplicates(
    min_score: Annotated[float, typer.Option(min=-1, max=1, help="Cosine from which two lessons are shown.")] = 0.9,
    config: ConfigOption = None,
    bank: BankOption = None,
    scope: ScopeOption = None,
    json_: JsonLinesOption = False,
) -> None:
    """Pairs of lessons that may say the same, nearest first. Read both: a negated lesson is very near, too."""
    with work.opened_bank(config, bank, scope) as looked_into:
        found = looked_into.near_duplicates(min_score)
    if json_:
        for pair in found:
            print_json(pair)
        return
    for pair in found:
        out.print(f"[bold]{pair.score:.3f}[/]")
        for item in (pair.first, pair.second):
            show_below(Text.assemble(f"{item.id}  ", (item.title, "bold")))
            texts = (line(item.description, 600), "dim"), f"\n{line(item.content, 2000)}\n"
            show_below(Text.assemble(*texts))
    if not found:
        out.print("none so near")
        return
    edit = (bank_command("bank edit ID", config, bank, scope), "bold")
    pairs = counted(len(found), "pair")
    out.print(Text.assemble(f"{pairs}; ", edit, ", or ", ("delete ID", "bold"), " in its place, settles them"))


@app.command()
def snapshots(
    config: ConfigOption = None, bank: BankOption = None, scope: ScopeOption = None, json_: JsonLinesOption = False
) -> None:
    """The states that have a name."""
    with work.opened_bank(config, bank, scope) as looked_into:
        found = looked_into.snapshots()
    if json_:
        for snapshot in found:
            print_json(snapshot)
        return
    shown = table("name", "number", "made", "digest")
    for snapshot in found:
        digest = f"{snapshot.digest[:12]}…"
        shown.add_row(Text(snapshot.name), str(snapshot.seq), Text(snapshot.created_at, "dim"), Text(digest, "dim"))
    if found:
        out.print(shown)
        return
    make = bank_command("bank snapshot NAME", config, bank, scope)
    out.print(Text.assemble("none yet; ", (make, "bold"), " makes one"), soft_wrap=True)


def _show_edit(change: Change) -> None:
    if change.before is None or change.after is None:
        return
    for name in MemoryDraft.model_fields:
        before, after = getattr(change.before, name), getattr(change.after, name)
        if before != after:
            show_below(Text.assemble(f"{name}: ", (before or "nothing", "red"), " → ", (after or "nothing", "green")))


for part in (bank_change.app, bank_keep.app):
    app.add_typer(part)
