"""``rb-dspy compile``: better prompts from tasks, measured on tasks that were held out."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.rule import Rule
from rich.text import Text

from rb_dspy.cli import options
from rb_dspy.cli.output import (
    bar,
    confirm_cost,
    emit,
    ends_on_interrupt,
    library_log,
    out,
    print_diff,
    say,
    table,
    usage_table,
)
from rb_dspy.config import CompileStep
from rb_dspy.errors import InputError
from rb_dspy.text import counted

if TYPE_CHECKING:
    from rb_dspy.compile.result import Compiled


@options.shared
def compile_(
    on: options.OnTasks,
    optimizer: Annotated[str | None, options.setting("compile.optimizer", metavar="NAME")] = None,
    step: Annotated[CompileStep | None, options.setting("compile.step", metavar="STEP")] = None,
    budget: Annotated[int | None, options.setting("compile.budget")] = None,
    reflection: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL",
            help="Model or role that proposes prompts; default: backbones.reflection, else the agent's.",
        ),
    ] = None,
    orders: Annotated[int | None, options.setting("compile.orders")] = None,
    window: Annotated[int | None, options.setting("compile.window")] = None,
    jobs: Annotated[int | None, options.setting("compile.jobs", "--jobs", "-j")] = None,
    save: Annotated[Path, typer.Option("--save", metavar="FILE", help="File for the result.")] = Path("program.json"),
    register: Annotated[
        str | None, typer.Option(metavar="NAME", help="Register the result in MLflow, as champion if it improved.")
    ] = None,
    bank: options.StartBank = None,
    scope: options.Scope = None,
    yes: options.Yes = False,
) -> None:
    """Compile the prompts on some of the tasks; measure before and after on the others.

    The tasks need ground truth. To continue an interrupted compile, run the same command again: it makes only the
    model calls that are missing.
    """
    from rb_dspy.cli.models import preflight
    from rb_dspy.cli.program import reflection_model, start_bank, tracker
    from rb_dspy.cli.tasks import compile_streams
    from rb_dspy.compile.compile import compile_program
    from rb_dspy.compile.plan import measure_compile, plan_compile
    from rb_dspy.compile.progress import Progress
    from rb_dspy.prompts import read_state

    given = {"optimizer": optimizer, "step": step, "budget": budget, "orders": orders}
    given |= {"window": window, "jobs": jobs}
    chosen = on.settings(**{f"compile__{name}": value for name, value in given.items()})
    config = chosen.compile
    found = on.source(chosen)
    streams = compile_streams(found, on.number)
    log = save.with_name(f"{save.name}.log")
    if save.is_dir() or not save.absolute().parent.is_dir():
        raise InputError(f"--save {save}: expected the name of a file in a folder that exists")
    if save.exists():
        read_state(save)  # raises for any other file, so that it is not replaced
    built = on.build(chosen)
    tracking = tracker(chosen, on.track)
    registry = None if register is None else tracker(chosen, True)
    with start_bank(chosen, bank, scope) as start, on.budget():
        arguments: dict[str, Any] = {**config.model_dump(), "bank": start}
        plan = plan_compile(built, streams, **arguments)
        asks = not (yes or out.quiet)
        of_model: dict[str, Any] = {"bank": start, "embedder": chosen.bank.embedder, "environments": on.env}
        if registry is not None and register is not None:
            registry.check(built, register, **of_model)
        arguments |= {"reflection": reflection_model(chosen, reflection), "seed": chosen.run.seed}
        arguments |= {"embedder": chosen.bank.embedder}
        say((found.name, "bold"), f"  {config.optimizer}, step {config.step}, {counted(config.budget, 'metric call')}")
        say((str(plan), "dim"))
        preflight(chosen, agent=on.agent is None)
        if asks:
            with bar("measuring two tasks"):
                plan = measure_compile(plan, built, streams, bank=start, embedder=chosen.bank.embedder)
            say((f"measured: at most {plan.calls:,} calls, {plan.tokens:,} tokens{plan.price}", "dim"))
        confirm_cost(plan.calls or 0, yes=not asks)
        with (
            ends_on_interrupt("answers are in DSPy's cache; run the same command to continue"),
            tracking.compile_run(Path(found.name).stem, built, streams, params={"seed": chosen.run.seed}) as tracked,
            bar("compiling") as show,
        ):

            def on_progress(progress: Progress) -> None:
                show(progress)
                tracked.on_progress(progress)

            with library_log(log):
                compiled = compile_program(built, streams, **arguments, on_progress=on_progress)
            compiled.save(save)
            tracked.log_compiled(compiled)
        version = None
        if registry is not None and register is not None:
            version = registry.register(compiled, built, register, **of_model)
    left_out = {"state", "candidates", "prompts_before", "prompts_after", "task_parts"}
    about = {"improved": compiled.improved, "changed": compiled.changed, "diff": compiled.diff()}
    about |= {"saved": save, "version": version, "mlflow_run": tracked.id}
    emit({**compiled.model_dump(mode="json", exclude=left_out), **about})
    _print_result(compiled)
    in_mlflow = f"; in MLflow: run {tracked.id}" if tracked.id else ""
    say("saved: ", (str(save), "bold"), f"; the optimizer's log: {log}{in_mlflow}")
    if version is not None:
        say(f"registered: {register} version {version}, {'the champion' if compiled.improved else 'not the champion'}")
    if compiled.changed:
        name = str(save) if version is None else f"models:/{register}/{version}"
        more = f" --matts {chosen.matts.mode} --k {chosen.matts.k}" if chosen.matts else ""
        own = (("--env", on.env), ("--agent", on.agent), ("--score", on.score))
        more += "".join(f" {option} {name}" for option, name in own if name)
        say("use it: ", (f"rb-dspy run {found.name} --program {name}{more}", "bold"))


def _print_result(compiled: Compiled) -> None:
    """Print the scores before and after, the changed prompts, and the cost."""
    out.print(Rule("scores", align="left", style="dim"))
    shown = table("", "before", "after", "difference", "tasks", "", right=("tasks",))
    for name, each in (("dev", compiled.dev), ("held-out", compiled.held_out)):
        verdict = Text("better", "green") if each.better else Text("not shown to be better", "yellow")
        scores = (f"{100 * score:.0f} %" for score in (each.before, each.after))
        cells = (*scores, f"{each.difference:+} points", str(each.tasks))
        shown.add_row(Text(name, "bold"), *cells, verdict if name == "held-out" else "")
    out.print(shown)
    say((f"measured: {compiled.measure}; dev scores are optimistic: prompts were chosen on dev", "dim"))
    out.print(Rule("prompts", align="left", style="dim"))
    if compiled.changed:
        print_diff(compiled.diff())
    else:
        say("unchanged: no candidate was better on dev; a larger --budget or another optimizer may find one")
    out.print(Rule("cost", align="left", style="dim"))
    out.print(usage_table(compiled.usage))
    broken = f"; {compiled.broken} failed and count as 0" if compiled.broken else ""
    calls = f"{compiled.metric_calls} of {counted(compiled.budget, 'metric call')}"
    say((f"{calls}, {compiled.seconds:,.0f} s{broken}", "dim"))
