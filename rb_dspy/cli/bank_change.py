"""``rb-dspy bank edit``, ``delete``, ``rollback``: what a bank holds changes, and its history says so."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from rb_dspy.cli.bank_common import NoteOption, opened, show_item, show_removal
from rb_dspy.cli.common import BankOption, ConfigOption, JsonOption, ScopeOption, out, print_json
from rb_dspy.errors import InputError
from rb_dspy.schema import MemoryItem

app = typer.Typer()

_FORM = """\
title:
{title}

description:
{description}

content:
{content}
"""
_FILLED = re.compile(r"\s*title:\n(.*?)\n\s*description:\n(.*?)\n\s*content:\n(.*)", re.DOTALL)


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
    with opened(config, bank, scope) as changed:
        if all(text is None for text in given.values()):
            if not _attended():
                raise InputError(
                    "nothing to change; give --title, --description or --content, or a terminal to edit in"
                )
            item = changed.get(id)
            if not isinstance(item, MemoryItem):
                raise InputError(f"{id} is an experience; only a lesson can be edited, by its own id")
            given = _in_editor(item)
        item = changed.edit(id, **given, note=note)
    if json_:
        print_json(item)
    else:
        show_item(item)


@app.command()
def delete(
    id: Annotated[str, typer.Argument(help="Id of a lesson, an experience, or of rollouts that are pending.")],
    note: NoteOption = "",
    config: ConfigOption = None,
    bank: BankOption = None,
    scope: ScopeOption = None,
    json_: JsonOption = False,
) -> None:
    """Take away a lesson, or an experience with its lessons; the history keeps them."""
    with opened(config, bank, scope) as changed:
        before = changed.fork()
        removal = changed.delete(id, note=note)
        if json_:
            print_json(removal)
        else:
            show_removal(before, removal, "gone:")


@app.command()
def rollback(
    source: Annotated[str, typer.Argument(help="Id of an experience or a lesson, run:NAME, or origin:NAME.")],
    keep_descendants: Annotated[
        bool, typer.Option("--keep-descendants", help="Keep what was learned under its influence.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would go.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    note: NoteOption = "",
    config: ConfigOption = None,
    bank: BankOption = None,
    scope: ScopeOption = None,
    json_: JsonOption = False,
) -> None:
    """Take away all that came from a source, with all that was learned under its influence; the history keeps it."""
    if not (dry_run or yes or _attended()):
        raise InputError(
            "rollback asks before it takes anything away, and nobody can answer here; give --yes, or --dry-run"
        )
    with opened(config, bank, scope) as changed:
        before = changed.fork()
        removal = changed.rollback(source, descendants=not keep_descendants, dry_run=True)
        some = bool(removal.experiences or removal.items or removal.ingestions)
        if not json_:
            show_removal(before, removal, "would go:")
        if some and not dry_run:
            if not yes:
                typer.confirm("take it away?", abort=True, err=True)
            removal = changed.rollback(source, descendants=not keep_descendants, note=note)
            if not json_:
                out.print("it is gone; the history and the snapshots keep it")
    if json_:
        print_json(removal)


def _attended() -> bool:
    """Whether somebody can be asked."""
    return sys.stdin.isatty() and sys.stdout.isatty()


def _in_editor(item: MemoryItem) -> dict[str, str | None]:
    before = _FORM.format(**item.model_dump())
    text = _edited(before)
    if text == before:
        out.print(f"{item.id} was left as it is")
        raise typer.Exit
    filled = _FILLED.fullmatch(text)
    if filled is None:
        raise InputError("the headings title:, description: and content: are needed, each on a line of its own")
    return dict(zip(("title", "description", "content"), (part.strip() for part in filled.groups()), strict=True))


def _edited(text: str) -> str:
    """``text`` as it was saved in the editor that the environment names."""
    editor = os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi"
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "lesson.txt"
        file.write_text(text, encoding="utf-8")
        try:
            subprocess.run([*shlex.split(editor), str(file)], check=True)
            return file.read_text(encoding="utf-8")
        except (OSError, ValueError, subprocess.CalledProcessError) as exc:
            raise InputError(f"the editor {editor!r} did not do: {exc}; set EDITOR, or give --title and so on") from exc
