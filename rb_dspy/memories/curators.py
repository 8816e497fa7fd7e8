"""Keeping a bank in order: curators for any memory system. What they do is in the history, and can be undone."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from rb_dspy.bank import MemoryBank
from rb_dspy.memories.credit import upper_bound
from rb_dspy.memories.recall import worth
from rb_dspy.memories.system import Credit, Curated, Curator
from rb_dspy.schema import ItemDraft, MemoryDraft, MemoryItem, Task, Uses


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
    spare_untried: bool = False
    """Whether only items are retired whose credit is below that of an untried one; what has no room is not stored."""

    def __call__(self, curated: Curated, task: Task, bank: MemoryBank) -> Curated:
        items = [each for each in believed(bank, self.kinds) if each.id not in curated.retired]
        of_kinds = [each for each in curated.drafts if self.kinds is None or kind_of(each) in self.kinds]
        stored = {(each.title, each.description, each.content) for each in items}
        new = [each for each in of_kinds if (each.title, each.description, each.content) not in stored]
        over = len(items) + len(new) - self.most
        if over <= 0:
            return curated
        credits = worth(bank, self.credit, [each.id for each in items]) if self.credit else {}
        untried = self.credit(Uses()) if self.credit and self.spare_untried else math.inf
        worse = [each for each in items if credits.get(each.id, 0.0) < untried]
        going = sorted(worse, key=lambda each: credits.get(each.id, 0.0))[:over]  # items are oldest first
        left_out = new[max(0, len(new) - over + len(going)) :]
        note = "; ".join(filter(None, [curated.note, *(f"no room for {each.title!r}" for each in left_out)]))
        curated = replace(curated, drafts=tuple(each for each in curated.drafts if each not in left_out), note=note)
        return retire(curated, going, f"more than {self.most} items")


@dataclass(frozen=True)
class Prune:
    """Retires items that were shown at least ``uses`` times and are likely worse than the tasks around them.

    An item goes if the upper end of the 80 % interval of its success rate is below the success rate of all tasks
    that were shown one. A bare share of successes below one half, as in ReMe, retires good items where tasks are hard.
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
        new = [each for each in curated.drafts if kind_of(each) in self.kinds]
        same = [(each.title, each.content, getattr(each, "data", {})) for each in new]
        old = [item for item in believed(bank, self.kinds) if (item.title, item.content, item.data) not in same]
        return retire(curated, old, "written anew") if new else curated


def believed(bank: MemoryBank, kinds: Collection[str] | None) -> list[MemoryItem]:
    """The items that are not held: what is held takes nobody's place, and who retires it would be held, too."""
    return [each for each in bank.items(kinds=kinds) if each.level != "held"]


def retire(curated: Curated, items: Sequence[MemoryItem], why: str) -> Curated:
    """``curated`` with more items to retire."""
    reasons = dict.fromkeys((each.id for each in items), why)
    return replace(curated, retired={**reasons, **curated.retired})


def kind_of(draft: MemoryDraft) -> str:
    """``lesson``, or the kind of an ``ItemDraft``."""
    return draft.kind if isinstance(draft, ItemDraft) else "lesson"
