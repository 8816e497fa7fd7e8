"""The summary of a run, from its result rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rich.rule import Rule
from rich.text import Text

from rb_dspy.cli.output import facts, out
from rb_dspy.text import counted

if TYPE_CHECKING:
    from rb_dspy.stream import Scaling

_NO_TRUTH = "unknown: no task was scored by ground truth"


def print_summary(found: Mapping[str, Any], total: int) -> None:
    """Print the ``numbers`` of a run that has ``total`` tasks."""
    out.print(Rule("summary", align="left", style="dim"))
    table = facts()
    lost = f", {found['broke']} broke" if found["broke"] else ""
    table.add_row("solved", share(found["solved"], found["scored"], "task", f"{lost}, by ground truth", _NO_TRUTH))
    if found["judged"]:
        agree = "agrees" if found["judged"] == 1 else "agree"
        of = share(found["agreements"], found["judged"], "verdict", f" {agree} with ground truth", "")
        table.add_row("judge", f"{of}; one that always says the same: {found['judge_base_rate']:.0%}")
    for name, key, text in (
        ("resumed", "resumed", "learned from an earlier rollout"),
        ("cut off", "cut_off", "ended at the limit of steps or context"),
        ("unknown", "unknown_verdicts", "whose verdict is unknown"),
        ("failed", "errors", "which count as not solved; the next run repeats them"),
    ):
        if found[key]:
            table.add_row(name, Text(f"{counted(found[key], 'task')} {text}", "red" if key == "errors" else ""))
    if found["tasks"] < total:
        table.add_row("open", f"{counted(total - found['tasks'], 'task')} not done yet")
    table.add_row("mean steps", "-" if found["mean_steps"] is None else f"{found['mean_steps']:.1f}")
    lessons = f"shown for {counted(found['shown'], 'task')}, {found['learned']} learned"
    table.add_row("lessons", lessons)
    cost = "" if found["cost"] is None else f", ${found['cost']:,.4f}"
    table.add_row("tokens", f"{found['tokens']:,}{cost}")
    out.print(table)


def print_scaling(scaling: Scaling) -> None:
    """Print the gain of several rollouts or passes."""
    out.print(Rule("scaling", align="left", style="dim"))
    table = facts()
    for each in scaling.pass_at:
        if each.j <= 5 or each.j == len(scaling.pass_at) or not each.j & (each.j - 1):  # powers of two are enough
            table.add_row(f"pass@{each.j}", f"{each.rate:.0%} of {counted(each.tasks, 'task')}")
    if scaling.passes is not None:
        passes = scaling.passes
        table.add_row("first pass", share(passes.after_first, passes.tasks, "task", " solved", _NO_TRUTH))
        table.add_row("last pass", share(passes.after_last, passes.tasks, "task", " solved", _NO_TRUTH))
    elif scaling.compared:
        table.add_row("selected", share(scaling.handed_in, scaling.compared, "task", " solved", _NO_TRUTH))
        table.add_row("best", share(scaling.solvable, scaling.compared, "task", " solved by some rollout", _NO_TRUTH))
    if scaling.fallbacks:
        table.add_row("no vote", f"[yellow]the selector chose none for {counted(scaling.fallbacks, 'task')}[/]")
    table.add_row("rollouts", f"{scaling.launched} started, {scaling.lost} lost; {scaling.mean_distinct:.1f} distinct")
    out.print(table)


def share(part: int, whole: int, what: str, rest: str, nothing: str) -> str:
    """``2 of 3 tasks, by ground truth (67%)``, or ``nothing`` if ``whole`` is 0."""
    return f"{part} of {counted(whole, what)}{rest} ({part / whole:.0%})" if whole else nothing
