"""The counts of a scope in memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from rb_dspy.bank.admission import overall
from rb_dspy.bank.memory.timeline import Timeline
from rb_dspy.bank.parts import BankStats
from rb_dspy.text import normalise


def stats(of: Timeline, embedder: tuple[str, int]) -> BankStats:
    """See ``BankStats``; counted by listing everything. Nothing is on disk, so there is no schema to have a version."""
    experiences = list(of.experiences(0))
    items = of.items()
    return BankStats(
        scope=of.scope,
        items=len(items),
        experiences=len(experiences),
        experiences_with_items=sum(bool(experience.items) for experience in experiences),
        by_polarity=_tally(item.polarity for item in items),
        by_verdict=_tally(overall(experience.verdicts) for experience in experiences),
        by_template=_tally(normalise(e.task.template) for e in experiences if e.task.template is not None),
        exposures=sum(len(experience.shown) for experience in experiences),
        pending=len(of.pending),
        removed=of.removed(),
        embedder=embedder[0],
        dimension=embedder[1],
        bytes_on_disk=0,
        schema_version=0,
    )


def _tally(values: Iterable[str]) -> dict[str, int]:
    return dict(sorted(Counter(values).items()))
