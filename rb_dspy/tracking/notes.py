"""A run in a few words, as its page shows them: Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from rb_dspy.stream.report import Summary

if TYPE_CHECKING:  # they bring scipy
    from rb_dspy.compile.result import Compiled
    from rb_dspy.compile.scores import Estimate

_MOST = 4_000
"""Characters of a difference of prompts; the whole of it is in ``prompts.diff``."""


def of_compile(compiled: Compiled) -> str:
    """What held-out tasks say, before and after, and what changed in the prompts."""
    scores, diff = compiled.scores, compiled.diff()
    rows = [
        (name, each.before, each.after, _signed(each.difference), each.difference.tasks)
        for name, each in (("dev", scores.dev), ("held-out", scores.held_out))
    ]
    changed = f"```diff\n{_cut(diff)}\n```" if diff else "No prompt has changed."
    parts = [
        f"Held-out tasks say: **{scores.held_out.says}**",
        _table(("", "before", "after", "difference", f"{scores.held_out.difference.unit}s"), rows),
        f"{compiled.optimizer}, stage {compiled.stage}, {compiled.metric_calls} of {compiled.budget} metric calls."
        f" Measured: {compiled.measure}.",
        changed,
    ]
    return "\n\n".join(parts)


def of_stream(summary: Summary) -> str:
    """How much was solved, whether the judge was right, and what was learned."""
    solved = f"**{summary.solved} of {summary.scored} solved**" if summary.scored else "no ground truth"
    parts = [f"{summary.tasks} tasks, {solved}"]
    if summary.judged:
        parts.append(f"the judge was right on {summary.agreements} of {summary.judged}")
    if summary.infrastructure_errors:
        parts.append(f"{summary.infrastructure_errors} broke")
    return f"{'; '.join([*parts, f'{summary.items} lessons learned'])}."


def _table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def _signed(estimate: Estimate) -> str:
    return f"{estimate.mean:+.3f} [{estimate.low:+.3f}, {estimate.high:+.3f}]"


def _cut(text: str) -> str:
    """``text``, and nothing in it ends the block of code that it stands in."""
    whole = text.replace("```", "'''")
    return whole if len(whole) <= _MOST else f"{whole[:_MOST]}\n… the rest is in prompts.diff"
