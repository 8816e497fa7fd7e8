"""A run as people read it when it is over: its numbers in a table, and what test-time scaling gained."""

from __future__ import annotations

from rich.console import Console
from rich.rule import Rule
from rich.table import Table

from rb_dspy.cli.scored import print_usage
from rb_dspy.schema import StopReason
from rb_dspy.steps.drafts import Unfit
from rb_dspy.stream import PassAt, RunReport, Scaling, Summary
from rb_dspy.wording import counted

_NO_TRUTH = "not known: no task was scored by ground truth"

_UNFIT: dict[Unfit, str] = {
    "empty": "without title or content",
    "overlap": "much like another",
    "quote": "quoted the task",
    "surplus": "beyond the limit",
    "groundless": "shown by no rollout",
    "retracted": "taken away from the bank before",
}

_CUT_OFF: dict[StopReason, str] = {
    "max_steps": "at the step limit",
    "context": "when nothing more fitted into the model",
}


def print_summary(console: Console, report: RunReport, *, refined: bool = False) -> None:
    """The run in numbers. ``refined``: of sequential scaling, which the results cannot tell where all were resumed."""
    summary = report.summary()
    console.print(Rule("summary", align="left", style="dim"))
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold")
    table.add_column()
    solved = _share(summary.solved, summary.scored, "task", ", by ground truth", _NO_TRUTH)
    if summary.lost and summary.success_rate_with_lost is not None:
        solved += f"; {summary.success_rate_with_lost:.0%} with the {summary.lost} that broke as failures"
    table.add_row("solved", solved)
    if summary.skipped:
        table.add_row("left out", f"{counted(summary.skipped, 'task')} that the bank had learned from before")
    done = [result for result in report.results if result.prediction is not None]
    judged = not done or any(result.label is not None for result in done)  # else nobody was to
    learned = not done or any(result.prediction.get("experience") is not None for result in done if result.prediction)
    if judged:
        table.add_row("judge agreement", _agreement(summary))
    if summary.judged:
        table.add_row("", _judge(summary))
    if summary.resumed:
        table.add_row("resumed", f"{summary.resumed}, not scored: what waited in the bank was learned from")
    told = [f"{role} {number:,}" for role, number in summary.unreadable_answers.items()]
    if summary.unreadable:
        told.append(f"{counted(summary.unreadable, 'rollout')} ended with one")
    if told:
        table.add_row("unreadable answers", f"[yellow]{'; '.join(told)}[/]")
    if summary.cut_off:
        ended = "; ".join(f"{counted(number, 'rollout')} {_CUT_OFF[why]}" for why, number in summary.cut_off.items())
        table.add_row("cut off", f"[yellow]{ended}[/]")
    if summary.unknown_verdicts:
        of_scored = f", on {summary.abstentions} of {counted(summary.scored, 'scored task')}" if summary.scored else ""
        table.add_row("unknown verdicts", f"{summary.unknown_verdicts}{of_scored}")
    if summary.infrastructure_errors:
        table.add_row("infrastructure errors", f"[red]{summary.infrastructure_errors}[/]")
    table.add_row("mean steps", _steps(summary))
    if done:
        table.add_row("lessons shown", f"for {summary.shown} of {counted(len(done), 'task')}")
    known = f", of which {summary.known_items} {_were(summary.known_items)} known" if summary.known_items else ""
    if learned:
        table.add_row("lessons learned", f"{summary.items}{known}")
    if dropped := sum(summary.dropped_items.values()):
        why = ", ".join(f"{number} {_UNFIT[each]}" for each, number in summary.dropped_items.items())
        table.add_row("lessons dropped", f"{dropped} of {summary.proposed_items} proposed ({why})")
    console.print(table)
    print_usage(console, summary.usage)
    if summary.scaling is not None:
        _print_scaling(console, summary.scaling, summary.lost, refined=refined)


def _print_scaling(console: Console, scaling: Scaling, broken: int, *, refined: bool) -> None:
    """What several rollouts, or passes, gained. ``broken``: tasks of which nothing came."""
    console.print(Rule("scaling", align="left", style="dim"))
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold")
    table.add_column()
    last, ended = len(scaling.pass_at_with_lost), {each.j: each for each in scaling.pass_at}
    for each in scaling.pass_at_with_lost:
        if each.j > 5 and each.j != last and each.j & (each.j - 1):  # of many rollouts the powers of two are enough
            continue
        table.add_row(f"pass@{each.j}", _pass_at(ended.get(each.j), each, most=scaling.pass_at_with_lost[0].tasks))
    if scaling.unconditional is not None and last:
        why = f"whether a task had more than {scaling.unconditional} rollouts hung on what those reached"
        table.add_row(f"pass@{scaling.unconditional + 1}+", f"[dim]not known: {why}[/]")
    if scaling.passes is not None:
        found = scaling.passes
        rows = [("after the first pass", found.after_first), ("after the last pass", found.after_last)]
        if found.handed_in != found.after_last:  # the last attempt could not be read, or gave no answer
            rows.append(("handed in", found.handed_in))
        for name, number in (*rows, ("after any pass", found.after_any)):
            table.add_row(name, _share(number, found.tasks, "task", ", by ground truth", _NO_TRUTH))
    elif not refined:
        handed_in, best = ", by what was handed in", ", by the best rollout"
        table.add_row("best of n", _share(scaling.handed_in, scaling.compared, "task", handed_in, _NO_TRUTH))
        table.add_row("oracle", _share(scaling.solvable, scaling.compared, "task", best, _NO_TRUTH))
        if scaling.selector_gap is not None:
            table.add_row("selector's gap", f"{100 * scaling.selector_gap:.0f} points below the oracle")
        if scaling.fallbacks:
            why = "it broke, could not be read, or named no rollout"
            table.add_row("no selector", f"[yellow]for {counted(scaling.fallbacks, 'task')}: {why}[/]")
    begun = f"{scaling.launched} begun, {scaling.lost} lost, {scaling.saved} saved"
    if broken:
        begun += f", without those of the {counted(broken, 'task')} that broke"
    if refined or scaling.passes is not None:
        table.add_row("passes", begun)
    else:
        table.add_row("rollouts", f"{begun}; {scaling.mean_distinct:.1f} different ones a task, by their actions")
    console.print(table)


def _steps(summary: Summary) -> str:
    """Of all tasks, and of those that were solved: who gives up early takes few steps too."""
    if summary.mean_steps is None:
        return "-"
    solved = summary.mean_steps_solved
    told = f"{summary.mean_steps:.1f}"
    return told if solved is None else f"{told}, of the {summary.solved} solved {solved:.1f}"


def _pass_at(ended: PassAt | None, all_: PassAt, *, most: int) -> str:
    """Over the rollouts that came to their end, and, where any were lost, with those as failures."""
    if ended is None:
        told = "no task has so many that ended"
    else:
        fewer = ", those with so many rollouts" if ended.tasks < most else ""
        told = f"{ended.rate:.0%} over {counted(ended.tasks, 'task')}{fewer}"
    return told if ended == all_ else f"{told}; {all_.rate:.0%} over {all_.tasks} with lost ones as failures"


def _agreement(summary: Summary) -> str:
    """Said of a verb: ``0 of 1 verdict agrees``."""
    of_what = " on what was handed in" if summary.scaling is not None else ""
    agree = "agrees" if summary.judged == 1 else "agree"
    rest = f"{of_what} {agree} with ground truth"
    return _share(
        summary.agreements, summary.judged, "verdict", rest, "not known: no verdict on a task that was scored"
    )


def _judge(summary: Summary) -> str:
    """What the agreement is to be held against, and how the judge does on successes."""
    solved = summary.true_successes + summary.false_failures
    constant = "success" if 2 * solved > summary.judged else "failure"
    rates = ("precision", summary.judge_precision), ("recall", summary.judge_recall)
    told = ", ".join(f"{name} {'-' if rate is None else f'{rate:.0%}'}" for name, rate in rates)
    return f"[dim]always {constant}: {summary.judge_base_rate:.0%};[/] of successes: {told}"


def _share(part: int, whole: int, what: str, rest: str, nothing: str) -> str:
    """``part`` of ``whole``, each a ``what``, or ``nothing`` where there is none to count."""
    return f"{part} of {counted(whole, what)}{rest} ({part / whole:.0%})" if whole else nothing


def _were(number: int) -> str:
    return "was" if number == 1 else "were"
