"""``rb-dspy run``: the ReasoningBank program over a stream of tasks."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Annotated

import typer

from rb_dspy.backbones import Backbones
from rb_dspy.bank import MemoryBank
from rb_dspy.cli.common import (
    BankOption,
    ConfigOption,
    JsonOption,
    ScopeOption,
    SetOption,
    err,
    out,
    print_json,
    settings,
)
from rb_dspy.cli.display import Display, print_summary
from rb_dspy.config import RunConfig, Settings
from rb_dspy.errors import InfrastructureError
from rb_dspy.program import ReasoningBank
from rb_dspy.schema import Task
from rb_dspy.steps.events import listening
from rb_dspy.steps.ingest import as_task
from rb_dspy.stream import TaskResult, TaskStream, run_stream


def run(
    config: ConfigOption = None,
    set_: SetOption = None,
    stream: Annotated[str | None, typer.Option(help="A named stream (see rb-dspy envs) or a .jsonl file.")] = None,
    task: Annotated[str | None, typer.Option(help="One question of your own instead of a stream.")] = None,
    tasks: Annotated[
        int | None, typer.Option("--tasks", "-n", help="How many tasks that the bank has not seen.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Which tasks the stream is made of.")] = None,
    bank: BankOption = None,
    scope: ScopeOption = None,
    json_: JsonOption = False,
) -> None:
    """Run the program over a stream of tasks, learning from each; a second run goes on where the first ended."""
    chosen = settings(
        config,
        set_,
        run__stream=stream,
        run__tasks=tasks,
        run__seed=seed,
        bank__url=bank,
        bank__scope=scope,
    )
    own = as_task(task) if task is not None else None
    program = ReasoningBank(chosen.program, backbones=Backbones.from_settings(chosen.backbones))
    with MemoryBank.open(chosen.bank.url, scope=chosen.bank.scope, embedder=chosen.bank.embedder) as opened:
        todo = [own] if own is not None else _tasks(chosen.run, opened)
        if not todo:
            err.print(f"the bank has seen every task of {chosen.run.stream}; another --seed or --scope gives new ones")
            return
        _run(program, todo, opened, chosen, json_=json_)


def _tasks(config: RunConfig, bank: MemoryBank) -> list[Task]:
    seen = bank.seen_tasks()
    if config.stream.endswith(".jsonl"):
        return list(TaskStream.from_jsonl(Path(config.stream), n=config.tasks, skip=seen))
    return list(
        TaskStream.named(
            config.stream, n=config.tasks, seed=config.seed, split=config.split, templates=config.templates, skip=seen
        )
    )


def _run(program: ReasoningBank, todo: list[Task], bank: MemoryBank, chosen: Settings, *, json_: bool) -> None:
    run_id = _run_id(todo, bank)
    before = len(bank)
    if json_:
        report = run_stream(program, todo, bank, run_id=run_id, on_result=lambda result: print_json(_as_json(result)))
        print_json({"summary": report.summary(), "run_id": run_id, "bank": chosen.bank.url, "scope": chosen.bank.scope})
    else:
        models = ", ".join(f"{role} {lm.model}" for role, lm in (program.backbones or Backbones()).roles().items())
        out.print(f"[bold]{chosen.run.stream}[/]  {len(todo)} tasks  [dim]{models}[/]")
        out.print(f"[dim]bank {chosen.bank.url} · scope {chosen.bank.scope} · {before} lessons so far[/]")
        with Display(out, len(todo)) as display, listening(display.on_event):
            report = run_stream(program, todo, bank, run_id=run_id, on_result=display.on_result)
        print_summary(out, report)
        where = f"--bank {chosen.bank.url} --scope {chosen.bank.scope}"
        out.print(f"\nthe bank now holds {len(bank)} lessons: {chosen.bank.url}, scope {chosen.bank.scope}")
        out.print(f"look into it: [bold]rb-dspy bank list {where}[/]; also show ID, search TEXT, stats", soft_wrap=True)
    if report.results and all(result.error for result in report.results):
        raise InfrastructureError(f"every task broke; the last one: {report.results[-1].error}")


def _run_id(todo: list[Task], bank: MemoryBank) -> str:
    """Names this run: the same tasks on a bank with as many experiences give the same id."""
    named = json.dumps([*(task.id for task in todo), bank.stats().experiences])
    return hashlib.sha256(named.encode()).hexdigest()[:12]


def _as_json(result: TaskResult) -> dict[str, object]:
    found = result.prediction
    return {
        "task": result.task.id,
        "error": result.error or None,
        "answer": found.answer if found else None,
        "steps": len(found.trajectory.steps) if found else None,
        "verdict": found.verdict if found else None,
        "outcome": result.outcome,
        "judge_agrees": result.agreed,
        "recalled": [item.id for item in found.memory.items] if found else [],
        "learned": list(found.memory_items) if found else [],
        "usage": found.usage if found else None,
    }
