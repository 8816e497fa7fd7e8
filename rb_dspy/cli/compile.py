"""``rb-dspy compile``: better prompts for a program, from tasks, and how much better they are."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from rb_dspy.cli import work
from rb_dspy.cli.again import options, settings_options
from rb_dspy.cli.options import (
    CompileTrackOption,
    ConfigOption,
    JsonOption,
    LessonsOption,
    LessonsScopeOption,
    ProgramOption,
    SeedOption,
    SetOption,
    StreamOption,
    TasksFileOption,
)
from rb_dspy.cli.scaling import KOption, MattsOption, settings_for

Stage = Literal["judge", "select", "agent", "all"]
"""As in ``rb_dspy.compile.stages``, which imports dspy."""


def compile_(
    tasks_file: TasksFileOption = None,
    stream: StreamOption = None,
    tasks: Annotated[
        int | None,
        typer.Option("--tasks", "-n", min=3, help="How many in all; default: all of a file, 100 of a stream."),
    ] = None,
    stage: Annotated[Stage, typer.Option(help="One step, or the whole program.")] = "all",
    optimizer: Annotated[str, typer.Option(help="gepa, miprov2, simba, bootstrap or bootstrap_rs.")] = "gepa",
    budget: Annotated[int, typer.Option(min=1, help="How often a candidate may be run on an example and rated.")] = 100,
    reflection: Annotated[
        str | None, typer.Option(metavar="MODEL", help="Who proposes prompts: a model, or a role; default: the agent.")
    ] = None,
    out_file: Annotated[Path, typer.Option("--out", metavar="FILE", help="Where the result goes.")] = Path(
        "program.json"
    ),
    folder: Annotated[
        Path | None, typer.Option(help="What a stopped compile goes on from; default: below .rb/compile, by arguments.")
    ] = None,
    orders: Annotated[
        int, typer.Option(min=1, help="Orders of the tasks in scoring, in stage all; fewer than 3 show nothing.")
    ] = 8,
    window: Annotated[int | None, typer.Option(min=1, help="Tasks of one example, in stage all.")] = None,
    threads: Annotated[int, typer.Option(min=1, help="Examples at the same time.")] = 1,
    seed: SeedOption = None,
    name: Annotated[str | None, typer.Option(help="What it is for, in MLflow; default: the tasks' name.")] = None,
    program_file: ProgramOption = None,
    matts: MattsOption = None,
    k: KOption = None,
    bank: LessonsOption = None,
    scope: LessonsScopeOption = None,
    track: CompileTrackOption = None,
    config: ConfigOption = None,
    set_: SetOption = None,
    json_: JsonOption = False,
) -> None:
    """Compile the prompts for tasks of yours, and measure them on tasks that were kept apart.

    If it is stopped, the same command goes on where it was.
    """
    work.compile_prompts(
        settings_for(config, set_, matts, k, run__stream=stream, run__seed=seed),
        tasks_file=tasks_file,
        stream=stream,
        tasks=tasks,
        stage=stage,
        optimizer=optimizer,
        budget=budget,
        reflection=reflection,
        out_file=out_file,
        folder=folder,
        orders=orders,
        window=window,
        threads=threads,
        name=name,
        program_file=program_file,
        bank=bank,
        scope=scope,
        track=track,
        same=settings_options(config, set_) + options(matts=matts, k=k),
        json_=json_,
    )
