"""Typed operations on stored items, as a language model proposes them: what of them is done."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import pydantic

from rb_dspy.memories.curators import retire
from rb_dspy.memories.system import Curated
from rb_dspy.memories.teach import joined
from rb_dspy.schema import EVERY, MemoryDraft, MemoryItem, Task


class Operation(pydantic.BaseModel):
    """What to do with a new note, or with stored notes."""

    operation: Literal["add", "update", "merge", "delete", "noop"]
    new: int = pydantic.Field(default=0, description="number of the new note; 0: none")
    stored: list[int] = pydantic.Field(default=[], description="numbers of the stored notes that it changes")
    title: str = pydantic.Field(default="", description="update, merge: the title of the note that replaces them")
    content: str = pydantic.Field(default="", description="update, merge: its text")

    def __str__(self) -> str:
        return f"{self.operation} new {self.new}, stored {self.stored}"


def applied(
    operations: Sequence[Operation],
    curated: Curated,
    new: Sequence[MemoryDraft],
    stored: Sequence[MemoryItem],
    task: Task,
) -> Curated:
    """``curated`` with what can be done of ``operations``; what cannot is noted.

    A new item that they neither replace nor leave out is added. An update without a text takes that of the new item.
    """
    placed, drafts, notes = set[int](), list[MemoryDraft](), [curated.note]
    for each in operations:
        old = [stored[n - 1] for n in dict.fromkeys(each.stored) if 0 < n <= len(stored)]
        replaces, said = each.operation in ("update", "merge"), each.content
        if each.operation == "update" and not said.strip() and 0 < each.new <= len(new):
            said = new[each.new - 1].content
        draft = joined(old, task, each.title, said) if replaces and old else None
        why = {
            "not offered": each.new not in range(len(new) + 1) or len(old) < len({*each.stored}),
            "done already": each.new in placed or any(item.id in curated.retired for item in old),
            "written by a person": any(item.level == "owner" for item in old) and each.operation != "noop",
            "no stored note": not old and each.operation in ("update", "merge", "delete"),
            "no text": draft is not None and not draft.content,
            "learned from too many tasks": draft is not None and draft.data["tasks"] == EVERY,
        }
        if reason := next((reason for reason, holds in why.items() if holds), ""):
            notes.append(f"refused: {each}: {reason}")
            continue
        placed |= {each.new} - {0} if replaces or each.operation == "noop" else set()
        if each.operation == "delete" or (draft and [text_of(draft)] != [text_of(item) for item in old]):
            curated = retire(curated, old, f"{each.operation} after task {task.id}")
            drafts += [draft] if draft else []
    added = [draft for n, draft in enumerate(new, 1) if n not in placed]
    note = "; ".join(filter(None, notes))
    return replace(curated, drafts=(*curated.drafts, *drafts, *added), note=note)


def text_of(said: MemoryDraft | MemoryItem) -> tuple[str, str]:
    """What of an item two are compared by."""
    return said.title, said.content
