"""Keeping a bank in order: curators for any memory system. What they do is in the history, and can be undone."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

from rb_dspy.bank import MemoryBank
from rb_dspy.memories.credit import upper_bound
from rb_dspy.memories.recall import worth
from rb_dspy.memories.system import Credit, Curated, Curator
from rb_dspy.schema import ItemDraft, MemoryItem, Task


@dataclass(frozen=True)
class Every:
    """A curator that is called at every ``n``-th task that a bank learns from."""

    n: int
    curator: Curator

    def __call__(self, curated: Curated, task: Task, bank: MemoryBank) -> Curated:
        return self.curator(curated, task, bank) if (len(bank) + 1) % self.n == 0 else curated


@dataclass(frozen=True)
class Cap:
    """At most ``most`` items: the ones with the lowest credit, and of these the oldest, are retired."""

    most: int = 200
    credit: Credit | None = None
    """None: the oldest are retired."""
    kinds: Collection[str] | None = None

    def __call__(self, curated: Curated, task: Task, bank: MemoryBank) -> Curated:
        items = [each for each in bank.items(kinds=self.kinds) if each.id not in curated.retired]
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
        items = bank.items(kinds=self.kinds)
        every = bank.all_uses([each.id for each in items])
        known = {
            use.experience_id: use.succeeded for uses in every.values() for use in uses if use.succeeded is not None
        }
        rate = sum(known.values()) / len(known) if known else 0.0
        bad = [
            item
            for item in items
            if (uses := every[item.id]).succeeded + uses.failed >= self.uses and upper_bound(uses) < rate
        ]
        return retire(curated, bad, f"shown at least {self.uses} times, and worse than the rest")


@dataclass(frozen=True)
class Replace:
    """What is stored takes the place of all earlier items of its kinds: a file that is written anew."""

    kinds: Collection[str]

    def __call__(self, curated: Curated, task: Task, bank: MemoryBank) -> Curated:
        new = any(isinstance(each, ItemDraft) and each.kind in self.kinds for each in curated.drafts)
        return retire(curated, bank.items(kinds=self.kinds), "written anew") if new else curated


def retire(curated: Curated, items: Sequence[MemoryItem], why: str | Callable[[MemoryItem], str]) -> Curated:
    """``curated`` with more items to retire."""
    reasons = {item.id: why if isinstance(why, str) else why(item) for item in items}
    return replace(curated, retired={**reasons, **curated.retired})
