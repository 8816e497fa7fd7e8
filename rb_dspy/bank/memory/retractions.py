"""Which texts were taken away as such, in one state of a timeline: by an edit of an item, or by its removal."""

from __future__ import annotations

from collections.abc import Sequence

from rb_dspy.bank.memory.timeline import Timeline
from rb_dspy.schema import Change


def retracted(of: Timeline, digests: Sequence[str], at: int | None = None) -> dict[str, Change]:
    """See ``BankStore``."""
    at = of.reached(at)
    if at <= of.under.at:
        return of.under.retracted(digests, at)
    live = of.items_with(digests, at)
    gone = [digest for digest in dict.fromkeys(digests) if digest not in live]
    here = {digest: last for digest in gone if (last := _last_ended(of, digest, at))}
    below = of.under.retracted([digest for digest in gone if digest not in here])
    return below | {digest: taken for digest, last in here.items() if (taken := _by_itself(of, digest, last))}


def _last_ended(of: Timeline, digest: str, at: int) -> int:
    """The last number at which a row with this text ended here; 0 where none did."""
    return max((row.ended for row in of.said.get(digest, ()) if row.ended <= at), default=0)


def _by_itself(of: Timeline, digest: str, number: int) -> Change | None:
    """What ended rows with this text at ``number``, where it meant their item and nothing else."""
    for row in of.said[digest]:
        if row.ended == number and of.subjects[number] == row.new.id:
            told = next(change for change in of.journal[row.new.id] if change.seq == number)
            return told.model_copy(update={"before": None, "after": None})
    return None
