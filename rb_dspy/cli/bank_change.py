"""``rb-dspy bank add``, ``edit``, ``delete``, ``rollback``, ``purge``."""

from __future__ import annotations

import os
import secrets
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from rb_dspy.cli import work
from rb_dspy.cli.again import bank_command
from rb_dspy.cli.bank_common import removal_counts, show_item, show_removal
from rb_dspy.cli.common import out, print_json
from rb_dspy.cli.options import BankOption, ConfigOption, JsonOption, NoteOption, ScopeOption
from rb_dspy.errors import CorruptBank, InputError
from rb_dspy.schema import MemoryDraft, MemoryItem, Removal
from rb_dspy.text import counted

if TYPE_CHECKING:
    from rb_dspy.bank import MemoryBank

DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Only show what would go.")]

app = typer.Typer()


@app.command()
def add(
    title: Annotated[str, typer.Argument(help="What the lesson is about, in a few words.")],
    content: Annotated[str, typer.Argument(help="The lesson itself.")],
    description: Annotated[str, typer.Option(help="When it helps, in one sentence.")] = "",
    origin: Annotated[str, typer.Option(help="Who wrote it; `bank rollback origin:NAME` takes it back.")] = "user",
    config: ConfigOption = None,
    bank: BankOption = None,
    scope: ScopeOption = None,
    json_: JsonOption = False,
) -> None:
    """Add a lesson that you wrote; a bank that does not exist is created."""
    with work.opened_bank(config, bank, scope, embeds=True, create=True) as changed:
        item = changed.add(title, content, description, origin)
    print_json(item) if json_ else show_item(item)


@app.command()
def edit(
    id: Annotated[str, typer.Argument(help="Id of a lesson.")],
    title: Annotated[str | None, typer.Option(help="The new title.")] = None,
    description: Annotated[str | None, typer.Option(help="The new description.")] = None,
    content: Annotated[str | None, typer.Option(help="The new content.")] = None,
    note: NoteOption = "",
    config: ConfigOption = None,
    bank: BankOption = None,
    scope: ScopeOption = None,
    json_: JsonOption = False,
) -> None:
    """Give a lesson another text; without any of title, description and content: in your editor."""
    given = {"title": title, "description": description, "content": content}
    with work.opened_bank(config, bank, scope, embeds=True) as changed:
        if all(text is None for text in given.values()):
            if not _attended():
                raise InputError(
                    "nothing to change; give --title, --description or --content, or a terminal to edit in"
                )
            item = changed.get(id)
            if not isinstance(item, MemoryItem):
                raise InputError(f"{id} is an experience; only a lesson can be edited, by its own id")
            given |= _in_editor(item)
        item = changed.edit(id, **given, note=note)
    if json_:
        print_json(item)
    else:
        show_item(item)


@app.command()
def delete(
    id: Annotated[str, typer.Argument(help="Id of a lesson, an experience, or of rollouts that are pending.")],
    dry_run: DryRunOption = False,
    note: NoteOption = "",
    config: ConfigOption = None,
    bank: BankOption = None,
    scope: ScopeOption = None,
    json_: JsonOption = False,
) -> None:
    """Take away a lesson, or an experience with its lessons; the history keeps them."""
    with work.opened_bank(config, bank, scope) as changed:
        before = changed.fork()
        removal = changed.delete(id, dry_run=True)
        reached = () if json_ or removal.pending else _reached(changed, removal, id)
        if not dry_run:
            removal = changed.delete(id, note=note)
        if json_:
            print_json(removal)
            return
        show_removal(before, removal, "would go:" if dry_run else "gone:")
        if reached:
            told = f"stays: what was learned under its influence, {counted(len(reached), 'experience')}"
            back = bank_command(f"bank rollback {id}", config, bank, scope)
            out.print(Text(f"{told}; {back} takes that too", "yellow"), soft_wrap=True)
            show_removal(before, Removal(experiences=reached), "to look at:")


def _reached(bank: MemoryBank, removal: Removal, id: str) -> tuple[str, ...]:
    """Experiences that it may have misled, which a delete leaves alone."""
    try:
        influenced = bank.rollback(id, dry_run=True).experiences
    except CorruptBank as exc:  # rollouts that wait, for one
        out.print(Text(f"what was learned under its influence cannot be told: {exc}", "yellow"), soft_wrap=True)
        return ()
    return tuple(one for one in influenced if one not in removal.experiences)


@app.command()
def rollback(
    source: Annotated[str, typer.Argument(help="Id of an experience or a lesson, run:NAME, or origin:NAME.")],
    keep_descendants: Annotated[
        bool, typer.Option("--keep-descendants", help="Keep what was learned under its influence.")
    ] = False,
    dry_run: DryRunOption = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    note: NoteOption = "",
    config: ConfigOption = None,
    bank: BankOption = None,
    scope: ScopeOption = None,
    json_: JsonOption = False,
) -> None:
    """Take away all that came from a source, with all that was learned under its influence; the history keeps it."""
    asks = not (dry_run or yes)
    with work.opened_bank(config, bank, scope) as changed:
        before = changed.fork()
        removal = changed.rollback(source, descendants=not keep_descendants, dry_run=True)
        if asks and not _attended():
            raise InputError(
                "rollback asks before it takes anything away, and nobody can answer here; give --yes, or --dry-run"
            )
        if not json_ and (dry_run or asks):
            show_removal(before, removal, "would go:")
        if asks:
            typer.confirm("take it away?", abort=True, err=True)
        if not dry_run:
            removal = changed.rollback(source, descendants=not keep_descendants, note=note)
            if not json_:
                if not asks:
                    show_removal(before, removal, "gone:")
                out.print("it is gone; the history and the snapshots keep it")
    if json_:
        print_json(removal)


@app.command()
def purge(
    source: Annotated[str, typer.Argument(help="Id of an experience or a lesson, run:NAME, or origin:NAME.")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    config: ConfigOption = None,
    bank: BankOption = None,
    scope: ScopeOption = None,
    json_: JsonOption = False,
) -> None:
    """Delete a text for good, history included: a secret, for example. Backups, exports and MLflow are not reached."""
    with work.opened_bank(config, bank, scope) as changed:
        if not yes:
            if not _attended():
                raise InputError("purge asks before it deletes, and nobody can answer here; give --yes")
            typer.confirm(f"delete what came from {source} for good, with its history?", abort=True, err=True)
        removal = changed.purge(source)
        if json_:
            print_json(removal)
        else:
            out.print(f"[bold]deleted for good:[/] {removal_counts(removal)}")


def _attended() -> bool:
    """Whether somebody can be asked."""
    return sys.stdin.isatty() and sys.stdout.isatty()


def _in_editor(item: MemoryItem) -> dict[str, str]:
    """The fields that were changed there. Ends the command where none was."""
    texts = {name: getattr(item, name) for name in MemoryDraft.model_fields}
    # A line of the lesson may look like any heading that is known beforehand.
    headings = {name: f"--- {name} --- {secrets.token_hex(4)}" for name in texts}
    form = "".join(f"{heading}\n{texts[name]}\n\n" for name, heading in headings.items())
    filled = _filled(_edited(form), headings)
    changed = {name: text for name, text in filled.items() if text != _plain(texts[name])}
    if not changed:
        out.print(f"{item.id} was left as it is")
        raise typer.Exit
    return changed


def _filled(text: str, headings: dict[str, str]) -> dict[str, str]:
    """What stands below each heading."""
    names = {heading: name for name, heading in headings.items()}
    parts: list[tuple[str, list[str]]] = [("", [])]
    for line in _plain(text).split("\n"):
        if name := names.get(line.strip()):
            parts.append((name, []))
        else:
            parts[-1][1].append(line)
    above, *below = parts
    if [name for name, _ in below] != list(headings) or any(map(str.strip, above[1])):
        raise InputError(
            "the lesson is as before: its three headings, the lines that begin with ---, are needed, each once and in"
            " this order, with no text above them; edit it again"
        )
    return {name: _plain("\n".join(lines)) for name, lines in below}


def _plain(text: str) -> str:
    """``text`` as it is compared: an editor may end lines, and the last of them, in its own way."""
    return text.removeprefix("\ufeff").replace("\r\n", "\n").strip()


def _edited(text: str) -> str:
    """``text`` as it was saved in the editor that the environment names."""
    editor = os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi"
    try:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "lesson.txt"
            file.write_bytes(text.encode("utf-8"))  # line ends as they are
            subprocess.run([*shlex.split(editor), str(file)], check=True)
            return file.read_bytes().decode("utf-8")
    except (OSError, ValueError, subprocess.CalledProcessError) as exc:
        raise InputError(f"the editor {editor!r} did not do: {exc}; set EDITOR, or give --title and so on") from exc
