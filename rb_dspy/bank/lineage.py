"""What goes away with what: the transitive closure of a removal, the same in every store."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from rb_dspy.bank.parts import Source


class Member(NamedTuple):
    """An experience that is or was here."""

    number: int
    id: str
    lives: bool


class GivenRow(NamedTuple):
    """An item row that is or was here: that an experience gave an item, by its id."""

    seq: int
    item: str
    lives: bool
    giver: Member

    @property
    def stands(self) -> bool:
        """Whether its experience is still one that says so, if the item itself was deleted or edited since."""
        return self.lives or self.giver.lives


@dataclass(frozen=True, slots=True)
class Going:
    """What ends."""

    experiences: tuple[Member, ...]
    """In order."""
    rows: tuple[GivenRow, ...]
    """In order."""
    items: tuple[str, ...]
    """Items that lose their last row, in the order they had come."""
    losers: tuple[str, ...]
    """Items that lose a row and stay."""
    unindexed: tuple[int, ...]
    """Experiences that are to be found no more: those that go, and those that stay without an item; ascending."""
    tainted: frozenset[str]
    """Items whose influence is followed: those that go now, and with descendants those that had gone before."""


def closure(
    source: Source,
    *,
    descendants: bool,
    members: Callable[[Source], Sequence[Member]],
    rows: Callable[[str | int], Sequence[GivenRow]],
) -> Going:
    """What goes when ``source`` is removed. ``members`` and ``rows``: see ``BankStore``.

    An experience takes its live item rows with it. An item whose last live row goes is gone; with ``descendants`` every
    live experience that was shown it goes too, and so on. An item that keeps a row of an experience that stays loses a
    provenance only, and those who were shown it stay; but not where all that is left are these, who said again what
    they had been shown.

    Descent is followed through what has ended: whoever was shown a lesson still goes with the run that it came from,
    when the lesson itself was deleted meanwhile. Where nobody says it any more, an experience that stays and once did
    holds it all the same. When somebody was shown it does not count: what is taken too much is named by a dry run.
    """
    going: dict[int, Member] = {}
    ends: dict[int, GivenRow] = {}
    tainted: set[str] = set()
    nameless: set[str] = set()  # ids of damaged rows: no text, or one by which nothing is found
    rows, members = cache(rows), cache(members)

    def concerned(of: str | int) -> list[GivenRow]:
        return [row for row in rows(of) if descendants or row.lives]

    def viewers(item: str) -> Sequence[Member]:
        return members(Source("item", item)) if descendants else ()

    if source.kind == "item":
        waiting: list[Member] = []
        touched = concerned(source.name)
        if not touched:  # one that was never here: an import brings what learned from it alone
            waiting += viewers(source.name)
            tainted |= {source.name} if waiting else set()
    else:
        waiting = [member for member in members(source) if descendants or member.lives]
        touched = []
    while waiting or touched:
        for member in waiting:
            if member.number not in going:
                going[member.number] = member
                touched += concerned(member.number)
        ends |= {row.seq: row for row in touched}
        waiting = []
        for item in {row.item for row in touched} - tainted:
            every = concerned(item) if type(item) is str else []
            if not every:
                nameless.add(item)
                continue
            shown = {viewer.number for viewer in viewers(item)}
            saying = [row for row in every if row.lives] or [row for row in every if row.stands]
            left = {row.giver.number for row in saying if row.seq not in ends}
            held = any(row.seq in ends and row.giver.number not in shown for row in every)  # up to now, by one's own
            if not left or (held and left <= shown):
                tainted.add(item)
                waiting += viewers(item)
        touched = []
    experiences = sorted(member for member in going.values() if member.lives)
    ending = sorted(row for row in ends.values() if row.lives)
    seqs = {row.seq for row in ending}
    owners = {row.giver.number for row in ending} - going.keys()
    emptied = {owner for owner in owners if all(row.seq in seqs for row in rows(owner) if row.lives)}
    items = dict.fromkeys(row.item for row in ending)
    return Going(
        experiences=tuple(experiences),
        rows=tuple(ending),
        items=tuple(item for item in items if item in tainted),
        losers=tuple(sorted(items.keys() - tainted - nameless)),
        unindexed=tuple(sorted({member.number for member in experiences} | emptied)),
        tainted=frozenset(tainted),
    )
