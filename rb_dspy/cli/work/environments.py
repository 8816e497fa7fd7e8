"""What ``rb-dspy envs`` does: environments are listed, shown and tried."""

from __future__ import annotations

import inspect
from dataclasses import asdict

from rich.table import Table
from rich.text import Text

from rb_dspy.cli.common import err, out, print_json
from rb_dspy.environments import compare
from rb_dspy.errors import describe_error
from rb_dspy.plugins import environment_family, environment_names
from rb_dspy.stream import PRESETS, TaskStream
from rb_dspy.text import counted


def list_environments(*, json_: bool) -> None:
    """A line for every stream, also for those whose packages are not installed, or are broken."""
    table = Table("stream", "environment", "templates", "ready", box=None, pad_edge=False, header_style="bold")
    for stream in (*environment_names(), *PRESETS):
        family_name, preset = PRESETS.get(stream, (stream, None))
        try:
            family = environment_family(family_name)
            family.check()
            ready, problem = True, ""
            templates = len(preset or family.templates())
        except Exception as exc:  # noqa: BLE001 (a family of another package must not take the list away)
            ready, problem, templates = False, describe_error(exc), len(preset or ())
        if json_:
            print_json({"stream": stream, "environment": family_name, "templates": templates, "problem": problem})
        shown = Text("yes", "green") if ready else Text(problem, "red")
        table.add_row(Text(stream), Text(family_name), str(templates or "your own file"), shown)
    if not json_:
        out.print(table)
        out.print("\n[dim]rb-dspy run --stream NAME; rb-dspy envs NAME shows its templates and a task[/]")


def show_environment(name: str, *, json_: bool) -> None:
    """The templates of one, and a task."""
    family = environment_family(PRESETS.get(name, (name, ()))[0])
    family.check()
    templates = list(PRESETS.get(name, (name, None))[1] or family.templates())
    if json_:
        print_json({"stream": name, "templates": templates})
        return
    listed = ", ".join(templates) or "your own file of tasks"
    out.print(Text.assemble((counted(len(templates), "template"), "bold"), f"  {listed}"))
    for paragraph in (inspect.getdoc(type(family)) or "").split("\n\n"):
        if about := " ".join(paragraph.replace("``", "").split()):
            out.print(Text(f"\n{about}", "dim"))
    if templates:
        (task,) = TaskStream.named(name, n=1)
        out.print(Text.assemble("\n", (task.id, "bold"), f"\n{task.instruction}"))


def play_baselines(name: str, tasks: int, seed: int, *, json_: bool) -> None:
    """How each policy does in one."""
    family = environment_family(name)
    family.check()
    with err.status(f"playing {counted(tasks, 'task')} with each policy …"):
        rows = compare(family, seed=seed, tasks=tasks)
    table = Table("policy", "tasks", "reward", "solved", "steps", "ms a task", box=None, pad_edge=False)
    for row in rows:
        if json_:
            print_json(asdict(row))
        numbers = (f"{row.reward:.2f}", f"{row.success:.0%}", f"{row.steps:.1f}", f"{row.seconds * 1000:.0f}")
        table.add_row(row.policy, str(row.tasks), *numbers)
    if not json_:
        out.print(table)
