"""SIT-Graph: which tool followed which, and how often the task succeeded then; shown after each call."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from rb_dspy.bank import MemoryBank
from rb_dspy.memories.recall import EveryTurn, Recent
from rb_dspy.memories.system import Attempt, Base, MemorySystem
from rb_dspy.memories.teach import item, learned
from rb_dspy.schema import ItemDraft, MemoryItem, Retrieved
from rb_dspy.steps import Distilled, Memory
from rb_dspy.steps.memory import render
from rb_dspy.steps.working import Context, ContextEdit, Moment
from rb_dspy.text import estimate_tokens

_SHOWN = 5
"""Most tools that are named at a turn; ours, as the abstract gives no number and there is no code."""
_TOKENS = 150
"""Most tokens (estimated) of a turn; ours."""
_START = "(start)"
"""Stands before the first tool."""
_JSON_NAME = re.compile(r'"(?:name|tool|tool_name|function)"\s*:\s*"([\w.-]{1,60})')
_FIRST_WORD = re.compile(r"[\w.-]{1,60}")


def sit_graph(base: Base) -> MemorySystem:
    """Edges between tools that were called one after the other, counted over successes and failures.

    The counts are those of the stored edges: each edge is two items, one from successes and one from failures, and a
    task that takes it again adds a provenance. The authors also keep summaries of states, which a model writes, for
    edges that are not certain; we show the counts, and leave it to the agent. It is made for tools: where an action is
    any text, its first word counts as one. What a task's own rollout took is left out for it with all its counts.
    """
    return MemorySystem(
        stores="which tool followed which, in tasks that succeeded and in tasks that failed",
        shows=f"what {_SHOWN} tools came of after the last one, at each turn",
        source="SIT-Graph, arXiv 2512.07287",
        calls="0",
        retrieve=AfterTool(base, _edges, Counts(), _TOKENS),
        teach=edges,
        signal="outcome",
    )


def tool_of(action: str) -> str:
    """The name of the tool that an action calls: that of a JSON call, or the first word."""
    named = _JSON_NAME.search(action) if action.lstrip(" \n[").startswith("{") else None
    word = _FIRST_WORD.search(action)
    return named[1] if named else word[0] if word else "(none)"


class AfterTool(EveryTurn):
    """Shows what followed the last tool, when that is another than the one before."""

    def edits(
        self, moment: Moment, context: Context, *, bank: MemoryBank, own_lessons: bool = False
    ) -> Sequence[ContextEdit]:
        """See ``WorkingMemory``."""
        tools = [_START, *(tool_of(step.action) for step in moment.steps)]
        memory = Memory() if len(tools) == 1 or tools[-2] == tools[-1] else self.at(moment, bank, own_lessons)
        return [ContextEdit("show", tuple(item.id for item in memory.items), memory.block)] if memory else ()


def _edges(moment: Moment, bank: MemoryBank, query: object) -> Sequence[Retrieved]:
    last = tool_of(moment.steps[-1].action) if moment.steps else _START
    found = Recent(None, ("edge",))(moment, bank, query)
    return [each for each in found if all(item.data["from"] == last for item in each.items)]


class Counts:
    """A renderer: a line for each tool, those first that the task succeeded with."""

    def __call__(self, moment: Moment, found: Sequence[Retrieved], max_tokens: int) -> Memory:
        edges: dict[str, list[MemoryItem]] = {}
        for edge in (each for match in found for each in match.items):
            edges.setdefault(str(edge.data["to"]), []).append(edge)
        counts = [(_times(each, "success"), _times(each, "success", "failure"), to) for to, each in edges.items()]
        best = sorted(counts, key=lambda each: (-(each[0] + 1) / (each[1] + 2), -each[1], each[2]))[:_SHOWN]
        after = f"After {tool_of(moment.steps[-1].action)}" if moment.steps else "At the start"
        lines = [
            edges[to][0].model_copy(update={"title": f"{after}, {to} succeeded {won} of {of} times", "content": ""})
            for won, of, to in best
        ]
        memory = render(lines, found, max_tokens)
        shown = [edge for line in memory.items for edge in edges[str(line.data["to"])]]
        left = [each for each in lines if each not in memory.items]
        beyond = estimate_tokens(render(left).block) if left else 0
        return replace(memory, items=tuple(shown), parts=(), beyond=beyond)


def edges(attempts: Sequence[Attempt], bank: MemoryBank) -> Distilled:  # noqa: ARG001
    """A distiller: each tool of a rollout that was judged, with the one before it."""
    known = [each for each in attempts if each.verdict.label != "unknown"]
    return learned((draft for each in known for draft in _drafts(each)), attempts)


def _times(edges: Sequence[MemoryItem], *labels: str) -> int:
    return sum(len(each.provenances) for each in edges if each.data["label"] in labels)


def _drafts(attempt: Attempt) -> list[ItemDraft]:
    label = attempt.verdict.label
    tools = [_START, *(tool_of(step.action) for step in attempt.trajectory.steps)]
    pairs = [{"from": before, "to": after, "label": label} for before, after in pairwise(tools)]
    return [item("edge", f"{each['from']} -> {each['to']}", label, **each) for each in pairs]
