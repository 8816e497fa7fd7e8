"""What a bank writes: each function is one transaction's decisions, the same for every store."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from rb_dspy.bank.admission import NewExperience, NewItem, attempt_id, now, task_id
from rb_dspy.bank.pending import grouped, key_of
from rb_dspy.bank.reading import pack_rollouts, versions_of
from rb_dspy.bank.removal import Closure, Source, closure, source_of
from rb_dspy.bank.store.base import (
    Entry,
    ExperienceRow,
    ItemRow,
    PendingKey,
    PendingRow,
    Reader,
    VectorRow,
    Writer,
)
from rb_dspy.bank.store.sql import SqlWriter
from rb_dspy.errors import InputError, StorageError
from rb_dspy.protocols import Vectors
from rb_dspy.schema import Removal
from rb_dspy.text import normalise


def append(writer: Writer, page: Sequence[tuple[NewExperience, Vectors | None]]) -> None:
    """Store experiences with their items, and remove what was pending of them; those that are stored, or were, stay.

    Each is paired with its vectors: a row for the instruction, then one for each item; None if there are no items.
    """
    writer.remove_pending(_covered(writer, [new for new, _ in page]))
    stored = {row.id for row in writer.experiences(ids=[new.id for new, _ in page], ended=True)}
    fresh: dict[str, tuple[NewExperience, Vectors | None]] = {}
    for new, vectors in page:
        if new.id not in stored:
            if new.items and vectors is None:
                raise StorageError(f"experience {new.id} was purged meanwhile; append it again")
            fresh.setdefault(new.id, (new, vectors))
    if not fresh:
        return
    count = sum(1 + len(new.items) for new, _ in fresh.values())
    seq = writer.allocate(count) - count
    experiences, items, units, entries = [], [], list[VectorRow](), []
    for new, vectors in fresh.values():
        first = seq + 1
        seq = first + len(new.items)
        rows = [_item_row(item, first + n, first, new) for n, item in enumerate(new.items, 1)]
        experiences.append(_experience_row(new, first))
        items += rows
        if vectors is not None:
            units.append(VectorRow("experience", first, vectors[0]))
            units += [VectorRow("item", row.seq, vector) for row, vector in zip(rows, vectors[1:], strict=True)]
        entries.append(Entry(seq, new.id, "append", tuple(item.id for item in new.items), "", new.created_at))
    writer.add(
        experiences=experiences,
        items=items,
        vectors=units,
        exposures=[(row.seq, id) for row in experiences for id in fresh[row.id][0].shown],
        entries=entries,
    )


def record(writer: Writer, row: PendingRow, location: str) -> None:
    """Store a rollout that is not judged yet; nothing if it is stored, or was learned from.

    Raises:
        InputError: What was learned from it was removed since.
    """
    id = attempt_id(row.key.run_id, row.key.task_id) if row.key.run_id else row.key.content
    stored = writer.experiences(ids=[id], ended=True)
    if stored and stored[0].ended is not None:
        raise removed_since(location, row.key.task_id, id)
    if not stored:
        writer.add_pending(row)


def edit(writer: Writer, id: str, new: NewItem, vector: Vectors, note: str, location: str) -> None:
    """Give an item another text, wherever it was given: its rows end, and rows of the new text begin.

    Raises:
        InputError: The item is gone, or has another text by now.
    """
    before = writer.items(ids=[id])
    if not before:
        raise InputError(f"{location}: item {id[:40]!r} was changed or removed meanwhile; look at it again")
    there = {row.experience for row in writer.items(ids=[new.id])}  # an experience gives a text once
    moved = [row for row in before if row.experience not in there]
    last = writer.allocate(1 + len(moved))
    rows = [
        replace(
            row, seq=last - len(moved) + n, id=new.id, title=new.title, description=new.description, content=new.content
        )
        for n, row in enumerate(moved, 1)
    ]
    writer.end([row.seq for row in before], last)
    new_vectors = [VectorRow("item", row.seq, vector) for row in rows]
    writer.add(items=rows, vectors=new_vectors, entries=[Entry(last, id, "edit", (new.id,), note, now())])


@dataclass(frozen=True)
class Plan:
    """What a delete or a rollback removes. ``pending``: groups of rollouts, by the id of what they would become."""

    source: Source
    closure: Closure
    pending: dict[str, list[PendingKey]]

    @property
    def removal(self) -> Removal:
        experiences = tuple(row.id for row in self.closure.experiences)
        return Removal(experiences=experiences, items=self.closure.items, pending=tuple(self.pending))


def plan(reader: Reader, name: str, *, kind: Literal["delete", "rollback"], descendants: bool) -> Plan:
    """What goes with ``name`` (see ``removal.source_of`` and ``removal.closure``).

    Pending rollouts of a run go with it; with ``descendants`` also those whose agent was shown an item that goes.
    """
    source, run_id = source_of(reader, name, ended=descendants, edits=kind == "rollback")
    going = closure(reader, source, descendants=descendants)
    return Plan(source, going, _pending_of(reader, name, run_id, going.removed_items if descendants else frozenset()))


def remove(
    writer: Writer, name: str, *, kind: Literal["delete", "rollback"], descendants: bool, note: str = ""
) -> Removal:
    """End what ``plan`` finds."""
    planned = plan(writer, name, kind=kind, descendants=descendants)
    going = planned.closure
    writer.remove_pending([key for keys in planned.pending.values() for key in keys])
    if not going.experiences and not going.rows:
        return planned.removal
    last = writer.allocate(1)
    writer.end([*(row.seq for row in going.experiences), *(row.seq for row in going.rows)], last)
    time = now()
    lost: dict[int, list[str]] = {}
    for row in going.rows:
        lost.setdefault(row.experience, []).append(row.id)
    entries = [Entry(last, row.id, kind, tuple(lost.get(row.seq, ())), note, time) for row in going.experiences]
    entries += [Entry(last, id, kind, (), note, time) for id in sorted(planned.source.items & set(going.items))]
    writer.add(entries=entries)
    return planned.removal


def purge(writer: SqlWriter, name: str) -> Removal:
    """Delete what ``name`` means for good: experiences with their item rows, or an item with all texts that it had.

    The experience of a handwritten lesson has its text, and goes with it.
    """
    source, run_id = source_of(writer, name, ended=True, edits=False)
    pending = _pending_of(writer, name, run_id, frozenset())
    experiences = writer.experiences(seqs=source.experiences, ended=True)
    items = {each for id in source.items for each in versions_of(writer, id)}
    for id in sorted(items):
        experiences += writer.experiences(task_id=task_id(id), ended=True)
    rows = writer.items(experiences={row.seq for row in experiences}, ended=True)
    rows += writer.items(ids=items, ended=True)
    seqs = {*(row.seq for row in experiences), *(row.seq for row in rows)}
    writer.remove_pending([key for keys in pending.values() for key in keys])
    if seqs:
        ids = list(dict.fromkeys([*(row.id for row in experiences), *sorted(items)]))
        last = writer.allocate(1)
        writer.delete(seqs, notes_of=[*ids, *(row.id for row in rows)])
        writer.add(entries=[Entry(last, id, "purge", (), "", now()) for id in ids])
    stays = {row.id for row in writer.items(ids=[row.id for row in rows])}
    return Removal(
        experiences=tuple(row.id for row in experiences),
        items=tuple(id for id in dict.fromkeys(row.id for row in rows) if id not in stays),
        pending=tuple(pending),
    )


def removed_since(location: str, task_id: str, id: str) -> InputError:
    """For an attempt that was learned from and removed."""
    return InputError(
        f"{location}: this attempt at {task_id[:40]!r} was learned from as {id} and removed since; name another run_id"
    )


def _item_row(item: NewItem, seq: int, experience: int, new: NewExperience) -> ItemRow:
    return ItemRow(
        seq=seq,
        id=item.id,
        ended=None,
        learned=seq,
        experience=experience,
        task_id=new.task.id,
        polarity=new.polarity,
        title=item.title,
        description=item.description,
        content=item.content,
    )


def _experience_row(new: NewExperience, seq: int) -> ExperienceRow:
    return ExperienceRow(
        seq=seq,
        id=new.id,
        ended=None,
        task_id=new.task.id,
        template=None if new.task.template is None else normalise(new.task.template),
        run_id=new.run_id,
        origin=new.origin,
        distiller=new.distiller,
        note=new.note,
        label=new.label,
        polarity=new.polarity,
        instruction=new.task.instruction,
        created_at=new.created_at,
        payload=pack_rollouts(new.task, new.trajectories, new.verdicts),
    )


def _covered(reader: Reader, page: Sequence[NewExperience]) -> list[PendingKey]:
    """Pending rollouts that these experiences were made of: in a run all of its task."""
    run_id, task_id = (page[0].run_id, page[0].task.id) if len(page) == 1 else (None, None)
    waiting = {row.key for row in reader.pending(run_id=run_id, task_id=task_id)}
    if not waiting:
        return []
    attempts = {(new.run_id, new.task.id) for new in page if new.run_id}
    alone = {key_of(new.task, rollout, run_id="") for new in page if not new.run_id for rollout in new.trajectories}
    return [key for key in waiting if (key.run_id, key.task_id) in attempts or key in alone]


def _pending_of(reader: Reader, name: str, run_id: str | None, items: Collection[str]) -> dict[str, list[PendingKey]]:
    """Groups of pending rollouts that go: that of this name, of a run, and those whose agent was shown an item."""
    shown = {row.key: set(row.shown) for row in reader.pending()}
    return {
        id: keys
        for id, keys in grouped(shown).items()
        if id == name or keys[0].run_id == run_id or any(shown[key] & set(items) for key in keys)
    }
