"""``rb-dspy envs``: what there is to do."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from rb_dspy.cli.common import JsonOption, err, out, print_json
from rb_dspy.environments import compare
from rb_dspy.errors import InputError, MissingDependency
from rb_dspy.plugins import environment_family, environment_names
from rb_dspy.stream import PRESETS, TaskStream


def envs(
    name: Annotated[str | None, typer.Argument(help="One environment; default: all of them, a line each.")] = None,
    baselines: Annotated[bool, typer.Option("--baselines", help="Play random, empty and oracle policies.")] = False,
    tasks: Annotated[int, typer.Option("--tasks", "-n", min=1, help="Tasks that each policy plays.")] = 20,
    seed: Annotated[int, typer.Option(help="Which tasks.")] = 0,
    json_: JsonOption = False,
) -> None:
    """The environments, their templates, and how baselines do in them."""
    if name is None:
        if baselines:
            raise InputError("--baselines needs the name of one environment, for example: rb-dspy envs twc --baselines")
        _overview(json_=json_)
    elif baselines:
        _baselines(name, tasks, seed, json_=json_)
    else:
        _one(name, json_=json_)


def _overview(*, json_: bool) -> None:
    table = Table("stream", "environment", "templates", "ready", box=None, pad_edge=False, header_style="bold")
    for stream in (*environment_names(), *PRESETS):
        family_name, preset = PRESETS.get(stream, (stream, None))
        family = environment_family(family_name)
        try:
            family.check()
            ready, problem = True, ""
            templates = len(preset or family.templates())
        except MissingDependency as exc:
            ready, problem, templates = False, str(exc), len(preset or ())
        if json_:
            print_json({"stream": stream, "environment": family_name, "templates": templates, "problem": problem})
        shown = Text("yes", "green") if ready else Text(problem, "red")
        table.add_row(Text(stream), Text(family_name), str(templates or "your own file"), shown)
    if not json_:
        out.print(table)
        out.print("\n[dim]rb-dspy run --stream NAME; rb-dspy envs NAME shows its templates and a task[/]")


def _one(name: str, *, json_: bool) -> None:
    family = environment_family(PRESETS.get(name, (name, ()))[0])
    family.check()
    templates = list(PRESETS.get(name, (name, None))[1] or family.templates())
    if json_:
        print_json({"stream": name, "templates": templates})
        return
    listed = ", ".join(templates) or "your own file of tasks"
    out.print(Text.assemble((f"{len(templates)} templates", "bold"), f"  {listed}"))
    if templates:
        (task,) = TaskStream.named(name, n=1)
        out.print(Text.assemble("\n", (task.id, "bold"), f"\n{task.instruction}"))


def _baselines(name: str, tasks: int, seed: int, *, json_: bool) -> None:
    family = environment_family(name)
    family.check()
    with err.status(f"playing {tasks} tasks with each policy …"):
        rows = compare(family, seed=seed, tasks=tasks)
    table = Table("policy", "tasks", "reward", "solved", "steps", "ms a task", box=None, pad_edge=False)
    for row in rows:
        if json_:
            print_json(asdict(row))
        numbers = (f"{row.reward:.2f}", f"{row.success:.0%}", f"{row.steps:.1f}", f"{row.seconds * 1000:.0f}")
        table.add_row(row.policy, str(row.tasks), *numbers)
    if not json_:
        out.print(table)
