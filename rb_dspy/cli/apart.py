"""Which tasks the prompts of a program were compiled on: what they solve there says nothing of others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from rich.text import Text

from rb_dspy.schema import Task
from rb_dspy.stream import RunReport
from rb_dspy.text import counted

if TYPE_CHECKING:
    from rb_dspy.compile.result import Compiled

_KNOWN = ("compile", "dev")


def counts(compiled: Compiled | None, tasks: Iterable[Task]) -> Counter[str]:
    """Part of the compile -> how many of ``tasks`` were in it; "" for those in none."""
    return Counter() if compiled is None else Counter(compiled.part_of(task) or "" for task in tasks)


def known_before(compiled: Compiled | None, tasks: Iterable[Task]) -> int:
    """How many of ``tasks`` the prompts were compiled on or chosen by."""
    return sum(counts(compiled, tasks)[part] for part in _KNOWN)


def head(compiled: Compiled | None, tasks: Sequence[Task]) -> str:
    """What is to be said before a run; empty where the prompts know none of its tasks."""
    found = counts(compiled, tasks)
    if not any(found[part] for part in _KNOWN):
        return ""
    new = found["held_out"] + found[""]
    these = f"{'this' if len(tasks) == 1 else 'these'} {counted(len(tasks), 'task')}"
    return (
        f"of {these} the prompts were compiled on {found['compile']} and chosen by {found['dev']};"
        f" {new or 'none'} {'is' if new == 1 else 'are'} new to them"
    )


def unseen(compiled: Compiled | None, report: RunReport) -> dict[str, Any] | None:
    """Tasks scored and solved among those that the prompts had not known; None where they knew none of the run's."""
    if compiled is None or not known_before(compiled, (result.task for result in report.results)):
        return None
    new = [result for result in report.results if compiled.part_of(result.task) not in _KNOWN]
    summary = RunReport(report.run_id, new).summary()
    return {"tasks": summary.tasks, "scored": summary.scored, "solved": summary.solved}


def print_unseen(compiled: Compiled | None, report: RunReport) -> Text | None:
    """A line under the summary."""
    found = unseen(compiled, report)
    if found is None:
        return None
    if not found["scored"]:
        return Text("the prompts were compiled on these tasks: this says nothing of how they do on others", "yellow")
    share = found["solved"] / found["scored"]
    return Text(
        f"of those that the prompts had not been compiled on or chosen by: solved {found['solved']} of"
        f" {found['scored']} ({share:.0%})",
        "yellow",
    )
