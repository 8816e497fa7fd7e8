"""``rb-dspy envs``: what there is to do."""

from __future__ import annotations

from typing import Annotated

import typer

from rb_dspy.cli import work
from rb_dspy.cli.options import JsonLinesOption
from rb_dspy.errors import InputError


def envs(
    name: Annotated[str | None, typer.Argument(help="One environment; default: all of them, a line each.")] = None,
    baselines: Annotated[bool, typer.Option("--baselines", help="Play random, empty and oracle policies.")] = False,
    tasks: Annotated[int, typer.Option("--tasks", "-n", min=1, help="Tasks that each policy plays.")] = 20,
    seed: Annotated[int, typer.Option(help="Which tasks.")] = 0,
    json_: JsonLinesOption = False,
) -> None:
    """The environments, their templates, and how baselines do in them."""
    if name is None:
        if baselines:
            raise InputError("--baselines needs the name of one environment, for example: rb-dspy envs twc --baselines")
        work.list_environments(json_=json_)
    elif baselines:
        work.play_baselines(name, tasks, seed, json_=json_)
    else:
        work.show_environment(name, json_=json_)
