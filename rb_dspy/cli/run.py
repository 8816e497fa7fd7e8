"""``rb-dspy run``: the ReasoningBank program, or MaTTS, over a stream of tasks."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from rb_dspy.cli import work
from rb_dspy.cli.options import (
    BankOption,
    ConfigOption,
    JsonLinesOption,
    ProgramOption,
    ScopeOption,
    SetOption,
    TrackOption,
    default,
)
from rb_dspy.cli.scaling import KOption, MattsOption, settings_for
from rb_dspy.config import RunConfig
from rb_dspy.errors import InputError


def run(
    config: ConfigOption = None,
    set_: SetOption = None,
    stream: Annotated[
        str | None,
        typer.Option(
            help="A named stream (see rb-dspy envs) or a file of tasks, a .jsonl, .csv or .parquet;"
            f" {default('run.stream', RunConfig().stream)}"
        ),
    ] = None,
    task: Annotated[str | None, typer.Option(help="One question of your own instead of a stream.")] = None,
    tasks: Annotated[
        int | None,
        typer.Option(
            "--tasks",
            "-n",
            help=f"How many tasks that the bank has not seen; {default('run.tasks', RunConfig().tasks)}",
        ),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(
            help="Which tasks a named stream is made of, or how a file is shuffled; without it a file keeps its order;"
            f" {default('run.seed', RunConfig().seed)}"
        ),
    ] = None,
    memory: Annotated[
        Literal["on", "frozen", "off", "both"] | None,
        typer.Option(
            help="frozen: show lessons, learn nothing; off: no memory; both: the same tasks without, then with"
            f" memory, side by side, nothing is stored; {default('run.memory', RunConfig().memory)}"
        ),
    ] = None,
    program: ProgramOption = None,
    matts: MattsOption = None,
    k: KOption = None,
    bank: BankOption = None,
    scope: ScopeOption = None,
    track: TrackOption = None,
    json_: JsonLinesOption = False,
) -> None:
    """Run the program over a stream of tasks, learning from each; a second run goes on where the first ended."""
    if task is not None and stream is not None:
        raise InputError("--task and --stream: one question, or a stream of tasks; give one of the two")
    given = {"run__stream": stream, "run__tasks": tasks, "run__seed": seed, "run__memory": memory}
    given |= {"bank__url": bank, "bank__scope": scope}
    chosen = settings_for(config, set_, matts, k, **given)
    work.run_tasks(chosen, task, program, track, json_=json_)
