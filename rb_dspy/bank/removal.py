"""Decide which items and experiences a removal includes."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

from rb_dspy.bank.admission import corrected_id
from rb_dspy.bank.lineage import Listing, takers, viewers
from rb_dspy.bank.reading import grouped, history_of, latest, versions_of
from rb_dspy.bank.store.base import ExperienceRow, ItemRow, PendingKey
from rb_dspy.bank.store.overlay import Reader
from rb_dspy.errors import InputError
from rb_dspy.schema import Removal


@dataclass(frozen=True)
class Source:
    """The source to remove: experiences by number, or items by id, with their pending rollouts."""

    name: str
    experiences: frozenset[int] = frozenset()
    items: frozenset[str] = frozenset()

    def pending(
        self, reader: Reader, shown: Collection[str] = (), ids: Collection[str] = ()
    ) -> dict[str, list[PendingKey]]:
        """Return the groups of pending rollouts to remove, by the id of their future experience.

        These are the groups with this name or one of ``ids``, those of the run, and those whose agent was shown one of
        ``shown``.
        """
        kind, _, value = self.name.partition(":")
        rows, going = reader.pending(payload=False), set[PendingKey]()
        for row in rows:
            is_named = bool(value) and value == {"run": row.key.run_id, "origin": row.origin}.get(kind)
            if is_named or not set(shown).isdisjoint(row.shown):
                going.add(row.key)
        groups = grouped(row.key for row in rows)
        return {id: keys for id, keys in groups.items() if id in (self.name, *ids) or not going.isdisjoint(keys)}


@dataclass(frozen=True)
class Plan:
    """The rows that a removal ends, in order."""

    source: Source
    experiences: list[ExperienceRow]
    rows: list[ItemRow]
    """Item rows that end: of the experiences, and of the items themselves."""
    pending: dict[str, list[PendingKey]]
    items: Collection[str]
    """What goes, also if it had ended before."""
    removal: Removal
    """What is removed by that; its items are those that lose their last row."""


def source_of(reader: Reader, name: str, *, ended: bool, edits: bool) -> Source:
    """Resolve ``name``: ``run:NAME``, ``origin:NAME``, or the id of an experience or an item.

    ``ended``: include experiences that have ended. ``edits``: include later versions of the item.
    """
    kind, _, value = name.partition(":")
    if kind in ("run", "origin") and value:
        run_id, origin = (value, None) if kind == "run" else (None, value)
        rows = reader.experiences(run_id=run_id, origin=origin, ended=ended)
        return Source(name, experiences=frozenset(row.seq for row in rows))
    if rows := reader.experiences(ids=[name], ended=ended):
        if ended:  # what the versions before a corrected verdict taught
            every = {corrected_id(row.id): row for row in reader.experiences(ended=True)}
            while earlier := every.get(rows[-1].id):
                rows = [*rows, earlier]
        return Source(name, experiences=frozenset(row.seq for row in rows))
    return Source(name, items=frozenset(versions_of(reader, name, earlier=False) if edits else {name}))


def unknown(reader: Reader, id: str, what: str, place: str) -> InputError:
    """Return the error for an unknown id or source; it says if the id was edited or removed."""
    kind, _, value = id.partition(":")
    if kind in ("run", "origin") and value:
        return InputError(f"{place} has nothing of {kind} {value[:40]!r}")
    hint = ""
    changes = [change for change in history_of(reader, id) if change.kind != "mark"]
    if (last := latest(reader, id)) is not None and last.ended is None:
        hint = f"; it was corrected or brought back and is {last.id} now"
    elif later := versions_of(reader, id, earlier=False) & {row.id for row in reader.items()}:
        hint = f"; it was edited and is {min(later)} now"
    elif changes and (kind := changes[-1].kind) in ("delete", "rollback", "retire", "purge"):
        back = "" if kind == "purge" else "; undelete brings it back"
        hint = f"; a {'retirement' if kind == 'retire' else kind} at {changes[-1].created_at} removed it{back}"
    return InputError(f"{place} has no {what} {id[:40]!r}{hint}")


def plan(reader: Reader, name: str, kind: Literal["delete", "rollback"], *, descendants: bool) -> Plan:
    """Plan the removal of ``name``.

    Removing an experience ends its item rows. An item is removed too if no remaining experience contains it, or if an
    experience that had not seen it before is removed and all remaining ones had been shown it, so that they only repeat
    it. With ``descendants``, experiences and pending rollouts whose agents were shown a removed item are removed too,
    and so on; and experiences that retired one, or that gave an item which lists a task that was removed (see
    ``ItemDraft.data``). Ended rows are followed as well: experiences that were shown a lesson are removed even if the
    lesson was deleted before.
    """
    source = source_of(reader, name, ended=descendants, edits=kind == "rollback")
    removed: set[int] = set()
    removed_items = set(source.items)
    affected = {row.seq: row for row in reader.items(ids=removed_items, ended=True)}
    listing = Listing(reader) if descendants else None

    def heirs(items: Collection[str], experiences: Sequence[ExperienceRow] = ()) -> set[int]:
        """Experiences that learned from these items, or from what these experiences taught."""
        if listing is None:
            return set()
        shown = {*items, *(row.id for row in experiences)}
        return viewers(reader, shown) | takers(reader, items) | {*listing.rows(experiences).values()}

    waiting = source.experiences | heirs(removed_items)
    cases = set[str]()
    while waiting:
        removed |= waiting
        going = reader.experiences(seqs=waiting, ended=True) if descendants else []
        cases |= {row.id for row in going}
        new = reader.items(experiences=waiting, ended=True)
        affected |= {row.seq: row for row in new}
        gone = {id for id in {row.id for row in new} - removed_items if _is_removed_with(reader, id, removed)}
        removed_items |= gone
        waiting = frozenset(heirs(gone, going) - removed)
    rows = sorted((row for row in affected.values() if row.ended is None), key=lambda row: row.seq)
    ends = {row.seq for row in rows}
    ids = dict.fromkeys(row.id for row in rows)
    stays = {row.id for row in reader.items(ids=ids) if row.seq not in ends}
    experiences = reader.experiences(seqs=removed)
    pending = source.pending(reader, shown=removed_items | cases if descendants else ())
    removal = Removal(
        experiences=tuple(row.id for row in experiences),
        items=tuple(id for id in ids if id not in stays),
        pending=tuple(pending),
    )
    return Plan(source, experiences, rows, pending, removed_items, removal)


def _is_removed_with(reader: Reader, id: str, removed: Collection[int]) -> bool:
    """Whether an item is removed together with the experiences in ``removed``."""
    rows = reader.items(ids=[id], ended=True)
    givers = {row.experience for row in rows}
    shown = viewers(reader, [id])
    living = {row.experience for row in rows if row.ended is None}
    if not living:  # the item was deleted or edited before; its experiences still count
        living = {row.seq for row in reader.experiences(seqs=givers)}
    left = living - set(removed)
    source_goes = bool((givers & set(removed)) - shown)
    return not left or (source_goes and left <= shown)
