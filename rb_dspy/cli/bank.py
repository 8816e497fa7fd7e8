"""``rb-dspy bank``: inspect a bank. The commands that change it are in ``bank_change``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.padding import Padding
from rich.text import Text

from rb_dspy.cli import bank_change, options
from rb_dspy.cli.output import emit, err, facts, one_line, out, print_rollout, say, table
from rb_dspy.errors import BackboneError, ConfigError, InfrastructureError, InputError, RBError, UnparseableOutput
from rb_dspy.schema import Change, Experience, MemoryDraft, MemoryItem
from rb_dspy.text import counted

if TYPE_CHECKING:
    from rb_dspy.bank import HeldItem, MemoryBank

app = typer.Typer(no_args_is_help=True, help="Inspect a bank, change it, back it up.")

_SOURCES = 5
"""Maximum number of source experiences shown for a lesson."""


@app.command("list", epilog="Example: `rb-dspy bank list --last 5`")
@options.shared
def list_items(
    on: options.OnBank,
    last: Annotated[int | None, typer.Option("--last", min=1, metavar="N", help="Only the newest N.")] = None,
    experiences: Annotated[
        bool, typer.Option("--experiences", help="List experiences, including those without lessons.")
    ] = False,
    held: Annotated[bool, typer.Option("--held", help="Only lessons that wait for bank approve.")] = False,
    deleted: Annotated[bool, typer.Option("--deleted", help="Only removed lessons; bank undelete restores.")] = False,
) -> None:
    """List the lessons, oldest first."""
    with on.open() as opened:
        if held:
            _list_held(opened.held_items()[-last if last else 0 :])
            return
        read = opened.deleted_items if deleted else opened.experiences if experiences else opened.items
        found: Any = read()[-last if last else 0 :]
        learned_from = 0 if found else len(opened.seen_tasks())
    for each in found:
        emit(each)
    if deleted and not found:
        say("no lesson is deleted")
    elif not found and learned_from:
        say(f"no lessons from the {counted(learned_from, 'task')} of this scope; --experiences lists them")
    elif not found:
        say("this scope is empty; rb-dspy run fills it")
    elif experiences and not deleted:
        shown = table("id", "verdict", "lessons", "run", "task", right=("lessons",))
        for each in found:
            labels = ", ".join(dict.fromkeys(verdict.label for verdict in each.verdicts))
            task = Text(one_line(f"{each.task.id}: {each.task.instruction}", 100))
            if each.note and not each.items:
                task.append(f"\n{one_line(each.note, 200)}", "dim")
            shown.add_row(each.id, labels, str(len(each.items)), Text(each.run_id, "dim"), task)
        out.print(shown)
    else:
        width = max(40, out.width - 4)
        for item in found:
            color = "green" if item.polarity == "success" else "yellow"
            times = len(item.provenances)
            by = " and ".join(sorted({source.taught_by.removeprefix("from a ") for source in item.provenances}))
            source = f"{by}{f', learned {times} times' if times > 1 else ''}"
            source += {"held": ", held", "owner": ", yours"}.get(item.level, "")
            out.print(Text.assemble((item.id, "dim"), "  ", (one_line(item.title), "bold"), "  ", (source, color)))
            out.print(Padding(Text(one_line(item.content, 2 * width)), (0, 0, 0, 4)))


def _list_held(found: Sequence[HeldItem]) -> None:
    for each in found:
        emit(each)
        item = each.item
        origins = ", ".join(dict.fromkeys(source.origin for source in item.provenances))
        out.print(
            Text.assemble((item.id, "dim"), "  ", (one_line(item.title), "bold"), "  ", (f"from {origins}", "yellow"))
        )
        out.print(Padding(Text(one_line(item.content, 2 * max(40, out.width - 4))), (0, 0, 0, 4)))
        if each.corroborated:
            out.print(Padding(Text(f"nearly the same comes from {', '.join(each.also)}", "green"), (0, 0, 0, 4)))
    say("approve them with rb-dspy bank approve ID, or reject them" if found else "no lesson is held")


@app.command(epilog="Example: `rb-dspy bank origins`")
@options.shared
def origins(on: options.OnBank) -> None:
    """List where the lessons come from, how far each origin is trusted, and how often its lessons were shown."""
    with on.open() as opened:
        found = opened.origins()
    shown = table("origin", "level", "lessons", "held", "shown", "last", right=("lessons", "held", "shown"))
    for each in found:
        emit(each)
        level = f"{each.level}{', one place' if each.capped else ''}"
        name = Text(each.name) if each.name else Text("(your program)", "dim")
        numbers = (f"{number:,}" for number in (each.lessons, each.held, each.shown))
        shown.add_row(name, level, *numbers, Text(each.last[:10], "dim"))
    if found:
        out.print(shown)
    else:
        say("this scope is empty; rb-dspy run fills it")


@app.command(epilog="Example: `rb-dspy bank show 3f9a`")
@options.shared
def show(
    on: options.OnBank,
    id: Annotated[str, typer.Argument(metavar="ID", help="Id of a lesson or of an experience.")],
) -> None:
    """Show one lesson with its sources, or one experience with its full trajectory."""
    with on.open() as opened:
        found = opened.get(id)
        emit(found)
        if isinstance(found, MemoryItem):
            show_item(found, opened.history(id))
        else:
            _show_experience(found, opened)


@app.command(epilog='Example: `rb-dspy bank search "Which team owns quartz?" -k 3`')
@options.shared
def search(
    on: options.OnBank,
    query: Annotated[str, typer.Argument(help="The text of a task.")],
    k: Annotated[
        int | None, typer.Option("-k", min=1, metavar="N", help="Number of results; default: program.retrieve.k.")
    ] = None,
    unit: Annotated[
        Literal["item", "experience"] | None,
        typer.Option(help="Match lessons (item) or tasks (experience); default: program.retrieve.unit."),
    ] = None,
    mode: Annotated[
        Literal["dense", "lexical", "hybrid"] | None, typer.Option(help="Ranking; default: program.retrieve.mode.")
    ] = None,
) -> None:
    """Find the lessons nearest to a task, best first; marks those that agents are not shown."""
    from rb_dspy.steps.memory import render

    usual = on.settings.program.retrieve
    how: dict[str, Any] = {"mode": mode or usual.mode, "unit": unit or usual.unit}
    with on.open(embeds=how["mode"] != "lexical") as opened:
        found = opened.retrieve(query, k=k or max(usual.k, 1), **how)
        floor = None  # lexical and hybrid scores have no minimum
        if how["mode"] == "dense" and found:
            floor = getattr(opened.embedder, "min_score", None) if usual.min_score is None else usual.min_score
        near = opened.retrieve(query, k=usual.k, min_score=floor, polarity=usual.polarity, **how) if found else []
    shown = {item.id for item in render((i for match in near for i in match.items), max_tokens=usual.max_tokens).items}
    for match in found:
        emit(match)
        out.print(Text.assemble((f"{match.score:.3f}", "bold"), "  ", (one_line(match.instruction, 120), "dim")))
        for item in match.items:
            lesson = Text.assemble(
                (one_line(item.title), "bold"), f": {one_line(item.content, 300)} ", (item.id, "dim")
            )
            lesson.append("" if item.id in shown else "  (not shown to agents)", "yellow")
            out.print(Padding(lesson, (0, 0, 0, 7)))
    if not found:
        say("nothing found")


@app.command(epilog="Example: `rb-dspy bank stats --bank lessons.sqlite`")
@options.shared
def stats(on: options.OnBank) -> None:
    """Show counts, sizes, the embedder, and the scopes of the bank."""
    with on.open(any_scope=True) as opened:
        found, scopes = opened.stats(), opened.scopes()
    emit({**found.model_dump(mode="json"), "scopes": scopes})
    shown = facts()
    for name, value in {**found.model_dump(), "scopes": scopes}.items():
        if isinstance(value, dict):
            value = ", ".join(f"{key}: {count}" for key, count in value.items())
        shown.add_row(name.replace("_", " "), Text(", ".join(value) if isinstance(value, list) else str(value)))
    out.print(shown)


@app.command(epilog="Example: `rb-dspy bank pending`")
@options.shared
def pending(on: options.OnBank) -> None:
    """List pending rollouts, which are not learned from yet, oldest first; rb-dspy learn learns from them."""
    with on.open() as opened:
        found = opened.pending()
    shown = table("id", "task", "run", "rollouts", "tries", "last error", right=("rollouts", "tries"))
    for each in found:
        rollouts = len(each.trajectories)
        about = {name: getattr(each, name) for name in ("run_id", "tries", "error", "created_at")}
        emit({"id": each.id, "task": each.task.id, "rollouts": rollouts, **about})
        task, error = Text(one_line(each.task.id)), Text(one_line(each.error, 200), "dim")
        shown.add_row(each.id, task, Text(each.run_id), str(rollouts), str(each.tries), error)
    out.print(shown if found else "no pending rollouts")
    if found:
        say("learn from them: ", (f"rb-dspy learn{options.bank_options(on.settings.bank)}", "bold"))


@options.shared
def learn(on: options.OnBank, program: options.ProgramName = None, set_: options.Set = None) -> None:
    """Judge the pending rollouts of all runs and learn from them: those that a crash left, and recorded ones."""
    from rb_dspy.bank import MemoryBank
    from rb_dspy.cli.program import build_program
    from rb_dspy.matts import MaTTS

    chosen = options.program_settings(on.config, set_, None, None, bank__url=on.bank, bank__scope=on.scope)
    made = build_program(chosen, prompts=program)
    learner = made if isinstance(made, MaTTS) else MaTTS(made)  # it learns from any number of rollouts
    config, errors = chosen.bank, list[RBError]()
    where: dict[str, Any] = {"scope": config.scope, "embedder": config.embedder, "trust": chosen.trust}
    with MemoryBank.open(config.url, create=False, **where) as opened:
        waiting = opened.pending()
        for each in waiting:
            titles, error = list[str](), ""
            try:
                with err.status(Text(f"learning from {one_line(each.task.id)} …")):
                    titles = [item.title for item in learner.resume(each).memory_items]
            except (ConfigError, BackboneError):
                raise
            except (InfrastructureError, UnparseableOutput, InputError) as exc:
                errors.append(exc)
                error = str(exc)
            emit({"id": each.id, "task": each.task.id, "learned": titles, "error": error})
            outcome = (one_line(error, 300), "red") if error else (", ".join(titles) or "no lesson", "blue")
            say((each.task.id, "bold"), "  ", outcome)
    if not waiting:
        say("no pending rollouts")
    if errors and len(errors) == len(waiting):
        raise errors[-1]


def show_item(item: MemoryItem, changes: Iterable[Change] = ()) -> None:
    """Print a lesson in full, with its sources and edits."""
    out.print(Text.assemble((one_line(item.title), "bold"), "  ", (item.id, "dim")))
    out.print(Padding(Text(f"{item.description}\n\n{item.content}\n"), (0, 0, 0, 2)))  # no line of it looks like ours
    for source in item.provenances[:_SOURCES]:
        parts = [f"task {source.task_id}", f"experience {source.experience_id}"]
        for name, value in (("run", source.run_id), ("written by", source.distiller), ("from", source.origin)):
            parts += [f"{name} {value}"] if value else []
        out.print(Text(one_line(f"{source.taught_by} · {' · '.join(parts)}", 500), "dim"))
    if len(item.provenances) > _SOURCES:
        out.print(Text(f"and {len(item.provenances) - _SOURCES:,} more", "dim"))
    for change in changes:
        if change.kind == "edit" and change.before is not None and change.after is not None:
            out.print(Text(f"edited {change.created_at}{f': {change.note}' if change.note else ''}", "yellow"))
            for name in MemoryDraft.model_fields:
                before, after = getattr(change.before, name), getattr(change.after, name)
                if before != after:
                    out.print(Text.assemble(f"  {name}: ", (before, "red"), " → ", (after, "green")))


def _show_experience(experience: Experience, opened: MemoryBank) -> None:
    out.print(Text.assemble((one_line(experience.task.id), "bold"), "  ", (experience.id, "dim")))
    out.print(Padding(Text(experience.task.instruction), (0, 0, 0, 2)))
    about = {"run": experience.run_id, "from": experience.origin, "at": experience.created_at}
    about_line = " · ".join(f"{name} {value}" for name, value in about.items() if value)
    out.print(Text(one_line(about_line, 500), "dim"))
    several = len(experience.trajectories) > 1
    for at, (trajectory, verdict) in enumerate(zip(experience.trajectories, experience.verdicts, strict=True)):
        print_rollout(trajectory, ", submitted" if several and at == experience.submitted else "")
        out.print(Text.assemble("verdict: ", (verdict.label, "bold"), "  ", (verdict.reasons, "dim")))
    if experience.shown:
        out.print(Text(f"\nlessons shown: {', '.join(experience.shown)}", "dim"))
    for item in experience.items:
        out.print()
        show_item(item, opened.history(item.id))
    if experience.note:
        out.print(Text(f"\n{experience.note}", "yellow"))


app.add_typer(bank_change.app)
