"""``rb-dspy models``: download local language models; check that the model of every role answers."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from rb_dspy.cli import options
from rb_dspy.cli.output import emit, err, out, say, table
from rb_dspy.config import ROLES, BackboneConfig, Settings
from rb_dspy.errors import BackboneError, RBError, UnparseableOutput

app = typer.Typer(no_args_is_help=True, help="Language models: local files, and a check of every role.")

_MAX_TOKENS = 2_000
"""Maximum tokens of an answer to ``check`` if the LM sets none: many models think before they answer."""


@app.command("list", epilog="Example: `rb-dspy models list`")
@options.shared
def list_models(
    verify: Annotated[bool, typer.Option("--verify", help="Compute the checksums of files; slow.")] = False,
) -> None:
    """List models that can run on this machine, and which are downloaded."""
    from rb_dspy.backbones import models

    shown = table("name", "size", "license", "here", "SHA-256")
    for spec in models.catalog():
        status = models.status(spec.name, verify=verify)
        emit({**spec.model_dump(mode="json"), "status": status})
        mark = {"present": "[green]yes[/]", "absent": "no", "damaged": "[red]damaged[/]"}[status]
        shown.add_row(spec.name, f"{spec.size / 1e6:,.0f} MB", spec.license, mark, f"[dim]{spec.sha256[:12]}…[/]")
    out.print(shown)
    say(("rb-dspy models get NAME downloads one", "dim"))


@app.command(epilog="Example: `rb-dspy models get qwen2.5-coder-1.5b`")
@options.shared
def get(
    name: Annotated[str, typer.Argument(help="A name from rb-dspy models list.")],
    source: Annotated[Path | None, typer.Option("--from", help="Copy this file instead of downloading.")] = None,
    verify: Annotated[bool, typer.Option("--verify", help="Check an existing file; replace it if damaged.")] = False,
) -> None:
    """Download a model, unless it exists. Continues an interrupted download."""
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    from rb_dspy.backbones import download

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as progress:
        bar = progress.add_task(name, total=None)

        def show(done: int, total: int, what: str) -> None:
            progress.update(bar, completed=done, total=total, description=what)

        path = download.get(name, source=source, progress=show, verify=verify)
    emit({"name": name, "path": path})
    say(f"{name} is here: {path}")


@app.command(epilog="Example: `rb-dspy models check --set agent=openai/gpt-4o-mini`")
@options.shared
def check(config: options.Config = None, set_: options.Set = None) -> None:
    """Call the model of each role once; shows its answer and time, or the problem."""
    shown = table("role", "model", "seconds", "answer")
    problems: dict[str, list[str]] = {}
    for row in probe_roles(options.settings(config, set_)):
        emit(row)
        if row["problem"]:
            problems.setdefault(row["problem"], []).append(row["role"])
        answer = Text("no answer", "red") if row["problem"] else Text(row["answer"])
        shown.add_row(row["role"], Text(row["model"]), f"{row['seconds']:.1f}", answer)
    out.print(shown)
    if problems:
        raise BackboneError("; ".join(f"{', '.join(roles)}: {problem}" for problem, roles in problems.items()))


def probe_roles(settings: Settings) -> Iterator[dict[str, Any]]:
    """``probe`` the model of each role, each model once."""
    probes: dict[str, dict[str, Any]] = {}
    for role in dict.fromkeys((*ROLES, *settings.backbones)):
        config = settings.backbones.get(role, settings.backbones["agent"])
        key = config.model_dump_json()
        if key not in probes:
            with err.status(Text(f"calling {config.model} …")):  # rich redirects standard output meanwhile
                probes[key] = probe(config)
        yield {"role": role, **probes[key]}


def probe(config: BackboneConfig) -> dict[str, Any]:
    """Ask a model one small question, without cache and retries. ``problem`` is empty if it answers."""
    import dspy

    from rb_dspy.backbones import Backbones
    from rb_dspy.backbones.errors import explain

    started = time.perf_counter()
    answer = problem = ""
    lm: Any = None
    try:
        lm = Backbones(agent=config).lm("agent")
        answer = _ask(lm)
    except (RBError, dspy.DSPyError) as exc:
        problem = explain(exc, lm)
    return {"model": config.model, "answer": answer, "seconds": time.perf_counter() - started, "problem": problem}


def preflight(*every: Settings, agent: bool = True, judge: bool = True, teacher: bool = True) -> None:
    """Call each model once that will play a role, before anything is paid for.

    ``agent``: the agent is ours; ``judge``: rollouts are judged; ``teacher``: lessons are written. Raises
    ``BackboneError`` or ``InfrastructureError`` for the first that does not answer; what it answers does not matter.
    """
    import dspy

    from rb_dspy.backbones import Backbones
    from rb_dspy.backbones.errors import translate

    asked = set[str]()
    for each in every:
        mode = each.matts.mode if each.matts and each.matts.k > 1 else "sequential"  # one rollout
        wanted = {"agent": agent, "judge": judge, "contraster" if mode == "parallel" else "distiller": teacher}
        if each.program.learn == "one_call" and each.matts is None:
            wanted["judge"] = False  # the distiller's model judges too
        for role in (name for name, called in {**wanted, "selector": mode != "sequential"}.items() if called):
            config = each.roles[role if role in each.roles else "agent"]
            if config.model_dump_json() in asked:
                continue
            asked.add(config.model_dump_json())
            lm = Backbones(agent=config).lm("agent")
            try:
                with err.status(Text(f"calling {config.model} …")):
                    _ask(lm, retries=2)
            except (RBError, dspy.DSPyError) as exc:
                problem = translate(exc, role, lm)
                if not isinstance(problem, UnparseableOutput):
                    raise problem from None


def _ask(lm: Any, retries: int = 0) -> str:
    """The answer to a small question."""
    import dspy

    from rb_dspy.backbones.answers import reading

    own = lm.kwargs.get("max_tokens") or lm.kwargs.get("max_completion_tokens")
    cap = {} if own else {"max_tokens": _MAX_TOKENS}
    with dspy.context(lm=lm.copy(cache=False, num_retries=retries), adapter=reading(lm)):
        question = "Which colour has a clear sky at noon? Answer in one word."
        return str(dspy.Predict("question: str -> answer: str")(question=question, config=cap).answer).strip()
