"""``rb-dspy run``: run the program over tasks and learn from each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.text import Text

from rb_dspy.cli import options
from rb_dspy.cli.output import emit, ends_on_interrupt, err, out, say, usage_table
from rb_dspy.config import Settings
from rb_dspy.errors import InfrastructureError, InputError
from rb_dspy.redaction import without_secrets
from rb_dspy.text import counted

if TYPE_CHECKING:
    from rb_dspy.bank import MemoryBank
    from rb_dspy.matts import BankProgram
    from rb_dspy.stream import RunReport, TaskResult, TaskStream
    from rb_dspy.stream.journal import Record
    from rb_dspy.tracking import Tracker


@options.shared
def run(
    on: options.OnTasks,
    task: Annotated[
        str | None, typer.Option(metavar="TEXT", help="One question of your own, instead of TASKS.")
    ] = None,
    new: Annotated[
        bool, typer.Option("--new", help="Start a new run, including tasks that the bank has learned from.")
    ] = False,
    memory: Annotated[
        Literal["bank", "frozen", "none", "both"] | None,
        typer.Option(
            metavar="MODE",
            help="bank: show lessons and learn; frozen: show, do not learn; none: neither; both: none, then bank, side"
            f" by side, stores nothing; {options.default('run.memory', 'bank')}",
        ),
    ] = None,
    bank: options.Bank = None,
    scope: options.Scope = None,
) -> None:
    """Run the program over tasks; it learns from each.

    Tasks that the bank has learned from are skipped. To continue an interrupted run, run the same command again.
    Results are stored beside the bank: see rb-dspy runs.
    """
    from rb_dspy.backbones import budget
    from rb_dspy.bank import MemoryBank
    from rb_dspy.cli.comparison import compare_memory
    from rb_dspy.cli.models import preflight
    from rb_dspy.cli.program import about, build_program, tracker
    from rb_dspy.cli.tasks import source
    from rb_dspy.stream import TaskStream
    from rb_dspy.stream.journal import NO_FILE, Folder

    chosen = on.settings(run__memory=memory, bank__url=bank, bank__scope=scope)
    both = chosen.run.memory == "both"
    if both and on.track:
        raise InputError("--memory both is not tracked; remove --track")
    found = source(on, chosen.run, task)
    head: dict[str, Any] = {"key": found.key(on.number), "scope": chosen.bank.scope, "memory": chosen.run.memory}
    head |= {name: getattr(on, name) or "" for name in ("env", "agent", "score", "program")}
    todo = found.take(on.number)[0] if both else []
    built = build_program(chosen, on.env, on.program, on.agent, on.score)
    tracking = tracker(chosen, on.track)
    head |= about(built, chosen)
    limits = budget(max_tokens=on.max_tokens, max_cost=on.max_cost, max_minutes=on.max_minutes)
    learns = chosen.run.memory in ("bank", "both")
    if both:
        preflight(chosen, agent=on.agent is None)
        with limits:
            compare_memory(built, found.name, todo, chosen)
        return
    none = chosen.run.memory == "none"
    if none:
        built.retrieve.config = built.retrieve.config.model_copy(update={"k": 0})
    place: dict[str, Any] = {"scope": chosen.bank.scope, "embedder": chosen.bank.embedder, "trust": chosen.trust}
    url, create = None if none else chosen.bank.url, chosen.run.memory != "frozen"
    with MemoryBank.open(url, create=create, **place) as opened, limits:
        journal = Folder.of(chosen.bank.url)
        head |= {"bank": without_secrets(chosen.bank.url) if journal.path == NO_FILE else ""}
        record = None if new else journal.unfinished(**head)
        skips = opened.seen_tasks() if chosen.run.memory == "bank" and not new and found.text is None else ()
        todo, left_out = (found.find(record.tasks), 0) if record is not None else found.take(on.number, skips)
        if not todo:
            emit({"run_id": None, "finished": True, "summary": None})
            others = "" if found.stream is not None else ", another --seed chooses other tasks"
            say(f"the bank has learned from all of these tasks of {found.name}; --new runs them again{others}")
            return
        if left_out:
            skipped = counted(left_out, "task")
            err.print(Text(f"skipped: {skipped} that the bank has learned from; --new includes them"))
        stream = TaskStream(found.name, todo)
        if record is None:
            head |= {"stream": found.name, "digest": stream.digest, "seed": chosen.run.seed}
            record = journal.start([each.id for each in todo], **head)
        preflight(chosen, agent=on.agent is None, judge=learns, teacher=learns)
        _run(built, stream, opened, record, chosen, tracking, found.text)


def _run(
    program: BankProgram,
    stream: TaskStream,
    bank: MemoryBank,
    record: Record,
    chosen: Settings,
    tracker: Tracker,
    text: str | None,
) -> None:
    """Run the tasks that are left and print the results, even if the run is interrupted or a language model fails."""
    from rb_dspy.cli.live import Display
    from rb_dspy.stream import RunReport, run_stream

    report = RunReport(record.id)
    left = len(stream) - len(record.done)
    display = Display(out, left, several=chosen.matts is not None and chosen.matts.k > 1)
    _print_head(stream.name, bank, record, chosen)
    tracked: Any = None

    def on_result(result: TaskResult) -> None:
        report.results.append(result)
        tracked.on_result(result)
        emit({**result.row(), "outcome": result.outcome})
        display.on_result(result)

    params = {"seed": chosen.run.seed, "memory": chosen.run.memory}
    options: Any = {"run_id": record.id, "on_result": on_result, "learn": chosen.run.memory == "bank"}
    with ends_on_interrupt(f"learned lessons are stored; run the same command to continue run {record.id}"):
        try:
            with (
                tracker.stream_run(program, stream, bank, run_id=record.id, params=params) as tracked,
                display.listening(),
            ):
                given = stream if text is None else [text]
                run_stream(program, given, bank, journal=record, **options)
        finally:
            _print_end(report, record, bank, chosen, tracked)


def _print_head(name: str, bank: MemoryBank, record: Record, chosen: Settings) -> None:
    matts = chosen.matts
    scaled = "" if matts is None else f"  {matts.mode.replace('_', '-')} MaTTS, k = {matts.k}"
    say((name, "bold"), f"  {counted(len(record.tasks), 'task')}{scaled}  ", (record.head["models"], "dim"))
    place = f"bank {without_secrets(chosen.bank.url)}, scope {chosen.bank.scope} · {counted(len(bank), 'lesson')}"
    notes = {"none": "no memory: no lesson is shown, nothing is learned", "frozen": f"{place}, frozen"}
    say((f"{notes.get(chosen.run.memory, place)} · run {record.id}", "dim"))
    if record.rows:
        say((f"continues this run: {len(record.done)} of {counted(len(record.tasks), 'task')} are done", "yellow"))
    others = sum(waiting.run_id != record.id for waiting in bank.pending())
    if others:
        text = f"pending: {counted(others, 'task')} of other runs; to learn from them: rb-dspy learn"
        text += options.bank_options(chosen.bank)
        say((text, "yellow"))


def _print_end(report: RunReport, record: Record, bank: MemoryBank, chosen: Settings, tracked: Any) -> None:
    from rb_dspy.cli.summary import print_scaling, print_summary
    from rb_dspy.stream.score import numbers

    rows = [record.rows[id] for id in record.tasks if id in record.rows]
    summary = report.summary()
    run_id = tracked.id if tracked is not None and tracked.id else None
    where = {"bank": without_secrets(chosen.bank.url), "scope": chosen.bank.scope, "mlflow_run": run_id}
    found = numbers(rows, record.head["roles"])
    totals = {**found, "usage": summary.usage, "scaling": summary.scaling}
    emit({"run_id": record.id, "finished": record.finished, "summary": totals, **where})
    if not rows:
        return
    print_summary(found, len(record.tasks))
    if summary.usage:
        out.print(usage_table(summary.usage))
    if summary.scaling is not None:
        print_scaling(summary.scaling)
    place = options.bank_options(chosen.bank)
    if chosen.run.memory != "none":
        say(f"\n{counted(len(bank), 'lesson')} in bank {without_secrets(chosen.bank.url)}, scope {chosen.bank.scope}")
    if any(row["learned"] for row in rows):
        back = (f"rb-dspy bank rollback run:{record.id}{place}", "bold")
        say("list the lessons: ", (f"rb-dspy bank list{place}", "bold"), "; undo this run: ", back)
    results = f"rb-dspy runs show {record.id}{place.partition(' --scope')[0]}"
    say("results: ", (results, "bold"), f"; in MLflow: run {run_id}" if run_id else "")

    if not report.results or not all(result.error for result in report.results):
        return
    last = report.results[-1].error
    if all(result.prediction is None for result in report.results):
        raise InfrastructureError(f"every task failed; try rb-dspy models check; last error: {last}")
    err.print(Text(f"no task could be scored; last error: {last}", "yellow"))
