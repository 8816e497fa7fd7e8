"""``rb-dspy resume``: learn from the rollouts that wait in a bank, without doing any task again."""

from __future__ import annotations

from typing import Annotated

import typer

from rb_dspy.cli import work
from rb_dspy.cli.common import settings
from rb_dspy.cli.options import BankOption, ConfigOption, JsonLinesOption, ProgramOption, ScopeOption, SetOption


def resume(
    ids: Annotated[list[str] | None, typer.Argument(help="Ids of `bank pending`; default: all that waits.")] = None,
    config: ConfigOption = None,
    set_: SetOption = None,
    program: ProgramOption = None,
    bank: BankOption = None,
    scope: ScopeOption = None,
    json_: JsonLinesOption = False,
) -> None:
    """Learn from the rollouts that wait in a bank; no task is done again."""
    chosen = settings(config, set_, bank__url=bank, bank__scope=scope)
    work.learn_from_waiting(chosen, ids or (), program, json_=json_)
