"""What was retrieved for a task, and how an agent reads it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rb_dspy.schema import MemoryItem, Retrieved
from rb_dspy.steps.transcript import escape_fields
from rb_dspy.text import estimate_tokens

NO_MEMORY = "(no lessons yet)"


@dataclass(frozen=True)
class Memory:
    """The lessons for one task. ``items`` are those that ``block`` shows, in order; False if there are none."""

    retrieved: tuple[Retrieved, ...] = ()
    items: tuple[MemoryItem, ...] = ()
    block: str = NO_MEMORY

    def __bool__(self) -> bool:
        return bool(self.items)


def render(retrieved: Sequence[Retrieved], max_tokens: int) -> Memory:
    """Show ``retrieved`` as an agent reads it: title and content of each item (paper, section 3.2), each item once.

    Every line is quoted and dspy's field markers are broken up, so a stored text cannot pass for a turn of the
    conversation. Items are shown in order until the next would exceed ``max_tokens`` (estimated).
    """
    return _memory(tuple(retrieved), [item for match in retrieved for item in match.items], max_tokens)


def memory_of(items: Sequence[MemoryItem]) -> Memory:
    """Show ``items`` that an agent has been shown before, such as those of a pending rollout."""
    return _memory((), items, None)


def _memory(retrieved: tuple[Retrieved, ...], items: Sequence[MemoryItem], max_tokens: int | None) -> Memory:
    lines: list[str] = []
    shown: list[MemoryItem] = []
    used = 0
    for item in _unique(items):
        text = escape_fields(f"{len(shown) + 1}. {item.title}\n{item.content}")
        quoted = "\n".join(f"> {line}" for line in text.splitlines())
        used += estimate_tokens(quoted)
        if max_tokens is not None and used > max_tokens:
            break
        lines.append(quoted)
        shown.append(item)
    return Memory(retrieved, tuple(shown), "\n".join(lines) if lines else NO_MEMORY)


def _unique(items: Sequence[MemoryItem]) -> list[MemoryItem]:
    """Each item at its first place: several experiences may share it."""
    first: dict[str, MemoryItem] = {}
    for item in items:
        first.setdefault(item.id, item)
    return list(first.values())
