"""What goes away with what: the transitive closure of a removal, the same in every store."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from rb_dspy.bank.parts import Source
from rb_dspy.schema import Ingestion


class LiveRow(NamedTuple):
    """A live item row: its number, its item's id, and the number of the experience that gave it."""

    seq: int
    item: str
    experience: int


@dataclass(frozen=True, slots=True)
class Going:
    """What ends: numbers, ascending, and ids of items, in the order they had come."""

    experiences: tuple[int, ...]
    rows: tuple[int, ...]
    """Item rows."""
    items: tuple[str, ...]
    """Items that lose their last row."""
    losers: tuple[str, ...]
    """Items that lose a row and stay."""
    unindexed: tuple[int, ...]
    """Experiences that are to be found no more: those that go, and those that stay without an item."""


def closure(
    experiences: Iterable[int],
    items: Iterable[str],
    *,
    descendants: bool,
    rows_of_experience: Callable[[int], Sequence[LiveRow]],
    rows_of_item: Callable[[str], Sequence[LiveRow]],
    viewers: Callable[[str], Iterable[int]],
) -> Going:
    """What goes when ``experiences`` (their numbers) and ``items`` (ids) are removed.

    An experience takes its live item rows with it. An item whose last live row goes is gone; with ``descendants`` every
    live experience that was shown it, its ``viewers``, goes too, and so on. An item that keeps a row of an experience
    that stays loses a provenance only, and its viewers stay; but not where all that is left are its own viewers, who
    said again what they had been shown. ``viewers`` is asked only with ``descendants``.
    """
    rows: dict[int, LiveRow] = {}
    going: set[int] = set()
    gone: dict[str, int] = {}
    nameless: set[str] = set()  # ids of damaged rows: no text, or one by which nothing is found
    waiting = list(experiences)
    touched = [row for item in items for row in rows_of_item(item)]
    while waiting or touched:
        for number in waiting:
            if number not in going:
                going.add(number)
                touched += rows_of_experience(number)
        rows |= {row.seq: row for row in touched}
        waiting = []
        for item in {row.item for row in touched} - gone.keys():
            live = rows_of_item(item)
            if not live or type(item) is not str:
                nameless.add(item)
                continue
            shown = set(viewers(item)) if descendants else set()
            left = {row.experience for row in live if row.seq not in rows}
            held = any(row.seq in rows and row.experience not in shown for row in live)  # up to now, by somebody's own
            if not left or (held and left <= shown):
                gone[item] = min(row.seq for row in live)
                waiting += sorted(shown)
        touched = []
    owners = {row.experience for row in rows.values()} - going
    emptied = {owner for owner in owners if all(row.seq in rows for row in rows_of_experience(owner))}
    return Going(
        experiences=tuple(sorted(going)),
        rows=tuple(sorted(rows)),
        items=tuple(sorted(gone, key=gone.__getitem__)),
        losers=tuple(sorted({row.item for row in rows.values()} - gone.keys() - nameless)),
        unindexed=tuple(sorted(going | emptied)),
    )


def waiting_rollouts(
    ingestions: Iterable[Ingestion], source: Source, *, descendants: bool, gone: Collection[str]
) -> tuple[str, ...]:
    """Ids of the ingestions that go too: those of the removed run or origin, and with ``descendants`` those whose agent
    had been shown an item that is ``gone``.
    """
    return tuple(
        waiting.id
        for waiting in ingestions
        if (source.kind == "run" and waiting.run_id == source.name)
        or (source.kind == "origin" and waiting.origin == source.name)
        or (descendants and not set(gone).isdisjoint(waiting.shown))
    )
