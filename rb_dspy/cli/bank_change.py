"""``rb-dspy bank``: change a bank, move it, back it up, check it."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from rb_dspy.cli import options
from rb_dspy.cli.output import confirm, emit, err, one_line, out, say, table
from rb_dspy.errors import BankError, CorruptBank, InputError
from rb_dspy.redaction import without_secrets
from rb_dspy.schema import Experience, MemoryItem, Removal
from rb_dspy.text import counted

if TYPE_CHECKING:
    from rb_dspy.bank import MemoryBank

SourceArgument = Annotated[str, typer.Argument(help="Id of an experience or a lesson, run:NAME, or origin:NAME.")]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Only show what would be removed.")]
NoteOption = Annotated[str, typer.Option("--note", help="Reason; stored in the history.")]

app = typer.Typer()

_LISTED = 20
"""Maximum number of experiences, and of lessons, listed for a removal."""


@app.command(epilog='Example: `rb-dspy bank add "Refunds" "Above 50 euros a refund needs a manager."`')
@options.shared
def add(
    on: options.OnBank,
    title: Annotated[str, typer.Argument(help="What the lesson is about, in a few words.")],
    content: Annotated[str, typer.Argument(help="The lesson itself.")],
    description: Annotated[str, typer.Option(help="When it helps, in one sentence.")] = "",
    origin: Annotated[str, typer.Option(help="Who wrote it; bank rollback origin:NAME removes it.")] = "user",
) -> None:
    """Add a lesson that you wrote; creates the bank if it does not exist."""
    with on.open(embeds=True, create=True) as opened:
        _print_item(opened.add(title, content, description, origin))


@app.command(epilog='Example: `rb-dspy bank edit 3f9a --content "Above 80 euros." --note "new rule"`')
@options.shared
def edit(
    on: options.OnBank,
    id: Annotated[str, typer.Argument(metavar="ID", help="Id of a lesson.")],
    title: Annotated[str | None, typer.Option(help="The new title.")] = None,
    description: Annotated[str | None, typer.Option(help="The new description.")] = None,
    content: Annotated[str | None, typer.Option(help="The new content.")] = None,
    note: NoteOption = "",
) -> None:
    """Edit the text of a lesson; bank show also shows its earlier text."""
    if title is None and description is None and content is None:
        raise InputError("nothing to change; give --title, --description or --content")
    with on.open(embeds=True) as opened:
        item = opened.edit(id, title=title, description=description, content=content, note=note)
    _print_item(item)


@app.command(epilog="Example: `rb-dspy bank approve 3f9a`")
@options.shared
def approve(
    on: options.OnBank,
    id: Annotated[str, typer.Argument(metavar="ID", help="Id of a lesson, or of an experience with its lessons.")],
) -> None:
    """Trust a held lesson, or an experience and its lessons, as if you had written it: it is shown from now on."""
    with on.open() as opened:
        found = opened.approve(id)
    emit(found)
    say(f"approved: {_name(found)}")


@app.command(epilog='Example: `rb-dspy bank reject 3f9a --note "wrong since May"`')
@options.shared
def reject(
    on: options.OnBank,
    id: Annotated[str, typer.Argument(metavar="ID", help="Id of a lesson or an experience.")],
    note: NoteOption = "",
) -> None:
    """Remove a lesson that you do not trust, or an experience with its lessons; what says nearly the same is held."""
    with on.open() as opened:
        _remove(opened, partial(opened.reject, id, note=note), dry_run=False)


@app.command(epilog="Example: `rb-dspy bank delete 3f9a --dry-run`")
@options.shared
def delete(
    on: options.OnBank,
    id: Annotated[str, typer.Argument(metavar="ID", help="Id of a lesson, an experience, or pending rollouts.")],
    dry_run: DryRunOption = False,
    note: NoteOption = "",
) -> None:
    """Remove a lesson, or an experience with its lessons; the history keeps them.

    Experiences learned under their influence stay; bank rollback removes those too.
    """
    with on.open() as opened:
        _remove(opened, partial(opened.delete, id, note=note), dry_run=dry_run)


@app.command(epilog="Example: `rb-dspy bank undelete 3f9a`")
@options.shared
def undelete(
    on: options.OnBank,
    id: Annotated[
        str, typer.Argument(metavar="ID", help="Id of a lesson or an experience; bank list --deleted has the lessons.")
    ],
    note: NoteOption = "",
) -> None:
    """Bring back a lesson, or an experience with its lessons, after a delete, reject or rollback."""
    with on.open(embeds=True) as opened:
        found = opened.undelete(id, note=note)
    emit(found)
    say(f"is back: {found.id} {_name(found)}")


@app.command(epilog="Example: `rb-dspy bank rollback run:7c1e02a4d9b3 --dry-run`")
@options.shared
def rollback(
    on: options.OnBank,
    source: SourceArgument,
    keep_descendants: Annotated[
        bool, typer.Option("--keep-descendants", help="Keep experiences learned under its influence.")
    ] = False,
    dry_run: DryRunOption = False,
    yes: options.Yes = False,
    note: NoteOption = "",
) -> None:
    """Remove everything from a source and everything learned under its influence; the history keeps it."""
    with on.open() as opened:
        remove = partial(opened.rollback, source, descendants=not keep_descendants, note=note)
        _remove(opened, remove, dry_run=dry_run, asks=not yes)


@app.command(epilog="Example: `rb-dspy bank purge origin:mail:ann`")
@options.shared
def purge(
    on: options.OnBank,
    source: Annotated[str, typer.Argument(help="Id of an experience or a lesson, run:NAME, or origin:NAME.")] = "",
    text: Annotated[
        str,
        typer.Option(
            "--text", help="Instead of a source: delete what contains this; - reads a line from standard input (--yes)."
        ),
    ] = "",
    yes: options.Yes = False,
) -> None:
    """Delete a source permanently, with its history: for secrets. Backups, exports and MLflow keep their copies."""
    if text == "-":
        text = sys.stdin.readline().rstrip("\r\n")
    with on.open() as opened:
        if not yes:
            confirm(
                f"permanently delete everything {'with this text' if text else f'from {source}'}, with its history?"
            )
        removal = opened.purge(source, text=text)
    emit(removal)
    nothing = "nothing; no experience, lesson or pending rollout contains the text" if text else "nothing more"
    say(("permanently deleted: ", "bold"), _counts(removal) or nothing)


@app.command("export", epilog="Example: `rb-dspy bank export lessons.jsonl`")
@options.shared
def export_(
    on: options.OnBank,
    file: Annotated[str, typer.Argument(help="Target file; - is standard output.")] = "-",
) -> None:
    """Export a scope as JSON Lines: every experience in full, with its provenance."""
    with on.open() as opened, tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "export.jsonl" if file == "-" else Path(file)
        number = opened.export_jsonl(target)
        waiting = len(opened.pending())
        if file == "-":
            sys.stdout.flush()
            with target.open("rb") as lines:
                shutil.copyfileobj(lines, sys.stdout.buffer)
            sys.stdout.buffer.flush()
            return
    emit({"path": file, "experiences": number, "pending": waiting})
    left = f"; not included: pending rollouts of {counted(waiting, 'task')}" if waiting else ""
    say(f"{counted(number, 'experience')} written to {file}{left}")


@app.command("import", epilog="Example: `rb-dspy bank import lessons.jsonl --own`")
@options.shared
def import_(
    on: options.OnBank,
    file: Annotated[Path, typer.Argument(help="A file written by bank export.")],
    origin: Annotated[
        str,
        typer.Option("--origin", metavar="NAME", help="Origin of this import; bank rollback origin:NAME removes it."),
    ] = "",
    own: Annotated[
        bool, typer.Option("--own", help="The file is your own export: keep its origins, levels and marks.")
    ] = False,
) -> None:
    """Import exported experiences; skips those that are in this bank or were removed from it.

    Without --own its lessons are another's: they share one place of a prompt unless [trust] in rb.toml says more.
    """
    from rb_dspy.bank import MemoryBank
    from rb_dspy.bank.admission import checked_name
    from rb_dspy.bank.transfer import read

    chosen, trust = on.settings.bank, on.settings.trust
    read(file, trust, checked_name("origin", origin) if origin else "", own=own)  # before a bank is created
    with (
        err.status("embedding …"),
        MemoryBank.open(chosen.url, scope=chosen.scope, embedder=chosen.embedder, trust=trust) as opened,
    ):
        before = opened.stats().experiences
        ids = opened.import_jsonl(file, origin=origin, own=own)
        new = opened.stats().experiences - before
    emit({"path": file, "experiences": len(ids), "new": new})
    others = f"; {len(ids) - new:,} skipped: already here, or removed here" if len(ids) > new else ""
    say(f"{counted(new, 'experience')} imported into {without_secrets(chosen.url)}, scope {chosen.scope}{others}")


@app.command(epilog="Example: `rb-dspy bank copy rb-bank.sqlite postgresql://me@host/lessons`")
@options.shared
def copy(
    source: Annotated[str, typer.Argument(metavar="FROM", help="The bank's file, or postgresql://user@host/database.")],
    target: Annotated[str, typer.Argument(metavar="TO", help="The other bank, which may be new.")],
    scope: Annotated[str | None, typer.Option("--scope", metavar="NAME", help="Only this scope; default: all.")] = None,
) -> None:
    """Copy a bank with its history to another one: from SQLite to PostgreSQL, back, or to a second database.

    After Ctrl-C, run the same command again: it skips the scopes that are copied already.
    """
    from rb_dspy.bank import MemoryBank
    from rb_dspy.bank.opening import scopes

    with err.status("copying …"):
        names = scopes(source) if scope is None else [scope]
        copied = MemoryBank.copy(source, target, scope=scope)
    skipped = [name for name in names if name not in copied]
    places = {"from": without_secrets(source), "to": without_secrets(target)}
    emit({**places, "experiences": copied, "skipped": skipped})
    each = ", ".join(f"{counted(number, 'experience')} of scope {name}" for name, number in copied.items())
    say(f"{each or 'nothing'} copied to {places['to']}")
    if skipped:
        say(f"skipped, because it is there already: scope {', '.join(skipped)}")


@app.command(epilog="Example: `rb-dspy bank backup copy.sqlite`")
@options.shared
def backup(
    file: Annotated[str, typer.Argument(help="File for the copy; it must not exist.")],
    bank: options.Bank = None,
    config: options.Config = None,
) -> None:
    """Copy the bank's file with all scopes; other processes may write to it meanwhile."""
    from rb_dspy.bank import MemoryBank

    url = options.settings(config, None, parts=["bank"], bank__url=bank).bank.url
    MemoryBank.backup(url, to=file)
    emit({"path": url, "copy": file})
    say(f"{file} is a copy of {url}")


@app.command(epilog="Example: `rb-dspy bank restore copy.sqlite`")
@options.shared
def restore(
    copy: Annotated[str, typer.Argument(help="A copy of a bank's file; it is not changed.")],
    bank: options.Bank = None,
    config: options.Config = None,
) -> None:
    """Check a copy and replace the bank's file with it; the old file is moved aside."""
    from rb_dspy.bank import MemoryBank

    url = options.settings(config, None, parts=["bank"], bank__url=bank).bank.url
    with err.status("checking the copy …"):
        aside = MemoryBank.restore(url, copy=copy)
    emit({"path": url, "copy": copy, "moved_aside": aside})
    say(f"{url} is restored from {copy}{f'; the old file is {aside}' if aside else ''}")


@app.command(epilog="Example: `rb-dspy bank reindex --embedder minilm`")
@options.shared
def reindex(
    on: options.OnBank,
    embedder: Annotated[
        str | None, typer.Option("--embedder", metavar="NAME", help="Move the whole bank to this embedding model.")
    ] = None,
) -> None:
    """Compute missing vectors, in all scopes."""
    with err.status("embedding …"), on.open(any_scope=True, embeds=embedder is None) as opened:
        made = opened.reindex(embedder)
        name = opened.stats().embedder
    emit({"embedder": name, "vectors": made})
    moved = embedder is not None and embedder != on.settings.bank.embedder
    hint = f'; set bank.embedder = "{embedder}" in rb.toml' if moved else ""
    say(f"{counted(made, 'vector')} computed{hint}")


@app.command(epilog="Example: `rb-dspy bank doctor`")
@options.shared
def doctor(on: options.OnBank) -> None:
    """Check the whole bank; reports each problem and its fix. Exits with 6 if there is a problem."""
    with err.status("checking the bank …"):
        names, found = findings(on.settings.bank.url, on.scope)
    for finding in found:
        emit(finding)
        out.print(Text.assemble(("error", "red"), " ", (finding.kind, "dim"), " ", (finding.where, "bold")))
        out.print(Padding(Text(f"{finding.what}\n→ {finding.remedy}"), (0, 0, 0, 2)))
    if found:
        raise CorruptBank(f"the doctor found {counted(len(found), 'error')}")
    say(f"no errors in {counted(len(names), 'scope')}")


def findings(url: str, scope: str | None = None) -> tuple[list[str], list[Any]]:
    """The scopes of a bank, or the one that is named, and the problems that were found in them."""
    from rb_dspy.bank import MemoryBank
    from rb_dspy.bank.opening import scopes

    names = scopes(url) if scope is None else [scope]
    found: dict[Any, None] = {}  # a problem of the file is found in every scope
    for name in names:
        with MemoryBank.open(url, scope=name, create=False) as opened:
            found |= dict.fromkeys(opened.doctor())
    return names, list(found)


def _print_item(item: MemoryItem) -> None:
    from rb_dspy.cli.bank import show_item

    emit(item)
    show_item(item)


def _name(found: MemoryItem | Experience) -> str:
    return found.title if isinstance(found, MemoryItem) else f"{found.task.id}: {found.task.instruction}"


def _remove(bank: MemoryBank, remove: Callable[..., Removal], *, dry_run: bool, asks: bool = False) -> None:
    """Remove, unless ``dry_run``, and print what; titles are read before they are gone."""
    removal = remove(dry_run=True)
    shown = _titles(bank, removal)
    if asks and not dry_run:
        confirm(f"{_counts(removal)}: remove?")
    if not dry_run:
        removal = remove()
    emit(removal)
    say(("would be removed: " if dry_run else "removed: ", "bold"), _counts(removal))
    if shown.row_count:
        out.print(shown)


def _titles(bank: MemoryBank, removal: Removal) -> Table:
    """The experiences and lessons of a removal, as a table."""
    shown = table("id", "what")
    for ids in (removal.experiences, removal.items):
        for id in ids[:_LISTED]:
            shown.add_row(id, Text(one_line(_title(bank, id), max(20, out.width - 24))))
        if len(ids) > _LISTED:
            shown.add_row(f"[dim]and {len(ids) - _LISTED:,} more[/]", "")
    return shown


def _counts(removal: Removal) -> str:
    parts = {"experience": removal.experiences, "lesson": removal.items, "pending rollout": removal.pending}
    return ", ".join(counted(len(ids), what) for what, ids in parts.items() if ids)


def _title(bank: MemoryBank, id: str) -> str:
    try:
        return _name(bank.get(id))
    except (InputError, BankError):  # removed meanwhile, or damaged
        return ""
