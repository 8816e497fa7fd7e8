"""``rb-dspy evaluate``: does memory, or another program or model, help on these tasks?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from rb_dspy.cli import options
from rb_dspy.cli.output import bar, command_line, confirm_cost, emit, ends_on_interrupt, out, say
from rb_dspy.errors import InputError, RequirementFailed

if TYPE_CHECKING:
    from rb_dspy.config import EvaluateConfig, Settings
    from rb_dspy.matts import BankProgram
    from rb_dspy.stream import TaskStream

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
    signal: Annotated[str | None, options.setting("evaluate.signal", metavar="SIGNAL")] = None,
    unequal_signals: Annotated[
        bool,
        typer.Option(
            "--unequal-signals", help="Give a verdict also on arms of which one learns from the judge, one from truth."
        ),
    ] = False,
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
    on_: Annotated[
        str | None,
        typer.Option("--on", metavar="URL", help="A PostgreSQL database, in which many machines share the evaluation."),
    ] = None,
    enqueue: Annotated[bool, typer.Option("--enqueue", help="Only queue it, for rb-dspy work URL; with --on.")] = False,
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
    from rb_dspy.evaluation.queue import agents, sides
    from rb_dspy.plugins import memory_name

    if screen and any(each is not None for each in (arms, models, baseline, orders)):
        raise InputError(
            "evaluate: --screen compares none and oracle in one order; leave out --arms, --models, --baseline and"
            " --orders; for another model: --set agent=PROVIDER/MODEL"
        )
    if enqueue and on_ is None:
        raise InputError("evaluate: --enqueue needs --on postgresql://..., the database of the queue")
    given = {"arms": arms, "baseline": baseline, "orders": orders, "jobs": jobs, "signal": signal}
    chosen = on.settings(**{f"evaluate__{name}": value for name, value in given.items()})
    config = chosen.evaluate
    config = config.model_copy(update={"arms": tuple(map(memory_name, config.arms))})
    if screen:  # one order, because nothing is learned
        config = config.model_copy(update={"arms": ("none", "oracle"), "baseline": "none", "orders": 1})
    found = on.source(chosen)
    stream = task_stream(found, on.number or (SCREENED if screen else None))
    built = on.build(chosen)
    names = [] if models is None else [*filter(None, map(str.strip, models.split(",")))]
    with start_bank(chosen, bank, scope) as start, on.budget():
        arms_ = sides(built, config.arms, names, start, chosen.roles, config.signal)
        if lessons is not None and not any(arm.needs_lessons for arm in arms_.values()):
            raise InputError("evaluate: --lessons is for the arm oracle; add oracle to --arms, or use --screen")
        how: dict[str, Any] = {"orders": config.orders, "seed": chosen.run.seed}
        how["baseline"] = config.baseline if models is None else baseline
        plan = plan_of(arms_, stream, program=None, **how)
        sources: dict[str, Any] = {"lessons": lessons, "embedder": chosen.bank.embedder}
        stated = describe(plan) | describe_sources(plan, **sources)
        place = folder or Path("rb-evaluations") / f"{stream.name}-{stream.digest[:8]}-{stable(stated)[:8]}"
        if enqueue:
            config = config.model_copy(update={"baseline": how["baseline"]})
            _enqueue(str(on_), on, chosen, config, names, stream, built, lessons, (bank, scope), unequal_signals)
            return
        where = f"the database, the report in {place}" if on_ else place
        how |= {"jobs": config.jobs}
        shared: dict[str, Any] = {**how, "folder": on_ or place}
        estimate = evaluation.estimate(arms_, stream, **how, folder=None if on_ else place)
        if estimate.done < estimate.tasks:
            settings = [
                chosen.model_copy(update={"backbones": roles}) for roles in agents(names, chosen.roles).values()
            ]
            judges = any(arm.learns_from == "judge" for arm in arms_.values())
            teaches = any(arm.distills for arm in arms_.values())
            preflight(*settings, agent=on.agent is None, judge=judges, teacher=teaches)
        asks = not (yes or out.quiet)
        say((found.name, "bold"), f"  {', '.join(arms_)}")
        say((f"{estimate}; results in {where}", "dim"))
        if estimate.calls is None and asks:
            with ends_on_interrupt(f"results are in {where}; the same command continues"), bar("measuring") as show:
                estimate = evaluation.measure(arms_, stream, **shared, **sources, on_progress=show)
            say((str(estimate), "dim"))
        confirm_cost(estimate.calls or 0, yes=not asks)
        with (
            ends_on_interrupt(f"results are in {where}; the same command continues"),
            tracker(chosen, on.track).evaluation_run(stream.name, stream) as tracked,
            bar("evaluating") as show,
        ):

            def on_progress(progress: evaluation.Progress) -> None:
                show(progress)
                tracked.on_progress(progress)

            sources["unequal_signals"] = unequal_signals
            report = evaluation.evaluate(arms_, stream, **shared, **sources, on_progress=on_progress)
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


def _enqueue(
    url: str,
    on: options.OnTasks,
    chosen: Settings,
    config: EvaluateConfig,
    models: list[str],
    stream: TaskStream,
    program: BankProgram,
    lessons: Path | None,
    start: tuple[str | None, str | None],
    unequal_signals: bool,
) -> None:
    """Queue the evaluation, with all that a worker elsewhere needs for it."""
    from rb_dspy.evaluation import queue
    from rb_dspy.evaluation.arms import oracle_lessons
    from rb_dspy.prompts import state_of

    begins = None if start == (None, None) else (start[0] or chosen.bank.url, start[1] or chosen.bank.scope)
    if begins and "://" not in begins[0]:
        raise InputError(f"evaluate: --bank {begins[0]} is a file of this machine; expected a bank in PostgreSQL")
    job = queue.Job(
        name=stream.name,
        tasks=tuple(stream),
        arms=config.arms,
        models=tuple(models),
        orders=config.orders,
        baseline=config.baseline,
        signal=config.signal,
        unequal_signals=unequal_signals,
        settings=chosen.model_dump(
            mode="json", exclude_unset=True, exclude={"tracking": True, "bank": {"url", "scope"}}
        ),
        env=on.env,
        agent=on.agent,
        score=on.score,
        prompts=None if on.program is None else state_of(program),
        start=begins,
        lessons=None if lessons is None else tuple(oracle_lessons(lessons, stream)),
    )
    id = queue.enqueue(url, job)
    emit({"job": id})
    say("queued as ", (id, "bold"), "; on each machine: ", ("rb-dspy work URL --jobs 24", "bold"))
