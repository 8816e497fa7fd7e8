"""The lessons retrieved for a task, and their text in the agent's prompt."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rb_dspy.schema import MemoryItem, Retrieved
from rb_dspy.steps.transcript import escape_fields
from rb_dspy.text import counted, estimate_tokens, html_table

NO_MEMORY = "(no lessons yet)"


@dataclass(frozen=True)
class Memory:
    """The lessons for one task. ``items`` are those in ``block``, in order. Falsy if there are none."""

    retrieved: tuple[Retrieved, ...] = ()
    items: tuple[MemoryItem, ...] = ()
    block: str = NO_MEMORY

    def __bool__(self) -> bool:
        return bool(self.items)

    def _repr_html_(self) -> str:
        scores = {item.id: f"{match.score:.2f}" for match in self.retrieved for item in match.items}
        rows = [(scores.get(item.id, ""), item.title, item.content) for item in self.items]
        return html_table(counted(len(rows), "lesson"), ("score", "title", "content"), rows)


def render(items: Iterable[MemoryItem], retrieved: Sequence[Retrieved] = (), max_tokens: int | None = None) -> Memory:
    """Format ``items`` for the agent's prompt (paper, section 3.2), each once: title, description if any, and content.

    Every line is quoted and dspy's field markers are broken up, so that a stored text cannot look like a turn of the
    conversation. Items are shown in order until the next would exceed ``max_tokens`` (estimated; None: no limit).
    """
    lines: list[str] = []
    shown: list[MemoryItem] = []
    used = 0
    for item in {item.id: item for item in items}.values():  # several experiences may share an item
        texts = (f"{len(shown) + 1}. {item.title}", item.description, item.content)
        text = escape_fields("\n".join(filter(None, texts)))
        quoted = "\n".join(f"> {line}" for line in text.splitlines())
        used += estimate_tokens(quoted)
        if max_tokens is not None and used > max_tokens:
            break
        lines.append(quoted)
        shown.append(item)
    return Memory(tuple(retrieved), tuple(shown), "\n".join(lines) or NO_MEMORY)
