"""``rb-dspy models``: the language models that run inside the process."""

from __future__ import annotations

import typer

app = typer.Typer(no_args_is_help=True, help="The language models that run inside the process.")
