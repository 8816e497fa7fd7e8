"""The lessons retrieved for a task, and their text in the agent's prompt."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from rb_dspy.config import source_name
from rb_dspy.schema import MemoryItem, Retrieved, brief
from rb_dspy.steps.transcript import escape_fields
from rb_dspy.steps.working import Position, WorkingMemory
from rb_dspy.text import counted, estimate_tokens, html_table

NO_MEMORY = "(no lessons yet)"
_NUMBERED = re.compile(r"\s*\d+\s*[.):]")


@dataclass(frozen=True, repr=False)
class Memory:
    """The lessons for one task. ``items`` are those in ``block``, in order. Falsy if there are none."""

    retrieved: tuple[Retrieved, ...] = ()
    items: tuple[MemoryItem, ...] = ()
    block: str = NO_MEMORY
    position: Position = "first_turn"
    """Where our own agent reads the block; an agent of yours gets the text."""
    turns: tuple[tuple[str, str], ...] = ()
    """With the position ``messages``: observation and action of earlier turns, which stand before the task; the last
    ones are left out if a prompt does not fit. ``block`` has their text, too, for an agent of yours."""
    working: WorkingMemory | None = field(default=None, compare=False)
    """Changes what our own agent reads during the task."""
    parts: tuple[str, ...] = ()
    """The part of ``block`` with each of ``items``, so that ``working`` can drop it; empty: it cannot."""
    beyond: int = 0
    """Tokens (estimated) that did not fit."""
    problem: str = ""
    """Why nothing is shown, if the answer of a language model that memory asked could not be used."""

    def __bool__(self) -> bool:
        return bool(self.items)

    @property
    def tokens(self) -> int:
        """Tokens (estimated) that are shown: of the block, or of the turns."""
        told = sum(estimate_tokens(part) for turn in self.turns for part in turn)
        return max(told, estimate_tokens(self.block) if self.block != NO_MEMORY else 0)

    def __repr__(self) -> str:
        titles = ", ".join(brief.repr(item.title) for item in self.items[:3])
        return f"Memory({counted(len(self.items), 'lesson')}: {titles}{', …' if len(self.items) > 3 else ''})"

    def _repr_html_(self) -> str:
        scores = {item.id: f"{match.score:.2f}" for match in self.retrieved for item in match.items}
        rows = [(scores.get(item.id, ""), item.title, item.content) for item in self.items]
        return html_table(counted(len(rows), "lesson"), ("score", "title", "content"), rows)


def render(items: Iterable[MemoryItem], retrieved: Sequence[Retrieved] = (), max_tokens: int | None = None) -> Memory:
    """Format ``items`` for the agent's prompt (paper, section 3.2), each once: title, description if any, and content.

    Every line is quoted, dspy's field markers are broken up, and further lines and what looks like a number are
    indented, so that a stored text can look like neither a turn of the conversation nor another lesson. An item that
    would exceed ``max_tokens`` (estimated; None: no limit) is skipped, and the next ones are tried; those of others get
    the room that those of this program's own tasks leave. The title names the source of a lesson of others.
    """
    every = list({item.id: item for item in items}.values())  # several experiences may share an item
    quoted, used = dict[str, str](), 0
    for item in sorted(every, key=lambda item: bool(source_name(item.provenance.origin))):
        parts = [escape_fields(text).strip() for text in (item.title, item.description, item.content) if text]
        texts = ["\n>   ".join(part.splitlines()) for part in parts]
        body = [f"  {text}" if _NUMBERED.match(text) else text for text in texts[1:]]
        name = source_name(item.provenance.origin)
        text = "\n> ".join([f"{texts[0]}{f' (from {name})' if name else ''}", *body])
        tokens = estimate_tokens(f"> {len(quoted) + 1}. {text}\n")
        if max_tokens is None or used + tokens <= max_tokens:
            used += tokens
            quoted[item.id] = text
    shown = [item for item in every if item.id in quoted]
    lines = tuple(f"> {number}. {quoted[item.id]}" for number, item in enumerate(shown, 1))
    return Memory(tuple(retrieved), tuple(shown), "\n".join(lines) or NO_MEMORY, parts=lines)
