"""A run in a few words, as its page shows them: Markdown."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rb_dspy.stream import Summary
from rb_dspy.text import counted

if TYPE_CHECKING:  # they bring scipy
    from rb_dspy.compile.matrix import Matrix
    from rb_dspy.compile.result import Compiled
    from rb_dspy.compile.scores import Estimate

_MOST = 4_000
"""Characters of a difference of prompts; the whole of it is in ``prompts.diff``."""
_WIDTH = 72
"""Characters of a line of it."""


def of_compile(compiled: Compiled, first: str = "") -> str:
    """What held-out tasks say, before and after, and what changed in the prompts.

    ``first``: the run that logged the same result before, where there is one.
    """
    scores, diff = compiled.scores, compiled.diff()
    rows = [
        (name, _value(each.before), _value(each.after), _value(each.difference, "+"), str(each.difference.tasks))
        for name, each in (("dev", scores.dev), ("held-out", scores.held_out))
    ]
    calls = f"{compiled.metric_calls} of {counted(compiled.budget, 'metric call')}"
    changed = f"```diff\n{_cut(diff)}\n```" if diff else "No prompt has changed."
    parts = [
        f"Held-out tasks say: **{scores.held_out.says}**",
        _table(("", "before", "after", "difference", f"{scores.held_out.difference.unit}s"), *rows),
        f"{compiled.optimizer}, stage {compiled.stage}, {calls}."
        f" Measured: {compiled.measure}."
        + (
            " It was found done: this run asked nothing, and"
            f" {f'the run {first} has its cost and its candidates' if first else 'an earlier one has its cost'}."
            if compiled.found_done
            else ""
        ),
        _searched(compiled.stage),
        changed,
    ]
    return "\n\n".join(parts)


def _searched(stage: str) -> str:
    """What the numbers of the search are: not those of the table."""
    each = "windows of dev tasks, each from the lessons at the start" if stage == "all" else "dev examples"
    told = f"`search/best`, and `search/score` of the candidates below this run, are means over {each}, by which"
    measured = "whole streams, in every order" if stage == "all" else "all examples, measured again before and after"
    return f"{told} the optimizer chose. `dev/...` and `held_out/...` are of {measured}: do not compare them."


_LESSONS = {
    "frozen": "memory frozen: lessons were shown, and nothing was learned",
    "off": "memory off: no lesson was shown, and nothing was learned",
}


def of_stream(summary: Summary, memory: str = "", first: str = "") -> str:
    """How much was solved, whether the judge was right, and what was learned; and what was done before.

    ``memory``: what became of lessons. ``first``: the run that this one goes on from, where that is known.
    """
    solved = f"**{summary.solved} of {summary.scored} solved**" if summary.scored else "no ground truth"
    parts = [f"{counted(summary.tasks, 'task')}, {solved}"]
    if summary.judged:
        always = f"one that always says the same would be on {(summary.judge_base_rate or 0) * summary.judged:.0f}"
        parts.append(f"the judge was right on {summary.agreements} of {summary.judged}, where {always}")
    if summary.infrastructure_errors:
        parts.append(f"{summary.infrastructure_errors} failed")
    if summary.truncated:
        parts.append(f"{counted(summary.truncated, 'rollout')} cut off")
    if summary.resumed:
        parts.append(f"{summary.resumed} resumed, not scored: what waited in the bank was learned from")
    unshown = " (memory unshown: none was shown)" if memory == "unshown" else ""
    learned = f"{counted(summary.items, 'lesson')} learned{unshown}"
    before = []
    if summary.skipped:
        were, they = ("was", "it") if summary.skipped == 1 else ("were", "they")
        before.append(f"{summary.skipped} more {were} left out: {they} had been learned from before.")
    if first:
        before.append(f"This run goes on from the run {first}.")
    said = f"{'; '.join([*parts, _LESSONS.get(memory, learned)])}."
    return "\n\n".join([said, " ".join(before)] if before else [said])


def of_matrix(found: Matrix) -> str:
    """How each program did on each backbone, and which to compile again."""
    from rb_dspy.compile.matrix import UNCOMPILED, shown  # brings scipy

    head = ("backbone", "program", "success", f"against {UNCOMPILED}", "")
    rows = [
        (
            cell.backbone,
            shown(cell.program),
            _value(cell.success) if cell.success is not None else "could not be run",
            _value(cell.difference, "+") if cell.difference is not None else "",
            "compile again" if cell.recompile else "",
        )
        for cell in found.cells
    ]
    dark = f"{counted(found.left_out, 'task')} left out: nobody knows the outcome, in one cell or another."
    return "\n\n".join([_table(head, *rows), *([dark] if found.left_out else [])])


def _table(*rows: Sequence[str]) -> str:
    """In a block of code: MLflow sets the cells of a table without any room between them."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join(["```text", *lines, "```"])


def _value(estimate: Estimate, sign: str = "") -> str:
    return f"{estimate.mean:{sign}.2f} [{estimate.low:{sign}.2f}, {estimate.high:{sign}.2f}]"


def _cut(text: str) -> str:
    """``text`` in lines that fit a page, and nothing in it ends the block of code that it stands in."""
    lines = [part for line in text.replace("```", "'''").splitlines() for part in _wrapped(line)]
    whole = "\n".join(lines)
    return whole if len(whole) <= _MOST else f"{whole[:_MOST]}\n… the rest is in prompts.diff"


def _wrapped(line: str) -> list[str]:
    """A line of a diff; where it is long, in several, each with its sign. A wide one would push the page apart."""
    return textwrap.wrap(line, _WIDTH, subsequent_indent=line[:1], drop_whitespace=False) or [line]
