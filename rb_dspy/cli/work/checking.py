"""What ``rb-dspy backbones check`` does: each model is asked once."""

from __future__ import annotations

from dataclasses import asdict

from rich.table import Table
from rich.text import Text

from rb_dspy.backbones.check import check
from rb_dspy.cli.common import err, out, print_json
from rb_dspy.config import Settings
from rb_dspy.errors import BackboneError


def check_models(chosen: Settings, *, json_: bool) -> None:
    """The model of each role: its answer, or what is wrong. Raises ``BackboneError`` where any gave none."""
    table = Table("role", "model", "seconds", "answer", box=None, pad_edge=False)
    failed = []
    with err.status("asking each model once …"):
        for result in check(chosen.backbones):
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
