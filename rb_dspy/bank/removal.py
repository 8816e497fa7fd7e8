"""What goes away with what: the closure of a removal."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from rb_dspy.bank.store.base import ExperienceRow, ItemRow, Reader


@dataclass(frozen=True)
class Source:
    """What is to be removed: experiences by their numbers, or items by their ids."""

    experiences: frozenset[int] = frozenset()
    items: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Closure:
    """What ends, in order."""

    experiences: tuple[ExperienceRow, ...]
    rows: tuple[ItemRow, ...]
    """Item rows that end: of the experiences, and of the items themselves."""
    items: tuple[str, ...]
    """Items that lose their last row."""
    tainted: frozenset[str]
    """Items whose influence goes: also those that had ended before."""


def source_of(reader: Reader, name: str, *, ended: bool, edits: bool) -> tuple[Source, str | None]:
    """What ``name`` means: ``run:NAME``, ``origin:NAME``, or the id of an experience or an item. Also the run's name.

    ``ended``: with experiences that have ended; ``edits``: with the texts that the item got by edits.
    """
    kind, _, value = name.partition(":")
    if kind in ("run", "origin") and value:
        run_id, origin = (value, None) if kind == "run" else (None, value)
        rows = reader.experiences(run_id=run_id, origin=origin, ended=ended)
        return Source(experiences=frozenset(row.seq for row in rows)), run_id
    rows = reader.experiences(ids=[name], ended=ended)
    if rows:
        return Source(experiences=frozenset(row.seq for row in rows)), None
    return Source(items=frozenset({name, *(later_ids(reader, name) if edits else ())})), None


def later_ids(reader: Reader, id: str) -> set[str]:
    """The ids that an item got by edits."""
    found, new = set[str](), {id}
    while new:
        new = {each for entry in reader.journal(subjects=new) if entry.kind == "edit" for each in entry.items} - found
        found |= new
    return found


def closure(reader: Reader, source: Source, *, descendants: bool) -> Closure:
    """What goes when ``source`` is removed.

    An experience takes its item rows with it. An item goes when no experience that stays gave it, or when one that goes
    had come to it alone and all that stay had been shown it: they only repeat it. With ``descendants``, every
    experience whose agent had been shown an item that goes is removed too, and so on. This is followed through what has
    ended already: whoever was misled by a lesson goes with it also after the lesson itself was deleted.
    """
    going: set[int] = set()
    touched: dict[int, ItemRow] = {}
    tainted = set(source.items)
    if tainted:
        touched = {row.seq: row for row in reader.items(ids=tainted, ended=True)}
    waiting = set(source.experiences)
    if descendants:
        waiting |= _viewers(reader, tainted)
    while waiting:
        going |= waiting
        new = reader.items(experiences=waiting, ended=True)
        touched |= {row.seq: row for row in new}
        gone = {id for id in {row.id for row in new} - tainted if _goes(reader, id, going)}
        tainted |= gone
        waiting = _viewers(reader, gone) - going if descendants else set()
    experiences = reader.experiences(seqs=going)
    rows = sorted((row for row in touched.values() if row.ended is None), key=lambda row: row.seq)
    ends = {row.seq for row in rows}
    ids = list(dict.fromkeys(row.id for row in rows))
    stays = {row.id for row in reader.items(ids=ids) if row.seq not in ends}
    return Closure(
        experiences=tuple(experiences),
        rows=tuple(rows),
        items=tuple(id for id in ids if id not in stays),
        tainted=frozenset(tainted),
    )


def _viewers(reader: Reader, items: Collection[str]) -> set[int]:
    """Experiences whose agents were shown one of ``items``."""
    return {seq for seq, _ in reader.exposures(items=items)} if items else set()


def _goes(reader: Reader, id: str, going: Collection[int]) -> bool:
    """Whether an item goes with the experiences that go."""
    rows = reader.items(ids=[id], ended=True)
    givers = {row.experience for row in rows}
    shown = _viewers(reader, [id])
    living = {row.experience for row in rows if row.ended is None}
    if not living:  # deleted or edited before: those who said so still hold it
        living = {row.seq for row in reader.experiences(seqs=givers)}
    left = living - set(going)
    source_goes = bool((givers & set(going)) - shown)
    return not left or (source_goes and left <= shown)
