"""Convert rows to public values: items with their provenances, experiences, pending rollouts, and histories."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from operator import attrgetter
from typing import TYPE_CHECKING

from rb_dspy.bank.admission import attempt_id, identity, unpack_rollouts
from rb_dspy.bank.store.base import ExperienceRow, ItemRow, PendingKey, PendingRow, SnapshotRow
from rb_dspy.bank.store.overlay import Reader
from rb_dspy.errors import CorruptBank
from rb_dspy.schema import Change, Experience, MemoryDraft, MemoryItem, Provenance, Snapshot, Task, Trajectory
from rb_dspy.text import normalize

if TYPE_CHECKING:
    from rb_dspy.bank.bank import MemoryBank

_log = logging.getLogger("rb_dspy.bank")

_PAGE = 500
"""Experiences read per page."""

_PLACE = attrgetter("learned")


def items_of(reader: Reader, ids: Collection[str] | None, scope: str) -> dict[str, MemoryItem]:
    """Live items by id, in the order in which they were learned; all if ``ids`` is None."""
    return items_and_givers(reader, ids, scope)[0]


def items_and_givers(
    reader: Reader, ids: Collection[str] | None, scope: str
) -> tuple[dict[str, MemoryItem], dict[int, ExperienceRow]]:
    """Return ``items_of``, and the experiences of the items, by number."""
    rows: dict[str, list[ItemRow]] = {}
    for row in reader.items(ids=ids):
        rows.setdefault(row.id, []).append(row)
    givers = {row.experience for each in rows.values() for row in each}
    experiences = {row.seq: row for row in reader.experiences(seqs=None if ids is None else givers, ended=True)}
    for id in list(rows):  # the base of a fork may have purged the experience
        rows[id] = [row for row in rows[id] if row.experience in experiences]
    ordered = sorted(((id, each) for id, each in rows.items() if each), key=lambda pair: min(map(_PLACE, pair[1])))
    return {id: _item(each, experiences, scope) for id, each in ordered}, experiences


def experiences_of(reader: Reader, rows: Iterable[ExperienceRow], scope: str) -> list[Experience]:
    """Return experiences with their current items. The rows must include their payload."""
    every = list(rows)
    seqs = [row.seq for row in every]
    rows_of: dict[int, list[ItemRow]] = {}
    for row in reader.items(experiences=seqs):
        rows_of.setdefault(row.experience, []).append(row)
    items = items_of(reader, {row.id for rows in rows_of.values() for row in rows}, scope)
    shown: dict[int, list[str]] = {}
    for seq, id in reader.exposures(experiences=seqs):
        shown.setdefault(seq, []).append(id)
    return [
        _experience(
            row,
            [items[each.id] for each in sorted(rows_of.get(row.seq, ()), key=_PLACE) if each.id in items],
            shown.get(row.seq, ()),
            scope,
        )
        for row in every
    ]


def all_experiences(reader: Reader, scope: str) -> Iterator[Experience]:
    """Yield every experience, read in pages; ``reader`` must read a state that does not change."""
    for rows in _pages(reader, ended=False):
        yield from experiences_of(reader, rows, scope)


def payloads(reader: Reader) -> Iterator[ExperienceRow]:
    """Yield the rows of all experiences with their payloads, including ended ones."""
    for rows in _pages(reader, ended=True):
        yield from rows


def _pages(reader: Reader, *, ended: bool) -> Iterator[list[ExperienceRow]]:
    seqs = [row.seq for row in reader.experiences(ended=ended)]
    for start in range(0, len(seqs), _PAGE):
        yield reader.experiences(seqs=seqs[start : start + _PAGE], payload=True, ended=ended)


def snapshot_of(reader: Reader, row: SnapshotRow, scope: str) -> Snapshot:
    """Return a named state, which ``reader`` reads. Equal digests mean equal changes in the same order."""
    digest = sha256()
    for entry in reader.journal():
        digest.update(repr((entry.seq, entry.kind, entry.subject, entry.items)).encode())
    text = digest.hexdigest() if row.seq else ""
    return Snapshot(name=row.name, scope=scope, seq=row.seq, digest=text, created_at=row.created_at)


def versions_of(reader: Reader, id: str, *, earlier: bool = True) -> set[str]:
    """The ids of an item and of its versions after edits, and, with ``earlier``, before them."""
    ids, new = {id}, {id}
    while new:
        edits = [entry for entry in reader.journal(subjects=new) if entry.kind == "edit"]
        if earlier:
            edits += [entry for each in new for entry in reader.journal(item=each)]
        new = {each for entry in edits for each in (entry.subject, *entry.items)} - ids
        ids |= new
    return ids


def history_of(reader: Reader, id: str) -> list[Change]:
    """Return the changes of an experience or an item, including its versions before and after edits."""
    ids = versions_of(reader, id)
    every = reader.items(ids=ids, ended=True)
    texts = {
        row.id: MemoryDraft.model_construct(title=row.title, description=row.description, content=row.content)
        for row in every
    }
    changes = [
        Change(
            seq=entry.seq,
            kind=entry.kind,
            id=entry.subject,
            note=entry.note,
            before=texts.get(entry.subject) if entry.kind == "edit" else None,
            after=texts.get(entry.items[0]) if entry.kind == "edit" else None,
            created_at=entry.created_at,
        )
        for entry in reader.journal(subjects=ids)
    ]
    givers = reader.experiences(seqs={row.experience for row in every}, ended=True)
    times = {row.seq: row.created_at for row in givers}
    changes += [
        Change(seq=entry.seq, kind=entry.kind, id=item, note=entry.note, created_at=entry.created_at)
        for entry in reader.journal(subjects={row.id for row in givers} - ids)
        if entry.kind in ("delete", "rollback")
        for item in entry.items
        if item in ids
    ]
    changes += [
        Change(seq=row.seq, kind="append", id=row.id, created_at=times.get(row.experience, ""))
        for row in every
        if row.learned == row.seq
    ]
    return sorted(changes, key=lambda change: change.seq)


def _item(rows: list[ItemRow], experiences: dict[int, ExperienceRow], scope: str) -> MemoryItem:
    first = min(rows, key=_PLACE)
    return MemoryItem(
        id=first.id,
        scope=scope,
        seq=rows[0].seq,
        title=first.title,
        description=first.description,
        content=first.content,
        polarity=first.polarity,
        provenances=tuple(
            Provenance(
                experience_id=giver.id,
                task_id=giver.task_id,
                run_id=giver.run_id,
                distiller=giver.distiller,
                origin=giver.origin,
            )
            for row in sorted(rows, key=_PLACE)
            if (giver := experiences[row.experience])
        ),
    )


def _experience(row: ExperienceRow, items: Sequence[MemoryItem], shown: Sequence[str], scope: str) -> Experience:
    assert row.payload is not None
    rollouts = unpack_rollouts(row.payload, f"experience {row.id}")
    return Experience(
        id=row.id,
        scope=scope,
        seq=row.seq,
        **dict(rollouts),
        items=tuple(items),
        run_id=row.run_id,
        note=row.note,
        origin=row.origin,
        shown=tuple(shown),
        created_at=row.created_at,
    )


@dataclass(frozen=True)
class Pending:
    """Rollouts of one task and one run that nothing was learned from yet; without a run, one rollout.

    ``trajectories`` are ordered by rollout number; ``shown`` are the lessons that the agents were shown and that are
    still in the bank; ``tries`` counts failed tries to learn from them, ``error`` is why the last one failed.
    """

    task: Task
    trajectories: tuple[Trajectory, ...]
    run_id: str
    shown: tuple[MemoryItem, ...]
    tries: int
    error: str
    created_at: str
    """ISO 8601, UTC; when the first of them was recorded."""
    bank: MemoryBank = field(repr=False, compare=False)
    """The bank that they were read from."""

    @property
    def id(self) -> str:
        """The id of the experience that they will become."""
        return identity(self.task, self.trajectories, run_id=self.run_id)


def key_of(task: Task, trajectory: Trajectory, *, run_id: str) -> PendingKey:
    """The key of a rollout. Raises ``InputError`` for a rollout of another task and for a bad run id."""
    id = identity(task, [trajectory], run_id=run_id)
    return PendingKey(run_id, task.id, normalize(trajectory.rollout_id), "" if run_id else id)


def grouped(keys: Iterable[PendingKey]) -> dict[str, list[PendingKey]]:
    """Group keys by the id of their future experience: all of a task in a run, or, without a run, each alone."""
    groups: dict[str, list[PendingKey]] = {}
    for key in keys:
        groups.setdefault(attempt_id(key.run_id, key.task_id) if key.run_id else key.content, []).append(key)
    return groups


def pending_of(rows: Sequence[PendingRow], items: dict[str, MemoryItem], bank: MemoryBank) -> list[Pending]:
    """Return the groups of ``rows``, oldest first; ``items`` are the items that are still in the bank, by id.

    A group that cannot be read is skipped, with a warning in the log.
    """
    by_key = {row.key: row for row in rows}
    found = []
    for id, keys in grouped(by_key).items():
        # by number; ids that are not numbers come last
        keys.sort(key=lambda key: (not key.rollout_id.isdecimal(), len(key.rollout_id), key.rollout_id))
        group = [by_key[key] for key in keys]
        last = max(group, key=lambda row: row.tries)
        try:
            rollouts = [
                unpack_rollouts(row.payload or b"", f"pending rollout {id} of {group[0].key.task_id}") for row in group
            ]
        except CorruptBank as exc:
            _log.warning("%s: skipped: %s", bank, exc)
            continue
        shown = dict.fromkeys(each for row in group for each in row.shown)
        found.append(
            Pending(
                task=rollouts[0].task,
                trajectories=tuple(each.trajectories[0] for each in rollouts),
                run_id=group[0].key.run_id,
                shown=tuple(items[each] for each in shown if each in items),
                tries=last.tries,
                error=last.error,
                created_at=min(row.created_at for row in group),
                bank=bank,
            )
        )
    return found
