"""``rb-dspy evaluate``: does memory, or another program or model, help on these tasks?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rb_dspy.cli import options
from rb_dspy.cli.output import bar, command_line, confirm_cost, emit, ends_on_interrupt, out, say
from rb_dspy.errors import InputError

if TYPE_CHECKING:
    from rb_dspy.config import BackboneConfig, Settings
    from rb_dspy.evaluation import Arm
    from rb_dspy.matts import BankProgram

ARMS, ORDERS = "none,bank", 8
SCREENED = 20
"""Default number of tasks of --screen."""


@options.shared
def evaluate(
    context: typer.Context,
    on: options.OnTasks,
    arms: Annotated[
        str,
        typer.Option(
            metavar="A,B",
            help="Memory modes to compare: none, bank, placebo, shuffled, raw, success_only, true_verdicts, oracle.",
        ),
    ] = ARMS,
    models: Annotated[
        str | None,
        typer.Option(
            metavar="A,B",
            help="Compare these models as the agent; roles without a model of their own use them too.",
        ),
    ] = None,
    baseline: Annotated[
        str | None, typer.Option(metavar="ARM", help="The arm to compare with; default: the arm none, else the first.")
    ] = None,
    orders: Annotated[
        int, typer.Option(min=1, metavar="N", help="Number of task orders; fewer than 8 are exploratory.")
    ] = ORDERS,
    jobs: Annotated[int, typer.Option("--jobs", "-j", min=1, metavar="N", help="Streams run in parallel.")] = 1,
    lessons: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Lessons for the arm oracle, as JSON Lines with title and content."),
    ] = None,
    screen: Annotated[
        bool, typer.Option("--screen", help="Only check whether perfect lessons would help: none against oracle.")
    ] = False,
    folder: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Folder of results and report; continues an evaluation there. Default: rb-evaluations/...",
        ),
    ] = None,
    bank: options.StartBank = None,
    scope: options.Scope = None,
    yes: options.Yes = False,
) -> None:
    """Compare arms on the same tasks in the same orders: LEARNING, NULL, HARM or UNRESOLVED, with an interval.

    Without --arms: no memory against a bank that starts empty. Start with --screen, which needs few tasks: if perfect
    lessons do not help, no memory can. To continue an interrupted evaluation, run the same command again.
    """
    from rich.markdown import Markdown

    from rb_dspy import evaluation
    from rb_dspy.cli.models import preflight
    from rb_dspy.cli.program import start_bank, tracker
    from rb_dspy.cli.tasks import task_stream
    from rb_dspy.evaluation.identity import stable
    from rb_dspy.evaluation.plan import describe, describe_sources, plan_of

    if screen and (arms, models, baseline, orders) != (ARMS, None, None, ORDERS):
        raise InputError(
            "evaluate: --screen compares none and oracle in one order; leave out --arms, --models, --baseline and"
            " --orders; for another model: --set agent=PROVIDER/MODEL"
        )
    if lessons is not None and not screen and (models is not None or "oracle" not in _names(arms)):
        raise InputError("evaluate: --lessons is for the arm oracle; add oracle to --arms, or use --screen")
    chosen = on.settings()
    found = on.source(chosen)
    stream = task_stream(found, on.number or (SCREENED if screen else None))
    built = on.build(chosen)
    if screen:
        arms, models, baseline, orders = "none,oracle", None, "none", 1  # nothing is learned
    with start_bank(chosen, bank, scope) as start, on.budget():
        sides = _arms(built, arms, models, start, chosen)
        shared: dict[str, Any] = {"orders": orders, "seed": chosen.run.seed, "baseline": baseline}
        plan = plan_of(sides, stream, program=None, **shared)
        given: dict[str, Any] = {"lessons": lessons, "embedder": chosen.bank.embedder}
        stated = describe(plan) | describe_sources(plan, **given)
        place = folder or Path("rb-evaluations") / f"{stream.name}-{stream.digest[:8]}-{stable(stated)[:8]}"
        estimate = evaluation.estimate(sides, stream, **shared, jobs=jobs, folder=place)
        learning = {arm.memory for arm in sides.values() if arm.learns}
        if estimate.done < estimate.tasks:
            settings = [chosen.model_copy(update={"backbones": roles}) for roles in _backbones(chosen, models).values()]
            judges, teaches = bool(learning - {"true_verdicts"}), bool(learning - {"raw"})
            preflight(*settings, agent=on.agent is None, judge=judges, teacher=teaches)
        asks = not (yes or out.quiet)
        say((found.name, "bold"), f"  {', '.join(sides)}")
        say((f"{estimate}; results in {place}", "dim"))
        if estimate.calls is None and asks:
            with ends_on_interrupt(f"results are in {place}; the same command continues"), bar("measuring") as show:
                estimate = evaluation.measure(
                    sides, stream, **shared, **given, jobs=jobs, folder=place, on_progress=show
                )
            say((str(estimate), "dim"))
        confirm_cost(estimate.calls or 0, yes=not asks)
        with (
            ends_on_interrupt(f"results are in {place}; the same command continues"),
            tracker(chosen, on.track).evaluation_run(stream.name, stream) as tracked,
            bar("evaluating") as show,
        ):

            def on_progress(progress: evaluation.Progress) -> None:
                show(progress)
                tracked.on_progress(progress)

            report = evaluation.evaluate(
                sides, stream, **shared, **given, jobs=jobs, folder=place, on_progress=on_progress
            )
            report = report.model_copy(update={"command": command_line(context)})
            report.save(place)
            tracked.log_report(report)
    emit({**report.model_dump(mode="json"), "folder": place, "mlflow_run": tracked.id})
    out.print(Markdown(report.to_markdown()))
    say("\nreport: ", (str(place / "report.html"), "bold"), f"; in MLflow: run {tracked.id}" if tracked.id else "")


def _arms(program: BankProgram, arms: str, models: str | None, bank: Any, chosen: Settings) -> dict[str, Arm]:
    """The arms by name: memory modes, or models as agents of the program; those with memory start from ``bank``."""
    from rb_dspy.backbones import Backbones
    from rb_dspy.evaluation import Arm

    if models is None:
        memories: list[Any] = _names(arms.replace("-", "_"))
        return {name: Arm(program, name, bank=None if name in ("none", "oracle") else bank) for name in memories}
    sides = _backbones(chosen, models)
    return {name: Arm(program, "bank", Backbones.from_settings(roles), bank) for name, roles in sides.items()}


def _backbones(chosen: Settings, models: str | None) -> dict[str, dict[str, BackboneConfig]]:
    """The language models by role, for each of ``models`` as the agent; None: those of the settings."""
    from rb_dspy.config import BackboneConfig

    if models is None:
        return {"": chosen.roles}
    agent, sides = chosen.backbones["agent"], {}
    for name in _names(models):  # a model of the same provider keeps the agent's address and settings
        same = name.partition("/")[0] == agent.model.partition("/")[0]
        config = agent.model_copy(update={"model": name}) if same else BackboneConfig(model=name)
        sides[name] = {**chosen.roles, "agent": config}
    return sides


def _names(listed: str) -> list[str]:
    return [name.strip() for name in listed.split(",") if name.strip()]
