"""Keeping a bank in order: curators for any memory system. What they do is in the history, and can be undone."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import pydantic

from rb_dspy.bank import MemoryBank
from rb_dspy.errors import UnparseableOutput
from rb_dspy.memories.credit import upper_bound
from rb_dspy.memories.recall import merged, worth
from rb_dspy.memories.system import Credit, Curated, Curator
from rb_dspy.memories.teach import item
from rb_dspy.schema import ItemDraft, MemoryItem, Task
from rb_dspy.text import without_invisible


@dataclass(frozen=True)
class Every:
    """A curator that is called at every ``n``-th task that a bank learns from."""

    n: int
    curator: Curator

    def __call__(self, curated: Curated, task: Task, bank: MemoryBank) -> Curated:
        tasks = bank.experience_count() + 1
        return self.curator(curated, task, bank) if tasks % self.n == 0 else curated


@dataclass(frozen=True)
class Cap:
    """At most ``most`` items: the ones with the lowest credit, and of these the oldest, are retired."""

    most: int = 200
    credit: Credit | None = None
    """None: the oldest are retired."""
    kinds: Collection[str] | None = None

    def __call__(self, curated: Curated, task: Task, bank: MemoryBank) -> Curated:
        items = [each for each in believed(bank, self.kinds) if each.id not in curated.retired]
        over = len(items) + len(curated.drafts) - self.most
        if over <= 0:
            return curated
        credits = worth(bank, self.credit, [each.id for each in items]) if self.credit else {}
        worst = sorted(items, key=lambda each: credits.get(each.id, 0.0))[:over]  # items are oldest first
        return retire(curated, worst, f"more than {self.most} items")


@dataclass(frozen=True)
class Prune:
    """Retires items that were shown at least ``uses`` times and are likely worse than the tasks around them.

    An item goes if the upper end of the 80 % interval of its success rate is below the success rate of all tasks. A
    bare share of successes below one half, as in ReMe, retires good items where tasks are hard.
    """

    uses: int = 5
    """Fewest uses (agentscope-ai/ReMe: 5)."""
    kinds: Collection[str] | None = None

    def __call__(self, curated: Curated, task: Task, bank: MemoryBank) -> Curated:
        items = believed(bank, self.kinds)
        every = bank.all_uses([each.id for each in items])
        known = {
            use.experience_id: use.succeeded for uses in every.values() for use in uses if use.succeeded is not None
        }
        rate = sum(known.values()) / len(known) if known else 0.0
        bad = [
            each
            for each in items
            if (uses := every[each.id]).succeeded + uses.failed >= self.uses and upper_bound(uses) < rate
        ]
        return retire(curated, bad, f"shown at least {self.uses} times, and worse than the rest")


@dataclass(frozen=True)
class Replace:
    """What is stored takes the place of all earlier items of its kinds: a file that is written anew."""

    kinds: Collection[str]

    def __call__(self, curated: Curated, task: Task, bank: MemoryBank) -> Curated:
        new = [each for each in curated.drafts if isinstance(each, ItemDraft) and each.kind in self.kinds]
        same = [(each.title, each.content, each.data) for each in new]
        old = [item for item in believed(bank, self.kinds) if (item.title, item.content, item.data) not in same]
        return retire(curated, old, "written anew") if new else curated


def believed(bank: MemoryBank, kinds: Collection[str] | None) -> list[MemoryItem]:
    """The items that are not held: what is held takes nobody's place, and who retires it would be held, too."""
    return [each for each in bank.items(kinds=kinds) if each.level != "held"]


def retire(curated: Curated, items: Sequence[MemoryItem], why: str | Callable[[MemoryItem], str]) -> Curated:
    """``curated`` with more items to retire."""
    reasons = {each.id: why if isinstance(why, str) else why(each) for each in items}
    return replace(curated, retired={**reasons, **curated.retired})


class Change(pydantic.BaseModel):
    """A change of the numbered items."""

    do: Literal["add", "update", "merge", "delete"]
    items: list[int] = pydantic.Field(default=[], description="numbers of the items that it changes; none to add")
    title: str = pydantic.Field(default="", description="what it is about, in a few words")
    text: str = pydantic.Field(default="", description="the new text; empty to delete")


def changed(curated: Curated, changes: Sequence[Change], items: Sequence[MemoryItem], task: Task, kind: str) -> Curated:
    """``curated`` with the drafts and retirements of changes of numbered ``items``; each of these is changed once.

    Raises:
        UnparseableOutput: There are changes, and none of them can be made.
    """
    drafts, gone = list[ItemDraft](), dict[str, MemoryItem]()
    for change in changes:
        named = [items[n - 1] for n in dict.fromkeys(change.items) if 0 < n <= len(items) and change.do != "add"]
        old = [each for each in named if each.id not in gone]
        text = "" if change.do == "delete" else without_invisible(change.text).strip()
        if (old or change.do == "add") and (text or change.do == "delete"):
            gone |= {each.id: each for each in old}
            title = without_invisible(change.title).strip() or text[:60]
            drafts += [item(kind, title, text, **(merged(old, task) if old else {}))] if text else []
    if changes and not drafts and not gone:
        raise UnparseableOutput(f"the distiller's changes are {changes!r:.120}; expected some that can be made")
    made = replace(curated, drafts=(*curated.drafts, *dict.fromkeys(drafts)))
    return retire(made, list(gone.values()), f"changed by what task {task.id} taught")
