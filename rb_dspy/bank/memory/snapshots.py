"""Names for states of a scope in memory."""

from __future__ import annotations

from operator import attrgetter

from rb_dspy.bank import refusals
from rb_dspy.bank.memory.timeline import Timeline
from rb_dspy.schema import Snapshot


def snapshots(of: Timeline) -> list[Snapshot]:
    """In the order of their numbers, those of one number in that of their names."""
    below = {snapshot.name: snapshot for snapshot in of.under.snapshots()}
    return sorted((below | of.names).values(), key=attrgetter("seq", "name"))


def snapshot(to: Timeline, name: str, created_at: str, location: str) -> Snapshot:
    """See ``BankStore.snapshot``."""
    for known in snapshots(to):
        if known.name == name:
            if known.seq == to.mark:
                return known
            raise refusals.name_taken(location, known, to.mark)
    made = Snapshot(name=name, scope=to.scope, seq=to.mark, digest=to.digest(to.mark), created_at=created_at)
    to.names[name] = made
    return made
