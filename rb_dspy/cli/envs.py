"""``rb-dspy envs``: the environments, and the streams of tasks that they generate."""

from __future__ import annotations

import inspect
from typing import Annotated

import typer
from rich.text import Text

from rb_dspy.cli import options
from rb_dspy.cli.output import emit, out, say, table
from rb_dspy.errors import describe_error
from rb_dspy.text import counted


@options.shared
def envs(name: Annotated[str | None, typer.Argument(help="Show one stream; default: list all.")] = None) -> None:
    """List environments, their templates, and whether they can run here."""
    from rb_dspy.plugins import environment_family, environment_names
    from rb_dspy.stream import PRESETS

    if name is not None:
        _show(name)
        return
    shown = table("stream", "environment", "templates", "ready")
    for stream in (*environment_names(), *PRESETS):
        env, preset = PRESETS.get(stream, (stream, None))
        templates, problem = len(preset or ()), ""
        try:
            family = environment_family(env)
            family.check()
            templates = len(preset or family.templates())
        except Exception as exc:  # noqa: BLE001 (a family of another package may raise anything)
            problem = describe_error(exc)
        emit({"stream": stream, "environment": env, "templates": templates, "problem": problem})
        ready = Text(problem, "red") if problem else Text("yes", "green")
        shown.add_row(Text(stream), Text(env), str(templates or "your file"), ready)
    out.print(shown)
    say(("rb-dspy envs NAME shows one; rb-dspy run NAME runs its tasks; --env uses your own environment", "dim"))


def _show(name: str) -> None:
    """Print the templates of one stream, and its first task."""
    from rb_dspy.plugins import environment_family
    from rb_dspy.stream import PRESETS, TaskStream

    env, preset = PRESETS.get(name, (name, None))
    family = environment_family(env)
    family.check()
    templates = list(preset or family.templates())
    (task,) = TaskStream.named(name, n=1) if templates else (None,)
    emit({"stream": name, "environment": env, "templates": templates, "task": task})
    say((counted(len(templates), "template"), "bold"), f"  {', '.join(templates) or 'your own file of tasks'}")
    for paragraph in (inspect.getdoc(type(family)) or "").split("\n\n"):
        if about := " ".join(paragraph.replace("``", "").split()):
            out.print(Text(f"\n{about}", "dim"))
    if task is not None:
        out.print(Text.assemble("\n", (task.id, "bold"), f"\n{task.instruction}"))
