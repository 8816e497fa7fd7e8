"""What ``rb-dspy compile`` tells: before it begins, and of what came of it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.rule import Rule
from rich.text import Text

from rb_dspy.cli.common import out
from rb_dspy.cli.scored import change, in_words, print_diff, print_scores, print_usage
from rb_dspy.matts import BankProgram
from rb_dspy.stream import Streams
from rb_dspy.text import counted
from rb_dspy.tracking.described import models, models_of_compile
from rb_dspy.tracking.prices import costs

if TYPE_CHECKING:
    from rb_dspy.compile.result import Compiled


def print_head(title: str, program: BankProgram, streams: Streams, given: dict[str, Any], place: Path) -> None:
    """Before it begins: what is compiled for what, on which tasks, and where a stopped one goes on from."""
    names = set(models(program.backbones).values())
    out.print(
        Text.assemble(
            (title, "bold"),
            f"  {given['optimizer']} on stage {given['stage']}, {counted(given['budget'], 'metric call')}  ",
            (", ".join(sorted(names)), "dim"),
        )
    )
    parts = streams.compile, streams.dev, streams.held_out
    compile_, dev, held_out = (len(part) for part in parts)
    kinds = [len({task.template or task.id for task in part}) for part in parts]
    templates = f"{', '.join(map(str, kinds))} template{'' if set(kinds) == {1} else 's'}"
    told = f"tasks: {compile_} to compile on, {dev} to choose by, {held_out} held out ({templates})"
    out.print(Text(told, "dim"))
    out.print(_can_show(given, held_out))
    out.print(Text(_known(place), "dim"))


def _can_show(given: dict[str, Any], tasks: int) -> Text:
    """What the held-out part can show."""
    from rb_dspy.compile.scores import likely_shown  # brings scipy

    orders = given["orders"] if given["stage"] == "all" else None
    gain = likely_shown(tasks, orders)
    held_out = f"the held-out part{f' in {orders} orders' if orders else ''}"
    if gain is None:
        return Text(f"{held_out} cannot show a gain: hold out more tasks, or score in 8 orders", "yellow")
    return Text(f"{held_out} is likely to show a gain of {gain:.2f} or more; a smaller one needs more tasks", "dim")


def _known(place: Path) -> str:
    """What a folder holds of this compile."""
    if (place / "compiled.json").exists():
        return f"{place} has a result: a compile that is the same is not done again"
    try:
        with (place / "answers.jsonl").open("rb") as answers:
            return f"goes on from {place}, which has {counted(sum(1 for _ in answers), 'answer')}"
    except OSError:  # none yet, or the compile says what is wrong with it
        return f"if it is stopped, it goes on from {place}"


def print_result(compiled: Compiled, program: BankProgram, reflection: Any) -> None:
    """Scores, prompts and cost. ``reflection``: the language model that proposed prompts; None: the agent's."""
    out.print(Rule("scores", align="left", style="dim"))
    print_scores(out, compiled.scores, compiled.measure)
    out.print(Rule("prompts", align="left", style="dim"))
    if compiled.changed:
        print_diff(out, compiled.diff())
    else:
        others = len(compiled.candidates) - 1  # the first is the program as it was
        no_other = f"none of {counted(others, 'other')}" if others > 0 else "no other"
        out.print(f"none has changed: {no_other} was better on dev")
    out.print(Rule("cost", align="left", style="dim"))
    print_usage(out, compiled.usage, costs(compiled.usage, models_of_compile(program.backbones, reflection)))
    calls = f"{compiled.metric_calls} of {counted(compiled.budget, 'metric call')}, {compiled.seconds:,.0f} s"
    broken = f"; {compiled.broken} broke and count as 0" if compiled.broken else ""
    out.print(Text(f"{calls}{broken}", "dim"))
    if compiled.proposals_failed:
        out.print(Text(f"{_no_proposals(compiled)}: check that model, or give another as --reflection", "yellow"))
    best = max((found.score for found in compiled.candidates), default=0.0)
    if compiled.metric_calls < compiled.budget and best >= 1:
        out.print(Text("ended before the budget was spent: dev is at 1.00, and nothing can be better there", "dim"))


def _no_proposals(compiled: Compiled) -> str:
    """How often, and why, there was no prompt to try."""
    unread, failed = compiled.proposals_unreadable, compiled.proposals_failed
    told = []
    if unread:
        began = f"; one began {compiled.unreadable_proposal!r}" if compiled.unreadable_proposal else ""
        told.append(f"{_times(unread)} in a form that cannot be read{began}")
    if failed > unread:
        told.append(f"{_times(failed - unread)} not at all, or with nothing new")
    return f"who proposes prompts answered {', and '.join(told)}"


def _times(number: int) -> str:
    return "once" if number == 1 else f"{number} times"


def print_next(compiled: Compiled, *, keep: str, use: str) -> None:
    """What to do with it. ``keep`` and ``use``: commands that register it, and that run with its prompts."""
    if compiled.improved:
        out.print(Text.assemble("keep and promote it: ", (keep, "bold")), soft_wrap=True)
    elif not compiled.changed and compiled.proposals_failed:
        out.print("what may help: a --reflection that has ideas; the same command with another model compiles anew")
    elif not compiled.changed and compiled.scores.dev.before.mean >= 1:
        told = "dev has no task left to be better on, so nothing could be chosen"
        out.print(f"{told}: another --seed, or more tasks, may put harder ones into it")
    elif not compiled.changed:
        proposer = ", a stronger model as --reflection" if "reflection" in compiled.usage else ""
        out.print(f"what may help: a larger --budget{proposer}, more tasks")
    else:
        held_out = compiled.scores.held_out.says
        more = "--orders 8 may tell" if "orders" in held_out else "more tasks, or a larger --budget, may tell"
        interval = change(compiled.scores.held_out.difference)
        out.print(Text.assemble("not enough to promote it (", in_words(held_out), f", {interval}): {more}"))
        out.print(Text.assemble("keep it all the same: ", (keep, "bold")), soft_wrap=True)
    if compiled.changed:
        out.print(Text.assemble("use it: ", (use, "bold")), soft_wrap=True)


def as_json(compiled: Compiled, path: Path, folder: Path, run: str | None) -> dict[str, Any]:
    """The result for scripts, and where it is: its file, its folder, its run in MLflow."""
    held_out = compiled.scores.held_out
    return {
        **compiled.model_dump(mode="json", exclude={"state", "candidates", "prompts_before", "prompts_after"}),
        "improved": compiled.improved,
        "held_out_says": held_out.says,
        "changed": compiled.changed,
        "diff": compiled.diff(),
        "candidates": len(compiled.candidates),
        "saved": path,
        "folder": folder,
        "mlflow_run": run,
    }
