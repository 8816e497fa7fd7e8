"""The writes of a bank: each function decides what one transaction writes, the same for every store."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby, islice
from typing import Literal, NamedTuple, TypeVar

import numpy as np

from rb_dspy.bank.admission import (
    NewExperience,
    Rollouts,
    corrected_id,
    corrects,
    identity,
    item_text,
    new_item,
    now,
    unpack_rollouts,
)
from rb_dspy.bank.embedding import embed
from rb_dspy.bank.reading import HELPED, key_of, latest, levels_of
from rb_dspy.bank.removal import plan
from rb_dspy.bank.retiring import of_shown, retirable
from rb_dspy.bank.store.base import (
    HELD,
    Entry,
    ExperienceRow,
    ItemRow,
    PendingKey,
    SnapshotRow,
    Unit,
    UseRow,
)
from rb_dspy.bank.store.overlay import Reader, Scope, Writer
from rb_dspy.bank.undeleting import bring_back
from rb_dspy.config import TrustConfig
from rb_dspy.errors import InputError, StorageError
from rb_dspy.protocols import Embedder, Vectors
from rb_dspy.schema import LEVELS, MemoryDraft, Removal

Done = TypeVar("Done")

_BATCH = 500
"""Experiences per transaction of ``append``."""

_REMOVED = 2_000
"""Removed lessons that a new one is compared with."""

_REASON = 2_000
"""Most characters of the reason why an item is retired."""


class Written(NamedTuple):
    """A stored experience, with the rows of its items."""

    row: ExperienceRow
    items: tuple[ItemRow, ...]
    shown: tuple[str, ...]
    shared: frozenset[str]
    """The ids of those items that other experiences gave, too."""


class _Page(NamedTuple):
    """Experiences to store; and by id, the vector of the instruction, then those of the items."""

    news: list[NewExperience]
    vectors: dict[str, list[Vectors]]


def append(
    scope: Scope,
    embedder: Callable[[], Embedder],
    trust: TrustConfig,
    every: Iterable[NewExperience],
    *,
    foreign: bool = False,
    guard: bool = False,
) -> tuple[list[str], dict[str, Written]]:
    """Store experiences in transactions of 500; returns their ids, and, of those that are new, what was written last.

    Stored experiences are not embedded again. ``foreign``: they come from another bank, so equal run and task ids do
    not mean the same attempt; see ``_distinct``. ``guard``: hold lessons that say the same as a removed one.
    """
    ids: list[str] = []
    written: dict[str, Written] = {}
    rest = iter(every)
    while batch := list(islice(rest, _BATCH)):
        page: dict[str, NewExperience] = {}
        batch, stored = _distinct(scope.now(), batch) if foreign else _current(scope.now(), batch)
        for new in batch:
            page.setdefault(new.id, new)
        ids += [new.id for new in batch]
        fresh = [new for new in page.values() if new.id not in stored]
        vectors: dict[str, list[Vectors]] = {}
        key = None
        if fresh:
            model = embedder()
            key = model.id, model.dimension
            texts = [text for new in fresh for text in (new.row.instruction, *map(item_text, new.items))]
            rows = iter(embed(model, texts))
            vectors = {new.id: [*islice(rows, 1 + len(new.items))] for new in fresh}
            if guard:
                page |= {new.id: new for new in _guarded(scope, fresh, vectors, trust.near)}
        written = scope.together(_append, _Page([*page.values()], vectors), embedder=key)
    return ids, written


def _guarded(
    scope: Scope, fresh: Iterable[NewExperience], vectors: dict[str, list[Vectors]], near: float
) -> Iterator[NewExperience]:
    """Hold the lessons whose cosine to a removed one is at least ``near``."""
    gone = removed_rows(scope.now(), _REMOVED) if near <= 1 else []
    removed = [*scope.vectors("item", gone).values()] if gone else []
    for new in fresh:
        if removed and new.items:
            near_ones = (np.stack(vectors[new.id][1:]) @ np.stack(removed).T).max(axis=1) >= near - 1e-5
            held = [item.id for item, is_near in zip(new.items, near_ones, strict=True) if is_near]
            why = f"held, because nearly the same was removed before: {', '.join(held)}" if held else ""
            row = new.row._replace(note="; ".join(filter(None, [new.row.note, why])))
            new = replace(new, row=row, held=frozenset(held))
        yield new


def _stored(reader: Reader, batch: Sequence[NewExperience]) -> set[str]:
    """The ids of ``batch`` that are stored, or were removed."""
    return {row.id for row in reader.experiences(ids={new.id for new in batch}, ended=True)}


def _current(reader: Reader, batch: Sequence[NewExperience]) -> tuple[list[NewExperience], set[str]]:
    """Give an attempt that is stored the id that it has now, or a new id if a person states another verdict.

    Returns the batch, and ``_stored`` of it.
    """
    stored = _stored(reader, batch)
    current = []
    for new in batch:
        row = latest(reader, new.id) if new.id in stored else None
        held = None if row is None or row.ended is not None else unpack_rollouts(row.payload, f"experience {row.id}")
        rollouts, reward = new.draft.trajectories, new.draft.reward
        if row and held and corrects(new.draft.task, rollouts, held.trajectories, reward, row.reward):
            # what was edited is in the owner's words
            edited = [
                item for item in reader.items(experiences={row.seq}) if reader.journal(item=item.id, kinds=["edit"])
            ]
            items = tuple({item.id: item for item in (*edited, *new.items)}.values())
            # who says what it is worth does not change where the rollout came from, nor what its agent was shown
            level, shown = min(row.level, new.row.level), [use.subject for use in reader.uses(experiences={row.seq})]
            changed = new.row._replace(id=corrected_id(row.id), origin=row.origin, level=level)
            draft = new.draft if new.draft.shown else new.draft.model_copy(update={"shown": tuple(shown)})
            new = replace(new, draft=draft, row=changed, items=items, corrects=row.id)
        elif row is not None:
            new = replace(new, row=new.row._replace(id=row.id))
        current.append(new)
    return current, _stored(reader, current) if stored else stored


def _distinct(reader: Reader, batch: Sequence[NewExperience]) -> tuple[list[NewExperience], set[str]]:
    """Give an experience the id of its rollouts if other rollouts already have the id of its run and task.

    A file that is not believed does not say which tasks a run has done: if the same is not stored, its run is left out.
    Returns the batch, and ``_stored`` of it.
    """
    contents: dict[str, str] = {}
    for row in reader.experiences(ids={new.id for new in batch}, ended=True, payload=True):
        stored = unpack_rollouts(row.payload, f"experience {row.id}")
        contents[row.id] = identity(stored.task, stored.trajectories, run_id="")
    distinct = []
    for new in batch:
        content = identity(new.draft.task, new.draft.trajectories, run_id="")
        if new.imported and contents.get(new.id) != content:
            new = replace(new, row=new.row._replace(id=content, run_id=""))
        elif contents.setdefault(new.id, content) != content:
            new = replace(new, row=new.row._replace(id=content))
        distinct.append(new)
    return distinct, _stored(reader, distinct)


def _append(writer: Writer, pages: Sequence[_Page]) -> list[dict[str, Written]]:
    """Store experiences with their items, and remove their pending rollouts; stored or removed ones are skipped.

    Returns for each page what was written, by id.
    """
    page = [new for each in pages for new in each.news]
    vectors = {id: rows for each in reversed(pages) for id, rows in each.vectors.items()}
    stored = _stored(writer, page)
    fresh = [*{new.id: new for new in reversed(page) if new.id not in stored}.values()][::-1]
    later = set[PendingKey]()
    for place, new in enumerate(fresh):
        if new.recorded:
            fresh[place], corrections = _as_recorded(writer, new)
            later |= corrections
    writer.remove_pending([key for key in _covered(writer, page) if key not in later])
    if not fresh:
        return [{} for _ in pages]
    for new in fresh:
        if new.id not in vectors:
            raise StorageError(f"experience {new.id} was purged meanwhile; append it again")
        if new.corrects:
            remove(writer, new.corrects, "delete", descendants=False, note=f"corrected by {new.id}")
    written: dict[str, Written] = {}
    for _, group in groupby(fresh, key=lambda new: new.id if new.draft.retired else ""):
        written |= _store(writer, [*group], vectors)  # what retires reads what was stored before it
    # two threads may have tried to store the same attempt
    return [{new.id: written.pop(new.id) for new in each.news if new.id in written} for each in pages]


def _store(writer: Writer, fresh: Sequence[NewExperience], vectors: Mapping[str, list[Vectors]]) -> dict[str, Written]:
    """Store new experiences, of which one that retires items is alone. Returns what was written, by id."""
    said = {new.id: of_shown(new.draft.marks, new.draft.shown) for new in fresh}
    count = sum(1 + len(new.items) + len(new.marks) + bool(said[new.id][0]) + (new.back is not None) for new in fresh)
    seq = writer.allocate(count) - count
    levels = levels_of(writer, {id for new in fresh for id in (*new.draft.shown, *new.draft.retired)})
    given = Counter(item.id for new in fresh for item in new.items)
    given.update({row.id for row in writer.items(ids=given)})
    written: dict[str, Written] = {}
    units, uses, entries = list[tuple[Unit, int, Vectors]](), list[UseRow](), list[Entry]()
    ends = list[tuple[list[ItemRow], int]]()
    for new in fresh:
        shown = tuple(dict.fromkeys(new.draft.shown))
        sources = () if new.stated else (*shown, *new.draft.retired)  # what it retires, it may say in other words
        level = min([new.row.level, *(levels[id] for id in sources if id in levels)])
        ids = tuple(item.id for item in new.items)
        trusted = HELD if new.held else level  # what would take the place of others is not shown
        retired, why = retirable(writer, new.draft.retired, level=trusted, again=ids)
        marks, unknown = said[new.id]
        note = "; ".join(filter(None, [new.row.note, why, unknown]))
        row = new.row._replace(seq=seq + 1, level=level, note=note)
        items = tuple(
            item._replace(
                seq=n,
                learned=n,
                experience=row.seq,
                task_id=row.task_id,
                polarity=row.polarity,
                origin=row.origin,
                level=HELD if item.id in new.held else max(level, item.level),
            )
            for n, item in enumerate(new.items, row.seq + 1)
        )
        seq += 1 + len(items)
        first, *others = vectors[new.id]
        units.append(("experience", row.seq, first))
        units += [("item", each.seq, vector) for each, vector in zip(items, others, strict=True)]
        uses += [UseRow(row.seq, id, place, id in new.draft.cited) for place, id in enumerate(shown)]
        entries.append(Entry(seq, new.id, "append", ids, "", row.created_at))
        reasons = {each.id: new.draft.retired[each.id][:_REASON] for each in retired}
        entries += [Entry(seq, id, "retire", ids, reason, row.created_at) for id, reason in reasons.items()]
        ends.append((retired, seq))
        if new.back is not None:
            seq += 1
            entries.append(Entry(seq, new.id, "undelete", (), new.back, now()))
        seq += bool(marks)
        entries += [Entry(seq, id, "mark", (HELPED, new.id), value, row.created_at) for id, value in marks.items()]
        for id, name, value in new.marks:
            seq += 1
            entries.append(Entry(seq, id, "mark", (name,), value, row.created_at))
        written[new.id] = Written(row, items, shown, frozenset(item.id for item in items if given[item.id] > 1))
    writer.add(
        experiences=[each.row for each in written.values()],
        items=[item for each in written.values() for item in each.items],
        vectors=units,
        uses=uses,
        entries=entries,
    )
    for rows, end in ends:
        writer.end([each.seq for each in rows], end)
    return written


def removed_rows(reader: Reader, most: int = 0, *, retired: bool = False) -> list[int]:
    """The numbers of the last rows of lessons that a delete or a rollback removed; ``most``: only so many, the last.

    ``retired``: also of retired ones, which nobody rejected: they may be learned again.
    """
    gone = reader.journal(kinds=["retire"]) if retired else []
    entries = reader.journal(kinds=("delete", "rollback")) + [entry._replace(items=()) for entry in gone]
    corrected = {row.id for row in reader.experiences(ids={corrected_id(each.subject) for each in entries}, ended=True)}
    entries = [entry for entry in entries if corrected_id(entry.subject) not in corrected]
    subjects = {id for entry in entries for id in (entry.subject, *entry.items)}
    every = reader.items(ids=subjects, ended=True)
    present = {row.id for row in every if row.ended is None}
    ends = {entry.seq for entry in entries}  # what was learned again, and edited then, is not removed
    last = {row.id: row for row in sorted(every, key=lambda row: row.ended or 0) if row.id not in present}
    return sorted(row.seq for row in last.values() if row.ended in ends)[-most:]


def without_removed(reader: Reader, drafts: Sequence[MemoryDraft], note: str) -> tuple[list[MemoryDraft], str]:
    """Drop drafts whose exact text was removed by an edit, delete or rollback of that item.

    Returns the other drafts, and the note, which lists the ids of the dropped ones: a purge must find no text in it.
    """
    left, gone = [], []
    for draft in drafts:
        id = new_item(draft).id
        last = [entry for entry in reader.journal(subjects=[id]) if entry.kind != "mark"][-1:]
        rows = reader.items(ids=[id], ended=True) if last else []
        ends = {row.ended or last[0].seq + 1 for row in rows}
        if ends and max(ends) == last[0].seq and last[0].kind != "retire":
            gone.append(f"{id} ({last[0].kind} at {last[0].created_at})")
        else:
            left.append(draft)
    if gone:
        note = "; ".join(filter(None, [note, f"not stored again, because it was removed before: {'; '.join(gone)}"]))
    return left, note


def snapshot(writer: Writer, name: str, place: str) -> SnapshotRow:
    """Name the current state. Raises ``InputError`` if another state has this name."""
    mark = writer.mark()
    row = next((each for each in writer.snapshots() if each.name == name), None)
    if row is None:
        row = SnapshotRow(name, mark, now())
        writer.add_snapshot(row)
    elif row.seq != mark:
        raise InputError(
            f"{place}: snapshot {name!r} is the state at {row.seq}, but the bank is at {mark} now; choose another name"
        )
    return row


def edit(writer: Writer, id: str, new: ItemRow, vector: Vectors, note: str, location: str) -> None:
    """Replace the text of an item in all its experiences: end its rows, and add rows with the new text.

    Raises ``InputError`` if the item was removed or edited meanwhile.
    """
    before = writer.items(ids=[id])
    if not before:
        raise InputError(f"{location}: item {id[:40]!r} was changed or removed meanwhile; look at it again")
    same = {row.experience: row for row in writer.items(ids=[new.id])}  # an experience contains a text only once
    moved = [row for row in before if row.experience not in same]
    raised = [same[row.experience] for row in before if row.experience in same]
    moved += [row for row in raised if row.level < LEVELS.index("owner")]
    last = writer.allocate(1 + len(moved))
    rows = [
        row._replace(
            seq=last - len(moved) + n,
            id=new.id,
            title=new.title,
            description=new.description,
            content=new.content,
            level=LEVELS.index("owner"),
        )
        for n, row in enumerate(moved, 1)
    ]
    writer.end([row.seq for row in (*before, *moved)], last)
    entry = Entry(last, id, "edit", (new.id,), note, now())
    writer.add(items=rows, vectors=[("item", row.seq, vector) for row in rows], entries=[entry])


def mark(writer: Writer, ids: Sequence[str], name: str, value: str) -> None:
    """Mark items and experiences; an empty value removes the mark."""
    seq, time = writer.allocate(1), now()
    writer.add(entries=[Entry(seq, id, "mark", (name,), value, time) for id in dict.fromkeys(ids)])


def remove(writer: Writer, name: str, kind: Literal["delete", "rollback"], *, descendants: bool, note: str) -> Removal:
    """End the rows of ``removal.plan``. What the experiences had retired comes back."""
    going = plan(writer, name, kind, descendants=descendants)
    writer.remove_pending([key for keys in going.pending.values() for key in keys])
    if not going.experiences and not going.rows:
        return going.removal
    last = writer.allocate(1)
    writer.end([*(row.seq for row in going.experiences), *(row.seq for row in going.rows)], last)
    time = now()
    lost: dict[int, list[str]] = {}
    for row in going.rows:
        lost.setdefault(row.experience, []).append(row.id)
    entries = [Entry(last, row.id, kind, tuple(lost.get(row.seq, ())), note, time) for row in going.experiences]
    entries += [Entry(last, id, kind, (), note, time) for id in sorted(going.source.items & set(going.removal.items))]
    writer.add(entries=entries)
    bring_back(writer, [row.id for row in going.experiences], going.items, "what retired it was removed")
    return going.removal


def one_by_one(writer: Writer, works: Sequence[Callable[[Writer], Done]]) -> list[Done]:
    """Do works that share a transaction; see ``SqlScope.together``."""
    return [work(writer) for work in works]


def removed_since(location: str, task_id: str, id: str) -> InputError:
    """Return the error for an attempt that was learned from and removed."""
    return InputError(
        f"{location}: this attempt at {task_id[:40]!r} was learned from as {id} and removed since; name another run_id,"
        " or undelete it"
    )


def _as_recorded(writer: Reader, new: NewExperience) -> tuple[NewExperience, set[PendingKey]]:
    """``new`` with all that was recorded as shown, and the pending corrections of its rollouts, which stay pending.

    Raises ``InputError`` if a rollout is not pending any more, or was corrected again.
    """
    task, run_id = new.draft.task, new.draft.run_id
    waiting = {row.key: row for row in writer.pending(run_id=run_id, task_id=task.id)}
    alone = len(new.draft.trajectories) == 1  # the reward of several is their mean
    shown, corrections = dict.fromkeys(new.draft.shown), set[PendingKey]()
    for rollout in new.draft.trajectories:
        row = waiting.get(key_of(task, rollout, run_id=run_id))
        held = unpack_rollouts(row.payload, f"a rollout of {task.id}") if row else Rollouts(task=task, trajectories=())
        newer = corrects(task, held.trajectories, [rollout], held.reward if alone else None, new.draft.reward)
        if row is None or (newer and (rollout.known_label or rollout.feedback)):
            raise InputError(
                f"task {task.id[:40]!r}: this rollout was removed or corrected meanwhile; to store it, call learn again"
            )
        shown |= dict.fromkeys(row.shown)
        if newer:
            corrections.add(row.key)
    return replace(new, draft=new.draft.model_copy(update={"shown": tuple(shown)})), corrections


def _covered(reader: Reader, page: Sequence[NewExperience]) -> list[PendingKey]:
    """Pending rollouts that these experiences include: in a run, all rollouts of the task."""
    runs, tasks = {new.row.run_id for new in page}, {new.row.task_id for new in page}
    waiting = {row.key for row in reader.pending(run_id=runs, task_id=tasks, payload=False)}
    if not waiting:
        return []
    page = [new for new in page if not new.imported]
    attempts = {(new.row.run_id, new.row.task_id) for new in page if new.row.run_id}
    alone = {
        key_of(new.draft.task, rollout, run_id="")
        for new in page
        if not new.row.run_id
        for rollout in new.draft.trajectories
    }
    return [key for key in waiting if (key.run_id, key.task_id) in attempts or key in alone]
