"""A run as people read it when it is over: its numbers in a table, and what test-time scaling gained."""

from __future__ import annotations

from rich.console import Console
from rich.rule import Rule
from rich.table import Table

from rb_dspy.cli.scored import print_usage
from rb_dspy.stream import RunReport, Scaling, Summary
from rb_dspy.text import counted

_NO_TRUTH = "not known: no task was scored by ground truth"


def print_summary(console: Console, report: RunReport, *, refined: bool = False) -> None:
    """The run in numbers. ``refined``: of sequential scaling, which results that were all resumed do not show."""
    summary = report.summary()
    console.print(Rule("summary", align="left", style="dim"))
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold")
    table.add_column()
    table.add_row("solved", _share(summary.solved, summary.scored, "task", ", by ground truth", _NO_TRUTH))
    if summary.skipped:
        table.add_row("left out", f"{counted(summary.skipped, 'task')} that the bank had learned from before")
    done = [result.prediction for result in report.results if result.prediction is not None]
    if not done or any(result.label is not None for result in report.results):
        table.add_row("judge agreement", _agreement(summary))
    if summary.judge_base_rate is not None:
        table.add_row("", f"[dim]a judge that always says the same: {summary.judge_base_rate:.0%}[/]")
    if summary.resumed:
        table.add_row("resumed", f"{summary.resumed}, not scored: what waited in the bank was learned from")
    if summary.truncated:
        table.add_row("cut off", f"[yellow]{counted(summary.truncated, 'rollout')}: steps or context used up[/]")
    if summary.unknown_verdicts:
        table.add_row("unknown verdicts", str(summary.unknown_verdicts))
    if summary.infrastructure_errors:
        table.add_row("failed", f"[red]{counted(summary.infrastructure_errors, 'task')}[/]")
    table.add_row("mean steps", "-" if summary.mean_steps is None else f"{summary.mean_steps:.1f}")
    if done:
        table.add_row("lessons shown", f"for {summary.shown} of {counted(len(done), 'task')}")
    if not done or any(prediction.get("experience") is not None for prediction in done):
        table.add_row("lessons learned", str(summary.items))
    console.print(table)
    print_usage(console, summary.usage)
    if summary.scaling is not None:
        _print_scaling(console, summary.scaling, summary.infrastructure_errors, refined=refined)


def _print_scaling(console: Console, scaling: Scaling, failed: int, *, refined: bool) -> None:
    """What several rollouts, or passes, gained. ``failed``: tasks that are not counted in it."""
    console.print(Rule("scaling", align="left", style="dim"))
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold")
    table.add_column()
    for each in scaling.pass_at:
        if each.j > 5 and each.j != len(scaling.pass_at) and each.j & (each.j - 1):  # powers of two are enough
            continue
        fewer = ", those with so many rollouts" if each.tasks < scaling.pass_at[0].tasks else ""
        table.add_row(f"pass@{each.j}", f"{each.rate:.0%} over {counted(each.tasks, 'task')}{fewer}")
    if scaling.passes is not None:
        found = scaling.passes
        for name, number in (("first", found.after_first), ("last", found.after_last)):
            after = _share(number, found.tasks, "task", ", by ground truth", _NO_TRUTH)
            table.add_row(f"after the {name} pass", after)
    elif not refined:
        compared = scaling.compared
        table.add_row("selected", _share(scaling.handed_in, compared, "task", ", by what was handed in", _NO_TRUTH))
        table.add_row("oracle", _share(scaling.solvable, compared, "task", ", by the best rollout", _NO_TRUTH))
        if scaling.selector_gap is not None:
            table.add_row("selector's gap", f"{100 * scaling.selector_gap:.0f} points below the oracle")
        if scaling.fallbacks:
            table.add_row("no selector", f"[yellow]for {counted(scaling.fallbacks, 'task')}: it gave no vote[/]")
    begun = f"{scaling.launched} begun, {scaling.lost} lost"
    if failed:
        begun += f", without those of the {counted(failed, 'task')} that failed"
    if refined or scaling.passes is not None:
        table.add_row("passes", begun)
    else:
        table.add_row("rollouts", f"{begun}; {scaling.mean_distinct:.1f} different ones a task, by their actions")
    console.print(table)


def _agreement(summary: Summary) -> str:
    """Said of a verb: ``0 of 1 verdict agrees``."""
    of_what = " on what was handed in" if summary.scaling is not None else ""
    agree = "agrees" if summary.judged == 1 else "agree"
    rest = f"{of_what} {agree} with ground truth"
    nothing = "not known: no verdict on a task that was scored"
    return _share(summary.agreements, summary.judged, "verdict", rest, nothing)


def _share(part: int, whole: int, what: str, rest: str, nothing: str) -> str:
    """``part`` of ``whole``, each a ``what``, or ``nothing`` if there is none to count."""
    return f"{part} of {counted(whole, what)}{rest} ({part / whole:.0%})" if whole else nothing
