"""``rb-dspy backbones matrix``: which compiled prompts carry over to which language models."""

from __future__ import annotations

from typing import Annotated

import typer

from rb_dspy.cli import work
from rb_dspy.cli.again import options
from rb_dspy.cli.options import (
    ConfigOption,
    JsonOption,
    LessonsOption,
    LessonsScopeOption,
    SeedOption,
    SetOption,
    StreamOption,
    TasksFileOption,
    TrackOption,
)
from rb_dspy.cli.scaling import KOption, MattsOption, settings_for


def matrix_command(
    program: Annotated[
        list[str] | None,
        typer.Option(
            "--program",
            metavar="NAME=FILE",
            help="A compiled program, a folder of them by backbone, or a registered one: NAME=models:/NAME/2.",
        ),
    ] = None,
    backbone: Annotated[
        list[str] | None,
        typer.Option("--backbone", metavar="NAME=MODEL", help="A model, or a .toml with \\[backbones]."),
    ] = None,
    tasks_file: TasksFileOption = None,
    stream: StreamOption = None,
    tasks: Annotated[int | None, typer.Option("--tasks", "-n", min=1, help="As many as compile was given.")] = None,
    whole: Annotated[bool, typer.Option("--whole", help="All tasks of the file, not its held-out part.")] = False,
    orders: Annotated[int, typer.Option(min=1, help="Orders of the tasks; fewer than 3 show nothing.")] = 3,
    threads: Annotated[int, typer.Option(min=1, help="Orders at the same time.")] = 1,
    seed: SeedOption = None,
    matts: MattsOption = None,
    k: KOption = None,
    bank: LessonsOption = None,
    scope: LessonsScopeOption = None,
    track: TrackOption = None,
    config: ConfigOption = None,
    set_: SetOption = None,
    json_: JsonOption = False,
) -> None:
    """Run programs on backbones over held-out tasks, and say which to compile again.

    The tasks are those that `compile` with the same --tasks-file or --stream, -n and --seed kept apart. Every program
    is compared with the one without compiled prompts, on the same backbone. Every backbone is asked once first: where
    one cannot be used, the others are run, and the exit code is 4. With --track it is a run in MLflow, and every cell
    a run below it.
    """
    work.run_matrix(
        settings_for(config, set_, matts, k, run__stream=stream, run__seed=seed),
        program=program,
        backbone=backbone,
        tasks_file=tasks_file,
        stream=stream,
        tasks=tasks,
        whole=whole,
        orders=orders,
        threads=threads,
        bank=bank,
        scope=scope,
        track=track,
        same=options(tasks=tasks, seed=seed, matts=matts, k=k, bank=bank, scope=scope),
        config=config,
        set_=set_,
        json_=json_,
    )
