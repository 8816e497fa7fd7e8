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
    removed_items: frozenset[str]
    """Items whose influence goes: also those that had ended before."""


def source_of(reader: Reader, name: str, *, ended: bool, edits: bool) -> tuple[Source, str | None]:
    """What ``name`` means: ``run:NAME``, ``origin:NAME``, or the id of an experience or an item. Also the run's name.

    ``ended``: include experiences that have ended. ``edits``: include later versions of the item.
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

    Removing an experience ends its item rows. An item is removed too if no remaining experience contains it, or if an
    experience that had not seen it before is removed and all remaining ones had been shown it, so that they only repeat
    it. With ``descendants``, experiences whose agents were shown a removed item are removed too, and so on. Rows that
    have ended are followed as well: whoever was misled by a lesson goes with it, also after the lesson was deleted.
    """
    removed: set[int] = set()
    affected: dict[int, ItemRow] = {}
    removed_items = set(source.items)
    if removed_items:
        affected = {row.seq: row for row in reader.items(ids=removed_items, ended=True)}
    waiting = set(source.experiences)
    if descendants:
        waiting |= _viewers(reader, removed_items)
    while waiting:
        removed |= waiting
        new = reader.items(experiences=waiting, ended=True)
        affected |= {row.seq: row for row in new}
        gone = {id for id in {row.id for row in new} - removed_items if _is_removed_with(reader, id, removed)}
        removed_items |= gone
        waiting = _viewers(reader, gone) - removed if descendants else set()
    experiences = reader.experiences(seqs=removed)
    rows = sorted((row for row in affected.values() if row.ended is None), key=lambda row: row.seq)
    ends = {row.seq for row in rows}
    ids = list(dict.fromkeys(row.id for row in rows))
    stays = {row.id for row in reader.items(ids=ids) if row.seq not in ends}
    return Closure(
        experiences=tuple(experiences),
        rows=tuple(rows),
        items=tuple(id for id in ids if id not in stays),
        removed_items=frozenset(removed_items),
    )


def _viewers(reader: Reader, items: Collection[str]) -> set[int]:
    """Experiences whose agents were shown one of ``items``."""
    return {seq for seq, _ in reader.exposures(items=items)} if items else set()


def _is_removed_with(reader: Reader, id: str, removed: Collection[int]) -> bool:
    """Whether an item goes with the experiences that go."""
    rows = reader.items(ids=[id], ended=True)
    givers = {row.experience for row in rows}
    shown = _viewers(reader, [id])
    living = {row.experience for row in rows if row.ended is None}
    if not living:  # deleted or edited before: those who said so still hold it
        living = {row.seq for row in reader.experiences(seqs=givers)}
    left = living - set(removed)
    source_goes = bool((givers & set(removed)) - shown)
    return not left or (source_goes and left <= shown)
