"""``rb-dspy evaluate``: does memory, or another program or model, help on these tasks?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from rb_dspy.cli import options
from rb_dspy.cli.output import bar, command_line, confirm_cost, emit, ends_on_interrupt, out, say
from rb_dspy.errors import InputError, RequirementFailed

if TYPE_CHECKING:
    from rb_dspy.config import BackboneConfig, MemoryMode, Settings
    from rb_dspy.evaluation import Arm
    from rb_dspy.matts import BankProgram

SCREENED = 20
"""Default number of tasks of --screen."""


@options.shared
def evaluate(
    context: typer.Context,
    on: options.OnTasks,
    arms: Annotated[str | None, options.setting("evaluate.arms", metavar="A,B")] = None,
    models: Annotated[
        str | None,
        typer.Option(
            metavar="A,B",
            help="Compare these models as the agent; roles without a model of their own use them too.",
        ),
    ] = None,
    baseline: Annotated[str | None, options.setting("evaluate.baseline", metavar="ARM")] = None,
    orders: Annotated[int | None, options.setting("evaluate.orders")] = None,
    jobs: Annotated[int | None, options.setting("evaluate.jobs", "--jobs", "-j")] = None,
    lessons: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Lessons for the arm oracle, as JSON Lines with title and content."),
    ] = None,
    screen: Annotated[
        bool, typer.Option("--screen", help="Only check whether perfect lessons would help: none against oracle.")
    ] = False,
    require: Annotated[
        Literal["learning", "not-harm"] | None,
        typer.Option(
            metavar="VERDICT", help="Exit with 8 unless the verdict is LEARNING (learning), or not HARM (not-harm)."
        ),
    ] = None,
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

    if screen and any(each is not None for each in (arms, models, baseline, orders)):
        raise InputError(
            "evaluate: --screen compares none and oracle in one order; leave out --arms, --models, --baseline and"
            " --orders; for another model: --set agent=PROVIDER/MODEL"
        )
    given = {"arms": arms, "baseline": baseline, "orders": orders, "jobs": jobs}
    chosen = on.settings(**{f"evaluate__{name}": value for name, value in given.items()})
    config = chosen.evaluate
    if screen:  # one order, because nothing is learned
        config = config.model_copy(update={"arms": ("none", "oracle"), "baseline": "none", "orders": 1})
    if lessons is not None and (models is not None or "oracle" not in config.arms):
        raise InputError("evaluate: --lessons is for the arm oracle; add oracle to --arms, or use --screen")
    found = on.source(chosen)
    stream = task_stream(found, on.number or (SCREENED if screen else None))
    built = on.build(chosen)
    with start_bank(chosen, bank, scope) as start, on.budget():
        sides = _arms(built, config.arms, models, start, chosen)
        how: dict[str, Any] = {"orders": config.orders, "seed": chosen.run.seed}
        how["baseline"] = config.baseline if models is None else baseline
        plan = plan_of(sides, stream, program=None, **how)
        sources: dict[str, Any] = {"lessons": lessons, "embedder": chosen.bank.embedder}
        stated = describe(plan) | describe_sources(plan, **sources)
        place = folder or Path("rb-evaluations") / f"{stream.name}-{stream.digest[:8]}-{stable(stated)[:8]}"
        how |= {"jobs": config.jobs, "folder": place}
        estimate = evaluation.estimate(sides, stream, **how)
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
                estimate = evaluation.measure(sides, stream, **how, **sources, on_progress=show)
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

            report = evaluation.evaluate(sides, stream, **how, **sources, on_progress=on_progress)
            report = report.model_copy(update={"command": command_line(context)})
            report.save(place)
            tracked.log_report(report)
    emit({**report.model_dump(mode="json"), "folder": place, "mlflow_run": tracked.id})
    out.print(Markdown(report.to_markdown()))
    say("\nreport: ", (str(place / "report.html"), "bold"), f"; in MLflow: run {tracked.id}" if tracked.id else "")
    if (require == "learning" and report.verdict != "LEARNING") or (require == "not-harm" and report.verdict == "HARM"):
        raise RequirementFailed(
            f"--require {require}: the verdict of {report.primary} is {report.verdict}; see {place}"
        )


def _arms(
    program: BankProgram, arms: tuple[MemoryMode, ...], models: str | None, bank: Any, chosen: Settings
) -> dict[str, Arm]:
    """The arms by name: memory modes, or models as agents of the program; those with memory start from ``bank``."""
    from rb_dspy.backbones import Backbones
    from rb_dspy.evaluation import Arm

    if models is None:
        return {name: Arm(program, name, bank=None if name in ("none", "oracle") else bank) for name in arms}
    sides = _backbones(chosen, models)
    return {name: Arm(program, "bank", Backbones.from_settings(roles), bank) for name, roles in sides.items()}


def _backbones(chosen: Settings, models: str | None) -> dict[str, dict[str, BackboneConfig]]:
    """The language models by role, for each of ``models`` as the agent; None: those of the settings."""
    from rb_dspy.config import BackboneConfig

    if models is None:
        return {"": chosen.roles}
    agent, sides = chosen.backbones["agent"], {}
    for name in filter(None, map(str.strip, models.split(","))):  # those of its provider keep the agent's settings
        same = name.partition("/")[0] == agent.model.partition("/")[0]
        config = agent.model_copy(update={"model": name}) if same else BackboneConfig(model=name)
        sides[name] = {**chosen.roles, "agent": config}
    return sides
