"""Commands whose modules are imported when they are called, not when another one is, nor for ``--help``."""

from __future__ import annotations

import inspect
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperCommand


def add(app: typer.Typer, name: str, where: str, summary: str) -> None:
    """Make ``where``, a module and what it calls its command or its group of them, the command ``name`` of ``app``.

    ``summary``: the line that ``--help`` of ``app`` has for it; the first paragraph of its own help.
    """

    class Late(TyperCommand):
        def make_context(self, *args: Any, **options: Any) -> Any:
            return load(name, where).make_context(*args, **options)

    app.command(name, cls=Late, help=summary)(lambda: None)


def load(name: str, where: str) -> Any:
    """The command, or group of commands, that ``where`` names."""
    module, _, attribute = where.partition(":")
    given = getattr(import_module(module), attribute)
    if isinstance(given, typer.Typer):
        return _flowing(typer.main.get_group(given))
    alone = typer.Typer(add_completion=False)
    alone.command(name)(given)
    return _flowing(typer.main.get_command(alone))


def _flowing(command: Any) -> Any:
    """``command``, and those below it, with help whose lines end at the terminal's edge, not at the docstring's.

    Of all paragraphs but the first, typer keeps the line breaks.
    """
    paragraphs = inspect.cleandoc(command.help or "").split("\n\n")
    command.help = "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)
    for below in getattr(command, "commands", {}).values():
        _flowing(below)
    return command
