"""``rb-dspy backbones``: the language models by role."""

from __future__ import annotations

import typer

from rb_dspy.cli import matrix, work
from rb_dspy.cli.common import settings
from rb_dspy.cli.options import ConfigOption, JsonLinesOption, SetOption

app = typer.Typer(no_args_is_help=True, help="The language models by role.")


app.command("matrix")(matrix.matrix_command)


@app.command("check")
def check_command(config: ConfigOption = None, set_: SetOption = None, json_: JsonLinesOption = False) -> None:
    """Ask the model of each role, a shared one once: what it answered and how fast, or what is wrong."""
    work.check_models(settings(config, set_), json_=json_)
