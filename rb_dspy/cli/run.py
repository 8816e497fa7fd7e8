"""``rb-dspy run``: the ReasoningBank program, or MaTTS, over a stream of tasks."""

from __future__ import annotations

import secrets
import shlex
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, get_args

import typer
from rich.text import Text

from rb_dspy.backbones import Backbones
from rb_dspy.bank import MemoryBank
from rb_dspy.cli.common import (
    BankOption,
    ConfigOption,
    JsonOption,
    ScopeOption,
    SetOption,
    command_name,
    err,
    out,
    print_json,
    settings,
)
from rb_dspy.cli.display import Display, print_summary
from rb_dspy.config import MattsMode, RunConfig, Settings
from rb_dspy.errors import ConfigError, InfrastructureError
from rb_dspy.matts import MaTTS
from rb_dspy.program import ReasoningBank
from rb_dspy.schema import Task
from rb_dspy.steps.events import listening
from rb_dspy.steps.ingest import as_task
from rb_dspy.stream import RunReport, TaskResult, TaskStream, run_stream


def run(
    config: ConfigOption = None,
    set_: SetOption = None,
    stream: Annotated[str | None, typer.Option(help="A named stream (see rb-dspy envs) or a .jsonl file.")] = None,
    task: Annotated[str | None, typer.Option(help="One question of your own instead of a stream.")] = None,
    tasks: Annotated[
        int | None, typer.Option("--tasks", "-n", help="How many tasks that the bank has not seen.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Which tasks the stream is made of.")] = None,
    matts: Annotated[
        str | None,
        typer.Option(metavar="MODE", help="Several rollouts of each task: parallel, sequential, best-of-n, vanilla."),
    ] = None,
    k: Annotated[int | None, typer.Option("--k", "-k", help="How many rollouts, or passes; with --matts.")] = None,
    bank: BankOption = None,
    scope: ScopeOption = None,
    json_: JsonOption = False,
) -> None:
    """Run the program over a stream of tasks, learning from each; a second run goes on where the first ended."""
    if k is not None and matts is None and settings(config, set_).matts is None:
        raise ConfigError(f"--k {k} is for test-time scaling; say how with --matts MODE: {_MODES}")
    chosen = settings(
        config,
        set_,
        run__stream=stream,
        run__tasks=tasks,
        run__seed=seed,
        bank__url=bank,
        bank__scope=scope,
        matts__mode=_mode(matts),
        matts__k=k,
    )
    own = as_task(task) if task is not None else None
    program = _program(chosen)
    with MemoryBank.open(chosen.bank.url, scope=chosen.bank.scope, embedder=chosen.bank.embedder) as opened:
        todo = [own] if own is not None else _tasks(chosen.run, opened)
        if not todo:
            seen = f"the bank has seen every task of {chosen.run.stream}"
            err.print(Text(f"{seen}; another --seed or --scope gives new ones"))
            return
        name = "your task" if own is not None else chosen.run.stream
        _run(program, name, todo, opened, chosen, json_=json_)


_MODES = ", ".join(mode.replace("_", "-") for mode in get_args(MattsMode))


def _mode(given: str | None) -> str | None:
    """A mode as the settings call it."""
    mode = given and given.strip().lower().replace("-", "_")
    if mode is not None and mode not in get_args(MattsMode):
        raise ConfigError(f"--matts {given!r}: no such mode; expected one of {_MODES}")
    return mode


def _program(chosen: Settings) -> ReasoningBank | MaTTS:
    program = ReasoningBank(chosen.program, backbones=Backbones.from_settings(chosen.backbones))
    return program if chosen.matts is None else MaTTS(program, config=chosen.matts)


def _tasks(config: RunConfig, bank: MemoryBank) -> list[Task]:
    seen = bank.seen_tasks()
    if config.stream.endswith(".jsonl"):
        return list(TaskStream.from_jsonl(Path(config.stream), n=config.tasks, skip=seen))
    return list(
        TaskStream.named(
            config.stream, n=config.tasks, seed=config.seed, split=config.split, templates=config.templates, skip=seen
        )
    )


def _run(
    program: ReasoningBank | MaTTS,
    name: str,
    todo: list[Task],
    bank: MemoryBank,
    chosen: Settings,
    *,
    json_: bool,
) -> None:
    """Run, and say what came of it, also when it is interrupted or a language model gives up."""
    report = RunReport(secrets.token_hex(6))
    display = Display(out, len(todo), several=chosen.matts is not None and chosen.matts.k > 1)
    if not json_:
        number = f"  {_counted(len(todo), 'task')}  "
        out.print(Text.assemble((name, "bold"), number, _scaled(chosen), (_models(program), "dim")))
        out.print(Text(f"{_place(chosen)} · {_counted(len(bank), 'lesson')} so far", "dim"))

    def on_result(result: TaskResult) -> None:
        report.results.append(result)
        if json_:
            print_json(_as_json(result))
        else:
            display.on_result(result)

    try:
        with display if not json_ else nullcontext(), listening(display.on_event) if not json_ else nullcontext():
            run_stream(
                program,
                todo,
                bank,
                run_id=report.run_id,
                on_result=on_result,
                resume="all",  # each run has a name of its own, and goes on where the one before was stopped
            )
    except KeyboardInterrupt:
        err.print(
            "interrupted: what was learned is in the bank, and a rollout that had ended waits there;"
            " the next run goes on from there"
        )
        raise typer.Exit(130) from None
    finally:
        _conclude(report, bank, chosen, json_=json_)
    if report.results and all(result.error for result in report.results):
        raise InfrastructureError(f"every task broke; the last one: {report.results[-1].error}")


def _conclude(report: RunReport, bank: MemoryBank, chosen: Settings, *, json_: bool) -> None:
    where = f"--bank {shlex.quote(chosen.bank.url)} --scope {shlex.quote(chosen.bank.scope)}"
    if json_:
        named = {"run_id": report.run_id, "bank": chosen.bank.url, "scope": chosen.bank.scope}
        print_json({"summary": report.summary(), **named})
    elif report.results:
        print_summary(out, report)
        out.print(Text(f"\n{_counted(len(bank), 'lesson')} in {_place(chosen)}"))
        look = f"{command_name()} bank list {where}"
        out.print(Text.assemble("look into it: ", (look, "bold"), "; also show ID, search TEXT, stats"), soft_wrap=True)


def _counted(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _place(chosen: Settings) -> str:
    return f"bank {chosen.bank.url}, scope {chosen.bank.scope}"


def _scaled(chosen: Settings) -> str:
    """How every task is scaled; empty where it is not."""
    matts = chosen.matts
    if matts is None:
        return ""
    refined = matts.mode == "sequential"
    some = "up to " if (matts.refine.until_confirmed if refined else matts.adaptive.enabled) else ""
    one, more = ("pass", "passes") if refined else ("rollout", "rollouts")
    return f"{matts.mode.replace('_', '-')} MaTTS, {some}{matts.k} {one if matts.k == 1 else more} a task  "


def _models(program: ReasoningBank | MaTTS) -> str:
    """Who plays what; one name where one model plays every role."""
    played = {role: str(lm.model) for role, lm in (program.backbones or Backbones()).roles().items()}
    names = set(played.values())
    return names.pop() if len(names) == 1 else ", ".join(f"{role} {model}" for role, model in played.items())


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
        "usage": result.usage,
        "scaling": _scaling_as_json(result),
    }


def _scaling_as_json(result: TaskResult) -> dict[str, Any] | None:
    """The rollouts of a task that was done several times, with ground truth where it is known."""
    found = result.prediction
    if found is None or "trajectories" not in found:
        return None
    outcomes = result.outcomes or (None,) * len(result.rollouts)
    return {
        "handed_in": found.trajectory.rollout_id,
        "analysis": found.selection.analysis,
        "votes": found.selection.votes,
        "launched": found.launched,
        "saved": found.saved,
        "lost": [asdict(lost) for lost in found.lost],
        "rollouts": [
            {
                "id": rollout.rollout_id,
                "answer": rollout.answer,
                "steps": len(rollout.steps),
                "verdict": verdict,
                "outcome": outcome,
            }
            for rollout, verdict, outcome in zip(result.rollouts, found.verdicts, outcomes, strict=True)
        ],
        "passes": result.passes,
    }
