"""What happens to a scope in memory: appends, edits, removals. Each happens whole, or raises before it begins."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from rb_dspy.bank import vectors
from rb_dspy.bank.admission import now
from rb_dspy.bank.journal import content_of_append, content_of_edit, content_of_removal, entry_hash, payload_json
from rb_dspy.bank.lineage import Going, LiveRow, closure, waiting_rollouts
from rb_dspy.bank.memory.indexed import matches
from rb_dspy.bank.memory.rows import FOREVER, ExperienceRow, ItemRow, numbered, together
from rb_dspy.bank.memory.timeline import Timeline
from rb_dspy.bank.parts import NewExperience, NewItem, Source
from rb_dspy.bank.renaming import own_id
from rb_dspy.errors import InputError
from rb_dspy.protocols import Vectors
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
        raise InputError(f"experience {new.id}: {len(new.items)} items and {len(new.item_vectors)} vectors for them")
    return Packed(
        new=replace(new, vector=None, item_vectors=()),
        payload=payload_json(new),
        provenance=Provenance(
            experience_id=new.id, task_id=new.task.id, run_id=new.run_id, distiller=new.distiller, origin=new.origin
        ),
        vector=None if new.vector is None else vectors.packed(new.vector),
        item_vectors=tuple(vectors.packed(vector) for vector in new.item_vectors),
    )


def append(to: Timeline, batch: Sequence[Packed]) -> list[Experience]:
    """See ``BankStore.append``."""
    known = to.have([given.new.id for given in batch])
    for given in batch:
        for item in given.new.items if given.new.id not in known else ():
            _adopt(to, given.new.id, item)
    to.items_with(list(dict.fromkeys(item.digest for given in batch for item in given.new.items)))
    to.head()  # the last look at the store below: from here on nothing can fail
    for given in batch:
        to.ingestions.pop(given.new.id, None)
        if given.new.id not in known:
            known.add(given.new.id)
            _append(to, given)
    return [stored for given in batch if (stored := to.ever(given.new.id)) is not None]


def _append(to: Timeline, given: Packed) -> None:
    new = given.new
    row = ExperienceRow(seq=to.mark + 1, new=new, vector=given.vector)
    to.born.append(row)
    to.ids[new.id] = row
    to.mark += 1
    for item, vector in zip(new.items, given.item_vectors, strict=True):
        same = to.says(item.digest, to.mark)
        if same is not None:
            item = replace(item, id=same.new.id)
        elif any(row.lives(to.mark) for row in to.known.get(item.id, ())):  # that one was edited
            item = replace(item, id=_free_id(to, new.id, item.digest))
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
        id = own_id(experience_id, item.digest)
        while to.adopted(id):
            id = own_id(id, item.digest)


def _free_id(to: Timeline, experience_id: str, digest: str) -> str:
    """``own_id``, or what follows on it: an import can have brought an item of that id, and that was edited since."""
    id = own_id(experience_id, digest)
    while any(row.lives(to.mark) for row in to.known.get(id, ())):
        id = own_id(id, digest)
    return id


def edit(to: Timeline, id: str, new: NewItem, vector: Vectors, note: str) -> MemoryItem:
    """See ``BankStore.edit``."""
    rows = to.live_rows(id)
    if not rows:
        raise InputError(f"scope {to.scope!r} has no item {id[:40]!r} to edit; give the id of one that items() lists")
    twin = to.items_with([new.digest]).get(new.digest, id)
    if twin != id:
        raise InputError(f"item {id}: item {twin} says exactly this; delete one of the two instead")
    data, created_at = vectors.packed(vector), now()
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
    family = _Family(to)
    going = closure(
        family.experiences_of(source),
        [source.name] if source.kind == "item" else [],
        descendants=descendants,
        rows_of_experience=family.rows_of_experience,
        rows_of_item=family.rows_of_item,
        viewers=family.viewers,
    )
    held = waiting_rollouts(to.ingestions.values(), source, descendants=descendants, gone=going.items)
    ids = tuple(family.ids[seq] for seq in going.experiences)
    removal = Removal(experiences=ids, items=going.items, ingestions=held)
    if not dry_run:
        if going.rows or going.experiences:
            _end(to, family, going, kind, source.name, note)
        for id in held:
            del to.ingestions[id]
    return removal


class _Family:
    """Who gave what, and who was shown what, among what lives now; what ``closure`` asks."""

    def __init__(self, to: Timeline) -> None:
        self._to = to
        self._viewers: dict[str, list[int]] | None = None
        self.ids: dict[int, str] = {}
        """Of the experiences that were come across, by number."""
        self.rows: dict[int, ItemRow] = {}
        """Item rows that were come across, by number."""

    def experiences_of(self, source: Source) -> list[int]:
        """Numbers of the live experiences that ``source`` means."""
        if source.kind == "experience":
            found = self._to.experience(source.name)
            if found is None:
                return []
            self.ids[found.seq] = found.id
            return [found.seq]
        if source.kind == "item":
            return []
        return [
            seq
            for seq, living in self._living()
            if source.name == (living.run_id if source.kind == "run" else living.origin)
        ]

    def rows_of_experience(self, seq: int) -> list[LiveRow]:
        """The live item rows of an experience that was come across."""
        born = numbered(self._to.born, seq)
        if born is not None:
            return self._seen(row for row in born.rows if row.lives(self._to.mark))
        for id in {given.item.id for given in self._to.item_rows("experience", self.ids[seq])}:
            self._to.adopted(id)
        return self._seen(row for row in self._to.given.get(seq, ()) if row.lives(self._to.mark))

    def rows_of_item(self, id: str) -> list[LiveRow]:
        """The live rows of an item."""
        return self._seen(self._to.live_rows(id))

    def viewers(self, id: str) -> list[int]:
        """Numbers of the live experiences whose agent had been shown an item."""
        if self._viewers is None:
            self._viewers = {}
            for seq, experience in self._living():
                for shown in experience.shown:
                    self._viewers.setdefault(shown, []).append(seq)
        return self._viewers.get(id, [])

    def _seen(self, rows: Iterable[ItemRow]) -> list[LiveRow]:
        seen = {row.seq: row for row in rows}
        self.rows |= seen
        self.ids |= {row.experience: row.provenance.experience_id for row in seen.values()}
        return [LiveRow(row.seq, row.new.id, row.experience) for row in seen.values()]

    def _living(self) -> Iterator[tuple[int, NewExperience | Experience]]:
        for below in self._to.under.experiences(0):
            if below.id not in self._to.away:
                self.ids[below.seq] = below.id
                yield below.seq, below
        for row in self._to.born:
            if row.lives(self._to.mark):
                self.ids[row.seq] = row.new.id
                yield row.seq, row.new


def _end(to: Timeline, family: _Family, going: Going, kind: ChangeKind, name: str, note: str) -> None:
    """End what goes, at one new number."""
    seq, created_at = to.mark + 1, now()
    to.head()
    below = matches(to, "experience", [number for number in going.unindexed if number <= to.under.at])
    ids = [*(family.ids[number] for number in going.experiences), *going.items, *going.losers]
    told = {id: Change(seq=seq, kind=kind, id=id, note=note, created_at=created_at) for id in ids}
    to.mark = seq
    to.gain -= len(going.items)
    for number in going.rows:
        family.rows[number].ended = seq
        to.endings["item"].append((seq, number))
    for number in going.experiences:
        born = numbered(to.born, number)
        if born is None:
            to.away[family.ids[number]] = seq
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
    _record(to, seq, kind, name, note, created_at, content_of_removal(going.experiences, going.rows))
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
