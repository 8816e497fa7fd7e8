"""What ``rb-dspy run`` does: tasks one after the other, each of which is learned from."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.text import Text

from rb_dspy.backbones import Backbones
from rb_dspy.bank import MemoryBank
from rb_dspy.cli import apart
from rb_dspy.cli.again import bank_command, options
from rb_dspy.cli.bank_embedder import named
from rb_dspy.cli.built import give_prompts, program_for, saved
from rb_dspy.cli.common import command_name, err, out, print_json
from rb_dspy.cli.display import Display
from rb_dspy.cli.ending import interrupted
from rb_dspy.cli.prompts import NamedPrompts, is_registered, prompts_named
from rb_dspy.cli.summary import print_summary
from rb_dspy.cli.tracked import tracker_for, where_to_look
from rb_dspy.cli.work.choosing import Todo, source
from rb_dspy.cli.work.comparing import compare_memory
from rb_dspy.cli.work.results import as_json
from rb_dspy.config import Settings
from rb_dspy.errors import InfrastructureError, InputError
from rb_dspy.matts import BankProgram
from rb_dspy.stream import RunReport, TaskResult, TaskStream, run_stream
from rb_dspy.text import counted
from rb_dspy.tracking import Tracker
from rb_dspy.tracking.addresses import without_secrets

if TYPE_CHECKING:
    from rb_dspy.compile.result import Compiled


def run_tasks(chosen: Settings, task: str | None, prompts: str | None, track: bool | None, *, json_: bool) -> None:
    """The stream of the settings, or only ``task``; with the prompts that ``prompts`` names, where it is given."""
    tasks = source(chosen.run, task)  # what cannot be used, a file, a stream or a model, makes no bank
    built = program_for(chosen)
    with prompts_named(prompts, chosen.tracking) as found:
        compiled, noted = (None, "") if found is None else _compiled(built, found)
    if chosen.run.memory == "both":
        if track:
            raise InputError("--memory both is not tracked; remove --track")
        compare_memory(built, tasks.name, tasks.todo(()).tasks, chosen, json_=json_)
        return
    with named():
        opened = _bank(chosen, built)
    with opened:
        seen = opened.seen_tasks() if chosen.run.memory == "on" else ()
        todo = tasks.todo(seen)
        if not todo.tasks:
            place = None, chosen.bank.url, chosen.bank.scope
            look, delete = (bank_command(f"bank {what}", *place) for what in ("list --experiences", "delete ID"))
            again = f"{look} shows what came of them, and {delete} lets one be done again"
            told = f"the bank has seen every task of {tasks.name}; {tasks.more(seen)}"
            err.print(Text(f"{told}; {again}"), soft_wrap=True)
            if json_:  # a reader waits for the line that every run ends with
                print_json(_summed(RunReport(secrets.token_hex(6), skipped=len(todo.left_out)), chosen, compiled))
            return
        tracker = tracker_for(chosen, track, usual=False)  # importing MLflow takes seconds: for those who want it
        said = [each for each in (noted, apart.head(compiled, todo.tasks)) if each]
        _run(built, tasks.name, todo, opened, chosen, tracker, said, compiled, prompts, json_=json_)


def _compiled(program: BankProgram, prompts: NamedPrompts) -> tuple[Compiled | None, str]:
    """Give ``program`` these prompts; the report of their compile, where there is one, and what to say of them."""
    compiled, misfit = give_prompts(program, prompts.path, source=prompts.name)
    if prompts.report is not None:
        compiled = saved(prompts.report)[1]
    by = "" if compiled is None else f", by {compiled.optimizer} for stage {compiled.stage}"
    return compiled, "; ".join(filter(None, [f"prompts from {prompts.name}{by}", misfit, prompts.lessons]))


def _bank(chosen: Settings, program: BankProgram) -> MemoryBank:
    """The bank of the settings; one that is empty, and of which ``program`` is shown nothing, where memory is off."""
    bank, memory = chosen.bank, chosen.run.memory
    if memory == "off":
        program.retrieve.config = program.retrieve.config.model_copy(update={"k": 0})
    url = None if memory == "off" else bank.url
    return MemoryBank.open(url, scope=bank.scope, embedder=bank.embedder, create=memory != "frozen")


def _run(
    program: BankProgram,
    name: str,
    todo: Todo,
    bank: MemoryBank,
    chosen: Settings,
    tracker: Tracker,
    noted: Sequence[str],
    compiled: Compiled | None,
    prompts: str | None,
    *,
    json_: bool,
) -> None:
    """Run, and say what came of it, also when it is interrupted or a language model gives up.

    ``prompts``: where the program has its own from.
    """
    report = RunReport(_run_id(bank, todo, chosen), skipped=len(todo.left_out))
    display = Display(out, len(todo.tasks), several=chosen.matts is not None and chosen.matts.k > 1)
    if not json_:
        number = f"  {counted(len(todo.tasks), 'task')}  "
        out.print(Text.assemble((name, "bold"), number, _scaled(chosen), (_models(program), "dim")))
        out.print(Text(f"{_memory(chosen, bank)} · run {report.run_id}", "dim"))
        for line in noted:
            out.print(Text(line, "dim"), soft_wrap=True)
    tracked: Any = None

    def on_result(result: TaskResult) -> None:
        report.results.append(result)
        tracked.on_result(result)
        if json_:
            print_json(as_json(result))
        else:
            display.on_result(result)

    stream = TaskStream(name, tuple(todo.tasks))
    source = prompts if prompts is None or is_registered(prompts) else Path(prompts).name  # no path of this machine
    params = {"seed": chosen.run.seed, "prompts.from": source, "memory": _lessons(chosen)}
    if compiled is not None:
        params["prompts.known_tasks"] = apart.known_before(compiled, todo.tasks)
    try:
        with (
            tracker.stream_run(
                program, stream, bank, run_id=report.run_id, params=params, left_out=todo.left_out
            ) as tracked,
            # Before tracking is closed, which may wait: what came of it is nobody's to wait for.
            _concluding(report, bank, chosen, tracked, compiled, json_=json_),
            display.listening() if not json_ else nullcontext(),
        ):
            run_stream(
                program,
                todo.given,
                bank,
                run_id=report.run_id,
                on_result=on_result,
                learn=chosen.run.memory == "on",
            )
    except KeyboardInterrupt:
        left = "what was learned is in the bank, and a rollout that had ended waits there"
        told = f"{left}; the next run goes on from there"
        raise interrupted(told if chosen.run.memory == "on" else "nothing was to be learned, and nothing was") from None
    if report.results and all(result.error for result in report.results):
        last = report.results[-1].error
        if any(result.prediction is not None for result in report.results):
            err.print(Text(f"no task could be scored; the last one: {last}", "yellow"))
        else:
            raise InfrastructureError(f"every task broke; the last one: {last}")


def _run_id(bank: MemoryBank, todo: Todo, chosen: Settings) -> str:
    """The name of the run of which rollouts of these tasks wait in the bank, since this goes on with it; else new."""
    pending = bank.pending() if chosen.run.memory == "on" else []
    ids = {task.id for task in todo.tasks}
    return next((each.run_id for each in pending if each.run_id and each.task.id in ids), secrets.token_hex(6))


@contextmanager
def _concluding(report: RunReport, *given: Any, json_: bool) -> Iterator[None]:
    """Say at the end of the block what came of it, however it ends."""
    try:
        yield
    finally:
        _conclude(report, *given, json_=json_)


def _conclude(
    report: RunReport,
    bank: MemoryBank,
    chosen: Settings,
    tracked: Any,
    compiled: Compiled | None,
    *,
    json_: bool,
) -> None:
    where = " ".join(options(bank=without_secrets(chosen.bank.url, "..."), scope=chosen.bank.scope))
    if json_:
        more: dict[str, Any] = {"mlflow_run": tracked.id} if tracked is not None and tracked.id else {}
        print_json(_summed(report, chosen, compiled) | more)
        return
    if report.results:
        print_summary(out, report, refined=chosen.matts is not None and chosen.matts.mode == "sequential")
        if (told := apart.print_unseen(compiled, report)) is not None:
            out.print(told, soft_wrap=True)
        if chosen.run.memory != "off":
            _print_bank(report, bank, chosen, where)
        if tracked is not None and tracked.id:
            out.print(where_to_look(chosen.tracking, tracked), soft_wrap=True)


def _summed(report: RunReport, chosen: Settings, compiled: Compiled | None) -> dict[str, Any]:
    """What the last line of JSON says of every run."""
    unseen = apart.unseen(compiled, report)
    named = {"run_id": report.run_id, "bank": without_secrets(chosen.bank.url), "scope": chosen.bank.scope}
    return {"summary": report.summary(), **({} if unseen is None else {"unseen": unseen}), **named}


def _print_bank(report: RunReport, bank: MemoryBank, chosen: Settings, where: str) -> None:
    """What the bank holds now, and what can be done with it."""
    out.print(Text(f"\n{counted(len(bank), 'lesson')} in {_place(chosen)}"))
    look = f"{command_name()} bank list {where}"
    out.print(Text.assemble("look into it: ", (look, "bold"), "; also show ID, search TEXT, stats"), soft_wrap=True)
    if any(result.prediction and result.prediction.experience and not result.resumed for result in report.results):
        back = f"{command_name()} bank rollback run:{report.run_id} {where}"
        out.print(Text.assemble("take this run back: ", (back, "bold")), soft_wrap=True)


def _place(chosen: Settings) -> str:
    return f"bank {without_secrets(chosen.bank.url)}, scope {chosen.bank.scope}"


def _lessons(chosen: Settings) -> str:
    """What becomes of lessons, as MLflow is told (``Tracker.stream_run``)."""
    memory = chosen.run.memory
    return memory if chosen.program.retrieve.k else {"on": "unshown", "frozen": "off"}.get(memory, memory)


def _memory(chosen: Settings, bank: MemoryBank) -> str:
    """What the agents are shown, and what becomes of what they do."""
    if chosen.run.memory == "off":
        return "memory off: no lesson is shown, nothing is learned"
    frozen = ", frozen: nothing is learned" if chosen.run.memory == "frozen" else " so far"
    return f"{_place(chosen)} · {counted(len(bank), 'lesson')}{frozen}"


def _scaled(chosen: Settings) -> str:
    """How every task is scaled; empty where it is not."""
    matts = chosen.matts
    if matts is None:
        return ""
    refined = matts.mode == "sequential"
    some = "up to " if refined and matts.refine.until_confirmed else ""
    times = counted(matts.k, "pass", "passes") if refined else counted(matts.k, "rollout")
    return f"{matts.mode.replace('_', '-')} MaTTS, {some}{times} a task  "


def _models(program: BankProgram) -> str:
    """Who plays what; one name where one model plays every role."""
    played = {role: str(lm.model) for role, lm in (program.backbones or Backbones()).lms().items()}
    names = set(played.values())
    return names.pop() if len(names) == 1 else ", ".join(f"{role} {model}" for role, model in played.items())
