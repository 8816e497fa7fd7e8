"""Commands whose modules are imported when they are called, not when another one is, nor for ``--help``."""

from __future__ import annotations

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
        return typer.main.get_group(given)
    alone = typer.Typer(add_completion=False)
    alone.command(name)(given)
    return typer.main.get_command(alone)
