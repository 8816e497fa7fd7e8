"""Who gave what and who was shown what, in one state of a timeline and before it: what ``closure`` asks."""

from __future__ import annotations

import logging

from rb_dspy.bank.lineage import GivenRow, Member
from rb_dspy.bank.memory.rows import ExperienceRow, ItemRow, numbered
from rb_dspy.bank.memory.timeline import Timeline
from rb_dspy.bank.parts import Source
from rb_dspy.errors import CorruptBank

_log = logging.getLogger("rb_dspy.bank")


def members(of: Timeline, source: Source, at: int | None = None) -> list[Member]:
    """See ``BankStore``."""
    at = of.reached(at)
    # What is damaged below cannot end here, and has no name.
    below = (_now(of, member, at) for member in of.under.members(source, at) if isinstance(member.id, str))
    return [*below, *(Member(row.seq, row.new.id, row.lives(at)) for row in _born(of, source) if row.seq <= at)]


def rows(timeline: Timeline, of: str | int, at: int | None = None) -> list[GivenRow]:
    """See ``BankStore``. What is damaged in the store below is there only once it has ended: it cannot end here."""
    at = timeline.reached(at)
    below = timeline.under.rows(of, at)
    if at < timeline.under.at:
        return below
    ended = [row._replace(giver=_now(timeline, row.giver, at)) for row in below if not row.lives]
    own = _of_item(timeline, of) if isinstance(of, str) else _of_experience(timeline, of, below)
    return sorted([*ended, *(_row(timeline, row, at) for row in own if row.seq <= at)])


def _of_item(timeline: Timeline, id: str) -> list[ItemRow]:
    try:
        return timeline.adopted(id)
    except CorruptBank as exc:  # all of it
        _log.warning("%s", exc)
        return []


def _of_experience(timeline: Timeline, number: int, below: list[GivenRow]) -> list[ItemRow]:
    born = numbered(timeline.born, number)
    if born is not None:
        return born.rows
    if below and isinstance(below[0].giver.id, str):
        for id in {given.item.id for given in timeline.under.item_rows("experience", below[0].giver.id)}:
            _of_item(timeline, id)
    return timeline.given.get(number, [])


def _born(of: Timeline, source: Source) -> list[ExperienceRow]:
    """The experiences from here that ``source`` means."""
    if source.kind == "experience":
        return [of.ids[source.name]] if source.name in of.ids else []
    if source.kind == "item":
        return of.viewers.get(source.name, [])
    return [row for row in of.born if source.name == (row.new.run_id if source.kind == "run" else row.new.origin)]


def _now(of: Timeline, below: Member, at: int) -> Member:
    """An experience of the store below, with what happened to it here."""
    return below._replace(lives=below.lives and of.away.get(below.id, at + 1) > at)


def _row(of: Timeline, row: ItemRow, at: int) -> GivenRow:
    born, id = numbered(of.born, row.experience), row.provenance.experience_id
    lives = born.lives(at) if born is not None else of.away.get(id, at + 1) > at
    return GivenRow(row.seq, row.new.id, row.lives(at), Member(row.experience, id, lives))
