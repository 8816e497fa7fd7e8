"""Scores and prompts as people read them: intervals, what they say in words, diffs."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from rb_dspy.compile.state import Prompts
from rb_dspy.schema import Usage
from rb_dspy.text import counted, printable

if TYPE_CHECKING:
    from rb_dspy.compile.result import Scores
    from rb_dspy.compile.scores import Comparison, Estimate, Says

_COLOURS: dict[Says, str] = {"better": "green", "worse": "red"}
_SHORT: dict[Says, str] = {
    "too few to tell": "too few",
    "too few orders to tell": "too few orders",
    "no better than before": "no better",
    "not shown to be better": "not shown",
}


def in_words(says: Says, *, short: bool = False) -> Text:
    """``short``: in one or two words."""
    return Text(_SHORT.get(says, says) if short else says, _COLOURS.get(says, "yellow"))


def value(estimate: Estimate) -> str:
    """``0.67 [0.35, 0.88]``."""
    return f"{estimate.mean:.2f} [{estimate.low:.2f}, {estimate.high:.2f}]"


def share(estimate: Estimate) -> str:
    """``67% [35, 88]``."""
    return f"{estimate.mean:.0%} [{100 * estimate.low:.0f}, {100 * estimate.high:.0f}]"


def change(estimate: Estimate) -> str:
    """``+0.20 [-0.05, +0.45]``."""
    return f"{estimate.mean:+.2f} [{estimate.low:+.2f}, {estimate.high:+.2f}]"


def print_scores(console: Console, scores: Scores, measure: str) -> None:
    """Before and after, on what was chosen by and on what was not looked at before."""
    of = scores.held_out.after
    table = Table(box=None, pad_edge=False, header_style="bold")  # as wide as a terminal of 80 columns, and no wider
    for heading in ("", "before", "after", "difference", f"{of.unit}s"):
        right = heading == f"{of.unit}s"
        table.add_column(heading, style="" if heading else "bold", justify="right" if right else "left", no_wrap=True)
    for name, found in (("dev", scores.dev), ("held-out", scores.held_out)):
        cells = value(found.before), value(found.after), change(found.difference), str(found.after.tasks)
        table.add_row(name, *cells)
    console.print(table)
    console.print(Text.assemble("held-out tasks say: ", in_words(scores.held_out.says)))
    orders = f"; each in {of.orders} orders" if of.orders > 1 else ""
    told = f"measured: {measure}{orders}; in brackets, 95 % intervals; prompts were chosen on dev, which flatters them"
    console.print(Text(told, "dim"))
    for name, found in (("dev", scores.dev), ("held-out", scores.held_out)):
        if found.broken:
            console.print(Text(_broken(name, found), "yellow"))


def print_usage(console: Console, usage: Usage, money: Mapping[str, float] | None = None) -> None:
    """Calls, tokens and seconds by role, and US dollars where any are known to be paid."""
    paid = any(money.values()) if money else False
    table = Table("role", box=None, pad_edge=False, header_style="bold")
    for heading in ("calls", "prompt tokens", "output tokens", "seconds", *(("US $",) if paid else ())):
        table.add_column(heading, justify="right")
    for role, used in usage.items():
        calls = f"{used.calls:,}" + (f" ({used.cached_calls} cached)" if used.cached_calls else "")
        cells = [calls, f"{used.prompt_tokens:,}", f"{used.completion_tokens:,}", f"{used.seconds:.1f}"]
        if paid and money is not None:
            cells.append(f"{money[role]:.4f}" if role in money else "not known")
        table.add_row(Text(role), *cells)
    console.print(table)


def prompts_diff(before: Prompts, after: Prompts, labels: tuple[str, str]) -> str:
    """A unified diff of each predictor that is not the same in both: instructions, then demonstrations."""
    parts = []
    for name in dict.fromkeys([*before, *after]):
        old, new = (_lines(prompts.get(name)) for prompts in (before, after))
        first, second = (f"{name} {label}" for label in labels)
        parts.append("\n".join(difflib.unified_diff(old, new, first, second, lineterm="", n=2)))
    return "\n\n".join(part for part in parts if part)


def print_diff(console: Console, diff: str) -> None:
    """A unified diff in colours. Nothing in the prompts commands the terminal."""
    for line in printable(diff).splitlines():
        style = next((style for sign, style in _SIGNS if re.match(sign, line)), "")
        console.print(Text(line, style), soft_wrap=True)  # a prompt's lines end where it says, also in a pipe


_SIGNS = (
    (r"(---|\+\+\+) .* (before|after|uncompiled|version \d+)$", "bold"),
    (r"@@", "dim"),
    (r"\+", "green"),
    (r"-", "red"),
)


def _lines(prompts: dict[str, Any] | None) -> list[str]:
    if prompts is None:
        return []
    demos = (json.dumps(demo, ensure_ascii=False) for demo in prompts["demos"])
    return [*prompts["instructions"].splitlines(), *(f"[demonstration] {demo}" for demo in demos)]


def _broken(name: str, found: Comparison) -> str:
    """How much of a score is not the program's doing."""
    before = counted(found.broken_before, "score")
    counts = f"{name}: {before} before and {found.broken_after} after are 0 since something broke"
    clean = "nothing is left" if found.clean is None else f"the difference is {change(found.clean)}"
    return f"{counts}; without what that touched, {clean}"
