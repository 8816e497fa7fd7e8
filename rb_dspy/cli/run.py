"""``rb-dspy run``: run the program over tasks and learn from each."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.text import Text

from rb_dspy.cli import options
from rb_dspy.cli.output import emit, ends_on_interrupt, err, out, say, usage_table
from rb_dspy.config import BankConfig, Settings
from rb_dspy.errors import InfrastructureError, InputError
from rb_dspy.redaction import without_secrets
from rb_dspy.text import counted

if TYPE_CHECKING:
    from rb_dspy.bank import MemoryBank
    from rb_dspy.cli.tasks import Source
    from rb_dspy.matts import BankProgram
    from rb_dspy.schema import Task
    from rb_dspy.stream import RunReport, TaskResult
    from rb_dspy.stream.journal import Journal, Record
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
        Literal["on", "frozen", "off", "both"] | None,
        typer.Option(
            help="frozen: show lessons, learn nothing; off: neither; both: the same tasks without memory, then with it,"
            f" nothing is stored; {options.default('run.memory', 'on')}"
        ),
    ] = None,
    bank: options.Bank = None,
    scope: options.Scope = None,
) -> None:
    """Run the program over tasks; it learns from each.

    Tasks that the bank has learned from are skipped. To continue an interrupted run, run the same command again.
    Results are stored beside the bank: see rb-dspy runs.
    """
    from rb_dspy.cli.program import model_names, tracker
    from rb_dspy.cli.runs import NO_FILE, folder_of
    from rb_dspy.jsonl import digest
    from rb_dspy.prompts import prompts_of
    from rb_dspy.stream import TaskStream
    from rb_dspy.stream.journal import Journal

    chosen = on.settings(run__memory=memory, bank__url=bank, bank__scope=scope)
    found = on.source(chosen, task)
    built = on.build(chosen)
    if chosen.run.memory == "both":
        from rb_dspy.cli.comparison import compare_memory

        if on.track:
            raise InputError("--memory both is not tracked; remove --track")
        with on.budget():
            compare_memory(built, found.name, found.take(on.number)[0], chosen)
        return
    with _open_bank(chosen, built) as opened, on.budget():
        folder = folder_of(chosen.bank.url)
        journal = Journal.at(folder)
        head: dict[str, Any] = {"key": found.key(on.number), "scope": chosen.bank.scope, "memory": chosen.run.memory}
        head |= {"bank": without_secrets(chosen.bank.url) if folder == NO_FILE else "", "env": on.env or ""}
        head |= {"agent": on.agent or "", "score": on.score or ""}
        scaling = "" if chosen.matts is None else chosen.matts.model_dump(mode="json")
        head |= {"program": on.program or "", "matts": scaling, "models": model_names(built)}
        head |= {"settings": digest([chosen.program.model_dump(mode="json"), prompts_of(built)])}
        record = None if new else journal.unfinished(**head)
        if record is not None:
            todo = found.find(record.tasks)
        else:
            skips = chosen.run.memory == "on" and not new and found.text is None
            todo, left_out = found.take(on.number, opened.seen_tasks() if skips else ())
            if not todo:
                emit({"run_id": None, "finished": True, "summary": None})
                others = "" if found.stream is not None else ", another --seed chooses other tasks"
                say(f"the bank has learned from all of these tasks of {found.name}; --new runs them again{others}")
                return
            if left_out:
                skipped = counted(left_out, "task")
                err.print(Text(f"skipped: {skipped} that the bank has learned from; --new includes them"))
            head |= {"stream": found.name, "digest": TaskStream(found.name, todo).digest, "seed": chosen.run.seed}
            record = journal.start([each.id for each in todo], **head)
        _run(built, found, todo, opened, record, journal, chosen, tracker(chosen, on.track))


def _open_bank(chosen: Settings, program: BankProgram) -> MemoryBank:
    """Open the bank of the settings. If memory is off, open an empty bank and make ``program`` retrieve nothing."""
    from rb_dspy.bank import MemoryBank

    config, memory = chosen.bank, chosen.run.memory
    if memory == "off":
        program.retrieve.config = program.retrieve.config.model_copy(update={"k": 0})
    url = None if memory == "off" else config.url
    create = memory != "frozen"
    return MemoryBank.open(url, scope=config.scope, embedder=config.embedder, create=create, trust=chosen.trust)


def _run(
    program: BankProgram,
    found: Source,
    tasks: list[Task],
    bank: MemoryBank,
    record: Record,
    journal: Journal,
    chosen: Settings,
    tracker: Tracker,
) -> None:
    """Run the remaining tasks and print the results, even if the run is interrupted or a language model fails."""
    from rb_dspy.cli.live import Display
    from rb_dspy.stream import RunReport, TaskStream, run_stream

    learns = chosen.run.memory == "on"
    report = RunReport(record.id)
    left = len(tasks) - len(record.done)
    display = Display(out, left, several=chosen.matts is not None and chosen.matts.k > 1)
    _print_head(program, found, bank, record, chosen)
    tracked: Any = None

    def on_result(result: TaskResult) -> None:
        report.results.append(result)
        tracked.on_result(result)
        emit({**result.row(), "outcome": result.outcome})
        display.on_result(result)

    params = {"seed": chosen.run.seed, "memory": chosen.run.memory}
    stream = TaskStream(found.name, tasks)
    with ends_on_interrupt(f"learned lessons are stored; run the same command to continue run {record.id}"):
        try:
            with (
                tracker.stream_run(program, stream, bank, run_id=record.id, params=params) as tracked,
                display.listening(),
            ):
                given = [found.text] if found.text is not None else tasks
                options: Any = {"run_id": record.id, "on_result": on_result, "learn": learns, "journal": journal}
                run_stream(program, given, bank, **options)
        finally:
            _print_end(report, journal.run(record.id) or record, bank, chosen, tracked)
    _check_errors(report)


def _print_head(program: BankProgram, found: Source, bank: MemoryBank, record: Record, chosen: Settings) -> None:
    from rb_dspy.cli.program import model_names

    matts = chosen.matts
    scaled = "" if matts is None else f"  {matts.mode.replace('_', '-')} MaTTS, k = {matts.k}"
    say((found.name, "bold"), f"  {counted(len(record.tasks), 'task')}{scaled}  ", (model_names(program), "dim"))
    place = f"bank {without_secrets(chosen.bank.url)}, scope {chosen.bank.scope} · {counted(len(bank), 'lesson')}"
    notes = {"off": "memory off: no lesson is shown, nothing is learned", "frozen": f"{place}, frozen"}
    say((f"{notes.get(chosen.run.memory, place)} · run {record.id}", "dim"))
    if record.rows:
        say((f"continues this run: {len(record.done)} of {counted(len(record.tasks), 'task')} are done", "yellow"))
    others = sum(waiting.run_id != record.id for waiting in bank.pending())
    if others:
        text = f"pending: {counted(others, 'task')} of other runs; to learn from them: rb-dspy bank pending --learn"
        say((text, "yellow"))


def _print_end(report: RunReport, record: Record, bank: MemoryBank, chosen: Settings, tracked: Any) -> None:
    from rb_dspy.cli.summary import print_scaling, print_summary
    from rb_dspy.stream.score import numbers

    rows = [record.rows[id] for id in record.tasks if id in record.rows]
    summary = report.summary()
    run_id = tracked.id if tracked is not None and tracked.id else None
    where = {"bank": without_secrets(chosen.bank.url), "scope": chosen.bank.scope, "mlflow_run": run_id}
    totals = {**numbers(rows), "usage": summary.usage, "scaling": summary.scaling}
    emit({"run_id": record.id, "finished": record.finished, "summary": totals, **where})
    if not rows:
        return
    print_summary(rows, len(record.tasks))
    if summary.usage:
        out.print(usage_table(summary.usage))
    if summary.scaling is not None:
        print_scaling(summary.scaling)
    place = ""  # for commands that can be copied
    for name, field in (("bank", "url"), ("scope", "scope")):
        value = getattr(chosen.bank, field)
        place += "" if value == getattr(BankConfig(), field) else f" --{name} {shlex.quote(without_secrets(value))}"
    if chosen.run.memory != "off":
        say(f"\n{counted(len(bank), 'lesson')} in bank {without_secrets(chosen.bank.url)}, scope {chosen.bank.scope}")
    if any(row["learned"] for row in rows):
        back = (f"rb-dspy bank rollback run:{record.id}{place}", "bold")
        say("list the lessons: ", (f"rb-dspy bank list{place}", "bold"), "; undo this run: ", back)
    results = f"rb-dspy runs show {record.id}{place.partition(' --scope')[0]}"
    say("results: ", (results, "bold"), f"; in MLflow: run {run_id}" if run_id else "")


def _check_errors(report: RunReport) -> None:
    """Raise ``InfrastructureError`` if every task failed; warn if none could be scored because scoring failed."""
    if not report.results or not all(result.error for result in report.results):
        return
    last = report.results[-1].error
    if any(result.prediction is not None for result in report.results):
        err.print(Text(f"no task could be scored; last error: {last}", "yellow"))
    else:
        raise InfrastructureError(f"every task failed; try rb-dspy models check; last error: {last}")
