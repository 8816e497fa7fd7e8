"""What happens to a scope in memory: appends, edits, removals. Each happens whole, or raises before it begins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from rb_dspy.bank import refusals, vectors
from rb_dspy.bank.admission import free_item_id, now
from rb_dspy.bank.journal import content_of_append, content_of_edit, content_of_removal, entry_hash, payload_json
from rb_dspy.bank.lineage import Going, closure
from rb_dspy.bank.memory import descent
from rb_dspy.bank.memory.indexed import matches
from rb_dspy.bank.memory.rows import FOREVER, ExperienceRow, ItemRow, numbered, together
from rb_dspy.bank.memory.timeline import Timeline
from rb_dspy.bank.parts import NewExperience, NewItem, Source
from rb_dspy.bank.pending import Waiting, alone, group_id, taken
from rb_dspy.schema import Change, ChangeKind, Experience, MemoryDraft, MemoryItem, Provenance, Removal


@dataclass(frozen=True, slots=True)
class Packed:
    """An experience that is ready to be stored: what takes a while is done, and needed no lock."""

    new: NewExperience
    """Without its vectors."""
    payload: bytes
    provenance: Provenance
    vector: bytes | None
    item_vectors: tuple[bytes, ...]


def packed(new: NewExperience) -> Packed:
    """Raises ``InputError`` where vectors and items are not aligned."""
    if len(new.item_vectors) != len(new.items):
        raise refusals.uneven(new)
    return Packed(
        new=replace(new, vector=None, item_vectors=()),
        payload=payload_json(new),
        provenance=Provenance(
            experience_id=new.id, task_id=new.task.id, run_id=new.run_id, distiller=new.distiller, origin=new.origin
        ),
        vector=None if new.vector is None else vectors.packed(new.vector),
        item_vectors=tuple(vectors.packed(vector) for vector in new.item_vectors),
    )


def append(to: Timeline, batch: Sequence[Packed], *, once: bool = False) -> list[Experience]:
    """See ``BankStore.place``; ``once``: what a run has learned from a task already is what is stored of it."""
    every = batch
    same: dict[str, str] = {}
    for given in batch if once else ():
        if given.new.run_id and (found := to.attempt(given.new.run_id, given.new.task.id)):
            same[given.new.id] = found[0]
    batch = [given for given in batch if given.new.id not in same]
    known = to.have([given.new.id for given in batch])
    for given in batch:
        for item in given.new.items if given.new.id not in known else ():
            _adopt(to, given.new.id, item)
    to.items_with(list(dict.fromkeys(item.digest for given in batch for item in given.new.items)))
    to.head()  # the last look at the store below: from here on nothing can fail
    for given in batch:
        if given.new.id not in known:
            known.add(given.new.id)
            _append(to, given)
    _forget(to, [given.new for given in every])
    ids = [same.get(given.new.id, given.new.id) for given in every]
    return [stored for id in ids if (stored := to.ever(id)) is not None]


def _forget(to: Timeline, learned: Sequence[NewExperience]) -> None:
    """What was learned from is pending no more."""
    if to.pending:
        named = {(new.run_id, new.task.id) for new in learned if new.run_id}
        gone = {*alone(to.scope, [new for new in learned if not new.run_id])}
        gone |= {key for key in to.pending if (key.run_id, key.task_id) in named}
        for key in gone & to.pending.keys():
            del to.pending[key]


def _append(to: Timeline, given: Packed) -> None:
    new = given.new
    row = ExperienceRow(seq=to.mark + 1, new=new, vector=given.vector)
    to.born.append(row)
    to.ids[new.id] = row
    to.attempts.setdefault((new.run_id, new.task.id), []).append(row)
    for shown in new.shown:
        to.viewers.setdefault(shown, []).append(row)
    to.mark += 1
    for item, vector in zip(new.items, given.item_vectors, strict=True):
        same = to.says(item.digest, to.mark)
        if same is not None:
            item = replace(item, id=same.new.id)
        elif _is_live(to, item.id):  # that one was edited
            item = replace(item, id=free_item_id(new.id, item.digest, partial(_is_live, to)))
        to.gain += same is None
        _add(
            to,
            ItemRow(
                seq=to.mark + 1,
                new=item,
                polarity=new.polarity,
                provenance=given.provenance,
                experience=row.seq,
                instruction=new.task.instruction,
                vector=vector,
            ),
        )
    ids = [given.new.id for given in row.rows]
    content = content_of_append(new, ids, given.payload)
    _record(to, row.seq, "append", new.id, new.note, new.created_at, content)
    for id in dict.fromkeys([new.id, *ids]):
        _tell(to, id, Change(seq=row.seq, kind="append", id=id, note=new.note, created_at=new.created_at))


def _adopt(to: Timeline, experience_id: str, item: NewItem) -> None:
    """Adopt all items whose ids may be asked for where this one is stored."""
    rows = to.adopted(item.id)
    if any(row.new.digest != item.digest and row.lives(to.mark) for row in rows):
        free_item_id(experience_id, item.digest, lambda id: bool(to.adopted(id)))  # adopts those that it asks about


def _is_live(to: Timeline, id: str) -> bool:
    """Of an item that is here, or was adopted."""
    return any(row.lives(to.mark) for row in to.known.get(id, ()))


def edit(to: Timeline, id: str, new: NewItem, data: bytes, note: str, location: str) -> MemoryItem:
    """See ``BankStore.edit``; ``data``: the vector, packed."""
    rows = to.live_rows(id)
    if not rows:
        raise refusals.nothing_to_edit(location, to.scope, id)
    twin = to.items_with([new.digest]).get(new.digest, id)
    if twin != id:
        raise refusals.twins(location, id, twin)
    created_at = now()
    to.head()  # the last look at the store below
    seq = to.mark + 1
    before, after = (
        MemoryDraft(title=text.title, description=text.description, content=text.content) for text in (rows[0].new, new)
    )
    change = Change(seq=seq, kind="edit", id=id, note=note, before=before, after=after, created_at=created_at)
    to.mark = seq
    for row in rows:
        row.ended = seq
        to.endings["item"].append((seq, row.seq))
        _add(to, replace(row, seq=to.mark + 1, new=replace(new, id=id), vector=data, ended=FOREVER))
    to.subjects[seq] = id
    _record(to, seq, "edit", id, note, created_at, content_of_edit(id, new.digest, [row.seq for row in rows]))
    _tell(to, id, change)
    return together(to.scope, to.live_rows(id))


def remove(
    to: Timeline,
    kind: Literal["delete", "rollback"],
    source: Source,
    *,
    descendants: bool,
    note: str,
    dry_run: bool,
) -> Removal:
    """See ``BankStore.remove``."""
    going = closure(
        source, descendants=descendants, members=partial(descent.members, to), rows=partial(descent.rows, to)
    )
    waiting = [Waiting(key, row.shown) for key, row in to.pending.items()]
    groups = taken(waiting, source, descendants=descendants, tainted=going.tainted)
    ids = tuple(member.id for member in going.experiences)
    removal = Removal(
        experiences=ids, items=going.items, pending=tuple([group_id(to.scope, group) for group in groups])
    )
    if not dry_run:
        if going.rows or going.experiences:
            _end(to, going, kind, source.name, note)
        for key in [key for group in groups for key in group]:
            del to.pending[key]
    return removal


def _end(to: Timeline, going: Going, kind: ChangeKind, name: str, note: str) -> None:
    """End what goes, at one new number."""
    seq, created_at = to.mark + 1, now()
    to.head()
    below = matches(to, "experience", [number for number in going.unindexed if number <= to.under.at])
    ids = [*(member.id for member in going.experiences), *going.items, *going.losers]
    told = {id: Change(seq=seq, kind=kind, id=id, note=note, created_at=created_at) for id in ids}
    to.mark = seq
    to.gain -= len(going.items)
    for ending in going.rows:
        row = numbered(to.known[ending.item], ending.seq)
        if row is not None:  # which it never is: what ends is what ``descent.rows`` gave
            row.ended = seq
            to.endings["item"].append((seq, row.seq))
    for member in going.experiences:
        born = numbered(to.born, member.number)
        if born is None:
            to.away[member.id] = seq
        else:
            born.ended = seq
    for number in going.unindexed:
        born = numbered(to.born, number)
        if born is not None and born.vector is not None and born.unindexed == FOREVER:
            born.unindexed = seq
            to.endings["experience"].append((seq, number))
        elif number in below:
            to.unindexed[number] = seq
            to.endings["experience"].append((seq, number))
    ended = [member.number for member in going.experiences], [row.seq for row in going.rows]
    to.subjects[seq] = name
    _record(to, seq, kind, name, note, created_at, content_of_removal(*ended))
    for id, change in told.items():
        _tell(to, id, change)


def _add(to: Timeline, row: ItemRow) -> None:
    """Put a new item row where it is looked for; time goes on to its number."""
    to.mark = row.seq
    to.rows.append(row)
    to.known.setdefault(row.new.id, []).append(row)
    to.said.setdefault(row.new.digest, []).append(row)
    born = numbered(to.born, row.experience)
    if born is not None:
        born.rows.append(row)
    else:
        to.given.setdefault(row.experience, []).append(row)


def _record(to: Timeline, seq: int, kind: ChangeKind, subject: str, note: str, created_at: str, content: bytes) -> None:
    """Write the entry of ``seq`` into the hash chain."""
    to.heads.append((seq, entry_hash(to.head(), seq, kind, subject, note, created_at, content)))


def _tell(to: Timeline, id: str, change: Change) -> None:
    """Keep ``change`` for the history of ``id``."""
    to.journal.setdefault(id, []).append(change)
