"""``rb-dspy evaluate``: does memory, or another program or model, help on these tasks?"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from rb_dspy.cli.bank_change import confirm
from rb_dspy.cli.options import (
    ConfigOption,
    EnvOption,
    JsonOption,
    KOption,
    MattsOption,
    NumberOption,
    ProgramOption,
    ScopeOption,
    SeedOption,
    SetOption,
    StartBankOption,
    TasksArgument,
    TrackOption,
    YesOption,
    program_settings,
)
from rb_dspy.cli.output import err, out, print_json, say, short_number, table
from rb_dspy.errors import InputError
from rb_dspy.text import counted

if TYPE_CHECKING:
    from rb_dspy.config import Settings
    from rb_dspy.evaluation import Estimate, Report
    from rb_dspy.matts import BankProgram


def evaluate(
    tasks: TasksArgument = None,
    number: NumberOption = None,
    seed: SeedOption = None,
    arms: Annotated[
        str,
        typer.Option(
            help="Memory modes to compare: none, bank, placebo, shuffled, raw, success_only, true_verdicts, oracle."
        ),
    ] = "none,bank",
    models: Annotated[
        str | None, typer.Option(metavar="A,B", help="Compare these models as the agent, instead of memory modes.")
    ] = None,
    baseline: Annotated[
        str | None, typer.Option(help="The arm to compare with; default: none, else the first.")
    ] = None,
    orders: Annotated[int, typer.Option(min=1, help="Orders of the tasks; fewer than 8 are exploratory.")] = 8,
    jobs: Annotated[int, typer.Option("--jobs", "-j", min=1, help="Streams that run side by side.")] = 1,
    lessons: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Lessons of the arm oracle, as JSON Lines with title and content."),
    ] = None,
    screen: Annotated[
        bool, typer.Option("--screen", help="Only ask whether perfect lessons would help: none against oracle.")
    ] = False,
    folder: Annotated[
        Path | None, typer.Option(help="Results and report; an evaluation there continues. Default: rb-evaluations/...")
    ] = None,
    env: EnvOption = None,
    program: ProgramOption = None,
    matts: MattsOption = None,
    k: KOption = None,
    bank: StartBankOption = None,
    scope: ScopeOption = None,
    track: TrackOption = None,
    yes: YesOption = False,
    config: ConfigOption = None,
    set_: SetOption = None,
    json_: JsonOption = False,
) -> None:
    """Compare arms on the same tasks in the same orders: LEARNING, NULL, HARM or UNRESOLVED, with an interval.

    Without --arms: no memory against a bank that starts empty. Start with --screen, which needs few tasks: if perfect
    lessons do not help, no memory can. An interrupted evaluation continues if the same command is given again.
    """
    from rb_dspy import evaluation
    from rb_dspy.cli.program import build_program, start_bank, tracker
    from rb_dspy.cli.tasks import source, task_stream

    chosen = program_settings(config, set_, matts, k, run__seed=seed)
    found = source(chosen.run, tasks, seed=seed, any_env=env is not None)
    stream = task_stream(found, number or (20 if screen else None))
    built = build_program(chosen, env, program)
    with start_bank(chosen, bank, scope) as start:
        if screen:
            arms, models, orders = "none,oracle", None, min(orders, 3)
        compared = _arms(built, arms, models, start, chosen)
        place = folder or _folder(found.name, stream.digest, built, chosen, sorted(compared), orders, start)
        shared: dict[str, Any] = {"program": built, "orders": orders, "seed": chosen.run.seed, "lessons": lessons}
        shared |= {"embedder": chosen.bank.embedder, "baseline": baseline}
        planned = evaluation.estimate(compared, stream, **shared)
        if not json_:
            say(
                (found.name, "bold"),
                f"  {counted(len(stream), 'task')}, {counted(orders, 'order')}: {', '.join(compared)}",
            )
            say((_planned(planned), "dim"))
        if not yes and err.is_terminal and not json_ and planned.calls > 1_000:
            confirm("start?")
        with (
            tracker(chosen, track).evaluation_run(found.name, stream) as tracked,
            _bar(list(compared), len(stream) * orders) as on_progress,
        ):

            def report_progress(progress: Any) -> None:
                on_progress(progress)
                tracked.on_progress(progress)

            try:
                report = evaluation.evaluate(
                    compared, stream, **shared, jobs=jobs, folder=place, on_progress=report_progress
                )
            except KeyboardInterrupt:
                err.print(Text(f"interrupted: results are in {place}; the same command continues"))
                raise typer.Exit(130) from None
            tracked.log_report(report)
    if json_:
        print_json({**report.model_dump(mode="json"), "folder": place, "mlflow_run": tracked.id})
        return
    _print_report(report)
    say("report: ", (str(place / "report.html"), "bold"), f"; in MLflow: run {tracked.id}" if tracked.id else "")


def _arms(program: BankProgram, arms: str, models: str | None, bank: Any, chosen: Settings) -> dict[str, Any]:
    """The arms by name: memory modes, or models as agents of the program with its bank."""
    from rb_dspy.evaluation import Arm

    if models is None:
        names = [name.strip().replace("-", "_") for name in arms.split(",") if name.strip()]
        if len(names) < 2:
            raise InputError(f"--arms {arms}: one arm; expected at least two, such as none,bank")
        with_bank = {name: bank for name in names if name not in ("none", "oracle")}
        return {name: Arm(program, memory=name, bank=with_bank.get(name)) for name in names}  # type: ignore[arg-type]
    from rb_dspy.backbones import Backbones
    from rb_dspy.config import BackboneConfig

    names = [name.strip() for name in models.split(",") if name.strip()]
    configs = {name: {**chosen.backbones, "agent": BackboneConfig(model=name)} for name in names}
    return {name: Arm(program, backbones=Backbones.from_settings(each), bank=bank) for name, each in configs.items()}


def _folder(
    name: str, digest: str, program: BankProgram, chosen: Settings, arms: list[str], orders: int, bank: Any
) -> Path:
    """A folder of this evaluation's own, found again by the same arguments."""
    from rb_dspy.compile.state import prompts_of

    started = None if bank is None else (chosen.bank.url, bank.stats().items)
    settings = chosen.model_dump(mode="json", include={"program", "matts", "backbones"})
    plan = repr((arms, orders, chosen.run.seed, settings, prompts_of(program), started))
    return Path("rb-evaluations") / f"{Path(name).stem}-{digest[:8]}-{hashlib.sha256(plan.encode()).hexdigest()[:8]}"


def _planned(estimate: Estimate) -> str:
    money = "price unknown" if estimate.money is None else f"US $ {estimate.money:.2f}"
    return f"about {short_number(estimate.calls)} calls, {short_number(estimate.tokens)} tokens, {money}"


@contextmanager
def _bar(arms: list[str], total: int) -> Iterator[Any]:
    """A bar for each arm, with its success so far."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TextColumn("{task.fields[solved]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=err, disable=not err.is_terminal) as bars:
        ids = {name: bars.add_task(name, total=total, solved="") for name in arms}

        def on_progress(progress: Any) -> None:
            for name, arm in progress.arms.items():
                solved = f"solved {arm.solved} of {arm.scored}" if arm.scored else ""
                bars.update(ids[name], completed=arm.done, total=arm.total, solved=solved)

        yield on_progress


def _print_report(report: Report) -> None:
    """The arms, the comparisons and what they mean."""
    shown = table("arm", "success", "steps", "tokens", "per success", "errors", "against the baseline", "verdict")
    colours = {"LEARNING": "green", "HARM": "red", "NULL": "yellow", "UNRESOLVED": "yellow"}
    for name, arm in report.arms.items():
        found = report.comparisons.get(name)
        per_success = "-" if arm.tokens_per_success is None else short_number(arm.tokens_per_success)
        steps = "-" if arm.steps is None else f"{arm.steps:.1f}"
        cells = (
            Text(name, "bold"),
            f"{arm.success:.0%}",
            steps,
            short_number(arm.tokens),
            per_success,
            str(arm.errors),
        )
        verdict = "baseline" if found is None else found.verdict
        difference = "" if found is None else f"{found.difference:+}"
        shown.add_row(*map(_cell, cells), difference, Text(verdict, colours.get(verdict, "dim")))
    out.print(shown)
    for name, found in report.comparisons.items():
        say(f"{name}: {found}")
    if report.exploratory:
        say(("exploratory: fewer than 100 tasks or 8 orders", "yellow"))
    if report.headroom is not None:
        meanings = {
            "yes": "perfect lessons help here: memory can gain something",
            "no": "perfect lessons do not help here: no memory can",
            "unclear": "whether perfect lessons help here is open: try more tasks",
        }
        say(("headroom: ", "bold"), meanings[report.headroom])


def _cell(value: Any) -> Text:
    return value if isinstance(value, Text) else Text(str(value))
