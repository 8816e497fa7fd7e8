"""``rb-dspy backbones``: the language models by role."""

from __future__ import annotations

from dataclasses import asdict

import typer
from rich.table import Table
from rich.text import Text

from rb_dspy.backbones.check import check
from rb_dspy.cli import matrix
from rb_dspy.cli.common import ConfigOption, JsonOption, SetOption, err, out, print_json, settings
from rb_dspy.errors import BackboneError

app = typer.Typer(no_args_is_help=True, help="The language models by role.")


app.command("matrix")(matrix.matrix_command)


@app.command("check")
def check_command(config: ConfigOption = None, set_: SetOption = None, json_: JsonOption = False) -> None:
    """Ask the model of each role, a shared one once: what it answered and how fast, or what is wrong."""
    configs = settings(config, set_).backbones
    table = Table("role", "model", "seconds", "answer", box=None, pad_edge=False)
    failed = []
    with err.status("asking each model once …"):
        for result in check(configs):
            if json_:
                print_json(asdict(result))
            answer = Text(result.problem, "red") if result.problem else Text(result.answer)
            table.add_row(result.role, Text(result.model), f"{result.seconds:.1f}", answer)
            if result.problem:
                failed.append(result.role)
    if not json_:
        out.print(table)
    if failed:
        raise BackboneError(f"no answer from {', '.join(failed)}; the others, if any, work")
