"""Convert rows to public values: items with their provenances, experiences, and the history of an id."""

from __future__ import annotations

import json
import zlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from hashlib import sha256

import pydantic

from rb_dspy.bank.store.base import ExperienceRow, ItemRow, SnapshotRow
from rb_dspy.bank.store.overlay import Reader
from rb_dspy.errors import CorruptBank
from rb_dspy.schema import (
    Change,
    Experience,
    MemoryDraft,
    MemoryItem,
    Provenance,
    Snapshot,
    Task,
    Trajectory,
    Verdict,
)

_PAGE = 500
"""Experiences read per page."""

_MOST = 1_000_000_000
"""Maximum bytes of an unpacked payload; rb_dspy writes no larger ones."""


class Rollouts(pydantic.BaseModel):
    """The content of a payload."""

    task: Task
    trajectories: tuple[Trajectory, ...]
    verdicts: tuple[Verdict, ...] = ()


def pack_rollouts(task: Task, trajectories: Sequence[Trajectory], verdicts: Sequence[Verdict] = ()) -> bytes:
    """Pack rollouts as compressed JSON."""
    value = Rollouts(task=task, trajectories=tuple(trajectories), verdicts=tuple(verdicts)).model_dump()
    return zlib.compress(json.dumps(value, separators=(",", ":")).encode("ascii"), 6)


def unpack_rollouts(payload: bytes, what: str) -> Rollouts:
    """Unpack the result of ``pack_rollouts``. Raises ``CorruptBank``, whose message names ``what``."""
    try:
        engine = zlib.decompressobj()
        text = engine.decompress(payload, _MOST)
        if not engine.eof:
            raise ValueError("it is truncated or too large")
        return Rollouts.model_validate(json.loads(text))
    except (zlib.error, ValueError) as exc:
        raise CorruptBank(f"{what} is damaged ({exc!s:.100}); restore a backup") from None


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
    ordered = sorted(((id, each) for id, each in rows.items() if each), key=lambda pair: min(map(_place, pair[1])))
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
            [items[each.id] for each in sorted(rows_of.get(row.seq, ()), key=_place) if each.id in items],
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
    after = 0
    while rows := reader.experiences(after=after, limit=_PAGE, payload=True, ended=ended):
        yield rows
        after = rows[-1].seq


def snapshot_of(reader: Reader, row: SnapshotRow, scope: str) -> Snapshot:
    """Return a named state, which ``reader`` reads. Equal digests mean equal changes in the same order."""
    digest = sha256()
    for entry in reader.journal():
        digest.update(repr((entry.seq, entry.kind, entry.subject, entry.items)).encode())
    text = digest.hexdigest() if row.seq else ""
    return Snapshot(name=row.name, scope=scope, seq=row.seq, digest=text, created_at=row.created_at)


def versions_of(reader: Reader, id: str) -> set[str]:
    """The ids of an item and of its versions before and after edits."""
    ids, new = {id}, {id}
    while new:
        edits = [entry for entry in reader.journal(subjects=new) if entry.kind == "edit"]
        edits += [entry for each in new for entry in reader.journal(item=each)]
        new = {each for entry in edits for each in (entry.subject, *entry.items)} - ids
        ids |= new
    return ids


def history_of(reader: Reader, id: str) -> list[Change]:
    """Return the changes of an experience or an item, including its versions before and after edits."""
    ids = versions_of(reader, id)
    every = reader.items(ids=ids, ended=True)
    rows = {row.id: row for row in every}
    changes = [
        Change(
            seq=entry.seq,
            kind=entry.kind,
            id=entry.subject,
            note=entry.note,
            before=_draft(rows.get(entry.subject)) if entry.kind == "edit" else None,
            after=_draft(rows.get(entry.items[0])) if entry.kind == "edit" else None,
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
    first = min(rows, key=_place)
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
            for row in sorted(rows, key=_place)
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
        task=rollouts.task,
        trajectories=rollouts.trajectories,
        verdicts=rollouts.verdicts,
        items=tuple(items),
        run_id=row.run_id,
        note=row.note,
        origin=row.origin,
        shown=tuple(shown),
        created_at=row.created_at,
    )


def _draft(row: ItemRow | None) -> MemoryDraft | None:
    if row is None:
        return None
    return MemoryDraft.model_construct(title=row.title, description=row.description, content=row.content)


def _place(row: ItemRow) -> int:
    return row.learned
