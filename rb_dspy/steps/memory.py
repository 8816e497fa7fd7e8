"""What was retrieved for a task, and how it is shown to an agent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rb_dspy.schema import MemoryItem, Retrieved
from rb_dspy.steps.view import estimate_tokens, without_fields

NO_MEMORY = "(no lessons yet)"


@dataclass(frozen=True)
class Memory:
    """The lessons for one task. ``items`` are exactly those that stand in ``block``, in that order."""

    retrieved: tuple[Retrieved, ...] = ()
    items: tuple[MemoryItem, ...] = ()
    block: str = NO_MEMORY

    def __bool__(self) -> bool:
        return bool(self.items)


def render(retrieved: list[Retrieved], max_tokens: int) -> Memory:
    """``retrieved`` as an agent reads it: title and content of each item (paper, section 3.2), each once.

    Every line is quoted and the field markers of dspy's chat format are broken up, so that a stored text cannot pass
    for a turn of the conversation. Items are taken in order until the next would exceed ``max_tokens`` (estimated).
    """
    return _memory(tuple(retrieved), [item for match in retrieved for item in match.items], max_tokens)


def shown_before(items: Sequence[MemoryItem]) -> Memory:
    """What an agent had been shown, of which only the lessons are known."""
    return _memory((), items, None)


def _memory(retrieved: tuple[Retrieved, ...], found: Sequence[MemoryItem], max_tokens: int | None) -> Memory:
    lines: list[str] = []
    items: list[MemoryItem] = []
    used = 0
    for item in _once(found):
        text = without_fields(f"{len(items) + 1}. {item.title}\n{item.content}")
        quoted = "\n".join(f"> {line}" for line in text.splitlines())
        used += estimate_tokens(quoted)
        if max_tokens is not None and used > max_tokens:
            break
        lines.append(quoted)
        items.append(item)
    return Memory(retrieved, tuple(items), "\n".join(lines) if lines else NO_MEMORY)


def _once(items: Sequence[MemoryItem]) -> list[MemoryItem]:
    """Each lesson where it comes first: several experiences may have given it."""
    first: dict[str, MemoryItem] = {}
    for item in items:
        first.setdefault(item.id, item)
    return list(first.values())
