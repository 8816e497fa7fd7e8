"""Convert rows to public values: items with their provenances, experiences, pending rollouts, and histories."""

from __future__ import annotations

import json
import logging
from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import TYPE_CHECKING

from rb_dspy.bank.admission import Rollouts, attempt_id, corrected_id, identity, unpack_rollouts
from rb_dspy.bank.store.base import HELD, Entry, ExperienceRow, ItemRow, PendingKey, PendingRow, SnapshotRow, Unit
from rb_dspy.bank.store.overlay import Reader
from rb_dspy.errors import CorruptBank
from rb_dspy.schema import (
    LEVELS,
    Change,
    Experience,
    ExperienceDraft,
    Label,
    Level,
    MemoryDraft,
    MemoryItem,
    Provenance,
    Snapshot,
    Task,
    Trajectory,
    Use,
    Uses,
)
from rb_dspy.text import normalize

if TYPE_CHECKING:
    from rb_dspy.bank.bank import MemoryBank

_log = logging.getLogger("rb_dspy.bank")

_PAGE = 500
"""Experiences read per page."""

_OWNER = LEVELS.index("owner")

APPROVED = "approved"
"""The mark that raises what is held to the level of the owner."""

HELPED = "helped"
"""The name under which an experience says whether what was shown helped. It is about that use; see ``uses_of``."""

ItemRows = Sequence[tuple[ItemRow, ExperienceRow]]
"""Item rows with their experiences."""


def latest(reader: Reader, id: str) -> ExperienceRow | None:
    """The experience with this id, or the last one that corrected it; it may have ended."""
    row = None
    while rows := reader.experiences(ids=[id], ended=True, payload=True):
        row, id = rows[0], corrected_id(id)
        if row.ended is None:
            break
    return row


def items_of(
    reader: Reader, ids: Collection[str] | None, scope: str, kinds: Collection[str] | None = None
) -> dict[str, MemoryItem]:
    """Live items by id, in the order in which they were learned; of any id or any kind if that is None."""
    return as_items(reader, reader.items_with_experiences(ids, kinds=kinds), scope)


def as_items(
    reader: Reader, given: ItemRows, scope: str, approved: Collection[int] | None = None
) -> dict[str, MemoryItem]:
    """Items by id, in the order in which they were learned, from all their live rows.

    ``approved``: the rows that are approved; None: they are read.
    """
    rows: dict[str, list[tuple[ItemRow, ExperienceRow]]] = {}
    for each in sorted(given, key=lambda pair: pair[0].learned):
        rows.setdefault(each[0].id, []).append(each)
    if approved is None and rows:
        approved = marked(reader, "item", APPROVED).keys()
    return {id: _item(each, scope, approved or ()) for id, each in rows.items()}


def ended_items(reader: Reader, seqs: Collection[int], scope: str) -> dict[str, MemoryItem]:
    """The items whose last rows these are, as they were before."""
    rows = reader.items(seqs=seqs, ended=True)
    ends = {row.id: row.ended for row in rows}
    every = [row for row in reader.items(ids=ends, ended=True) if row.ended == ends[row.id]]
    givers = {row.seq: row for row in reader.experiences(seqs={row.experience for row in every}, ended=True)}
    return as_items(reader, [(row, givers[row.experience]) for row in every], scope)


def marked(reader: Reader, unit: Unit, name: str, ids: Collection[str] | None = None) -> dict[int, str]:
    """Return the rows that have a mark, also if it was made for another row of the same id, and its value.

    A mark is about what is there: a row that is added later, because the same was learned again, does not have it.
    """
    last = {entry.subject: entry for entry in reader.journal(subjects=ids, item=name, kinds=["mark"])}
    if not last:
        return {}
    rows = reader.items(ids=last, ended=True) if unit == "item" else reader.experiences(ids=last, ended=True)
    return {row.seq: last[row.id].note for row in rows if last[row.id].seq > row.seq and last[row.id].note}


def marks_of(reader: Reader, id: str, since: int | None = None) -> dict[str, str]:
    """The marks of an item or experience, by name; ``since``: those of its row with this number."""
    entries = reader.journal(subjects=[id], kinds=["mark"])
    last = {entry.items[0]: entry for entry in entries if len(entry.items) == 1}
    if not last:
        return {}
    if since is None:
        rows = reader.items(ids=[id]) or reader.items(ids=[id], ended=True) or reader.experiences(ids=[id], ended=True)
        since = rows[0].seq
    return {name: last[name].note for name in sorted(last) if last[name].note and last[name].seq > since}


def kept_marks(reader: Reader, id: str, since: int | None = None) -> dict[str, str]:
    """As ``marks_of``, without the one that the level shows."""
    return {name: value for name, value in marks_of(reader, id, since).items() if name != APPROVED}


def row_levels(reader: Reader, rows: Sequence[ItemRow | ExperienceRow]) -> dict[int, int]:
    """The levels of rows, by their numbers."""
    ids = {row.id for row in rows}
    approved = marked(reader, "item", APPROVED, ids) | marked(reader, "experience", APPROVED, ids)
    return {row.seq: _OWNER if row.seq in approved else row.level for row in rows}


def levels_of(reader: Reader, ids: Collection[str]) -> dict[str, int]:
    """The levels of items and experiences by id; removed ones count as they were, purged ones are left out."""
    rows: list[ItemRow | ExperienceRow] = [*reader.items(ids=ids, ended=True)]
    rows += reader.experiences(ids=ids, ended=True)
    of_row, levels = row_levels(reader, rows), dict[bool, dict[str, int]]({True: {}, False: {}})
    for row in rows:
        found = levels[row.ended is None]
        found[row.id] = max(of_row[row.seq], found.get(row.id, HELD))
    return levels[False] | levels[True]


def ages_of(reader: Reader, ids: Collection[str]) -> dict[str, int]:
    """How many experiences came after the last one that gave each item."""
    last = {row.id: row.experience for row in sorted(reader.items(ids=ids), key=lambda row: row.experience)}
    seqs = sorted(seq for (seq,) in reader.tally("experiences", ["seq"])) if last else []
    return {id: len(seqs) - bisect_right(seqs, seq) for id, seq in last.items()}


def uses_of(reader: Reader, ids: Collection[str] | None) -> dict[str, Uses]:
    """The uses of items and experiences, by their present id: an edit takes the uses along that were before it.

    Uses by experiences that were removed do not count, nor by held ones: a stranger does not say what is worth how
    much. An id that is not present any more has its own.
    """
    edits: dict[str, list[Entry]] = {}
    before: dict[str, list[str]] = {}
    for entry in reader.journal(kinds=["edit"]):
        edits.setdefault(entry.subject, []).append(entry)
        before.setdefault(entry.items[0], []).append(entry.subject)
    subjects = None if ids is None else _reached(ids, before)
    rows = reader.uses(subjects=subjects)
    said = {(each.subject, *each.items[1:]): each.note for each in reader.journal(subjects=subjects, kinds=["mark"])}
    experiences = {row.seq: row for row in reader.experiences(seqs={row.experience for row in rows})}
    held = [row for row in experiences.values() if row.level == HELD]
    levels = {seq: row.level for seq, row in experiences.items()} | (row_levels(reader, held) if held else {})
    present = {row.id for row in reader.items(ids=edits.keys() if ids is None else ids)}
    learned: dict[str, list[int]] = {}
    for item in reader.items(ids=edits, ended=True):
        learned.setdefault(item.id, []).append(item.seq)
    found: dict[str, list[Use]] = {id: [] for id in ids or ()}
    for row in rows:
        user = experiences.get(row.experience)
        if user is None or levels[user.seq] == HELD:
            continue
        use = Use(
            experience_id=user.id,
            task_id=user.task_id,
            run_id=user.run_id,
            place=row.place,
            cited=row.cited,
            label=user.label,
            reward=user.reward,
            seq=user.seq,
            mark=said.get((row.subject, user.id)) or None,
        )
        *earlier, last = _versions(row.subject, row.experience, edits, learned)
        for id in {last, *(each for each in earlier if ids is not None and each not in present)}:
            if ids is None or id in found:
                found.setdefault(id, []).append(use)
    return {id: Uses(sorted(each, key=lambda use: use.seq)) for id, each in found.items()}


def _reached(ids: Iterable[str], steps: Mapping[str, Sequence[str]]) -> set[str]:
    """The ids, and all that ``steps`` lead to from them."""
    every, new = set[str](), set(ids)
    while new:
        every |= new
        new = {to for each in new for to in steps.get(each, ())} - every
    return every


def _versions(
    id: str, at: int, edits: Mapping[str, Sequence[Entry]], learned: Mapping[str, Sequence[int]]
) -> list[str]:
    """The ids that an item has had since ``at``, by edits in the order of their numbers.

    An edit before ``at`` counts too, unless the same was ``learned`` again between them: the item was read before it.
    """
    ids, followed = [id], set[int]()

    def follows(edit: Entry) -> bool:
        again = any(edit.seq < seq <= at for seq in learned.get(ids[-1], ()))
        return edit.seq not in followed and (edit.seq > at or not again)

    while edit := next(filter(follows, edits.get(ids[-1], ())), None):
        ids.append(edit.items[0])
        followed.add(edit.seq)
        at = max(at, edit.seq)
    return ids


def experiences_of(reader: Reader, rows: Iterable[ExperienceRow], scope: str) -> list[Experience]:
    """Return experiences with their current items. The rows must include their payload."""
    every = list(rows)
    seqs = [row.seq for row in every]
    rows_of: dict[int, list[ItemRow]] = {}
    for row in sorted(reader.items(experiences=seqs), key=lambda row: row.learned):
        rows_of.setdefault(row.experience, []).append(row)
    items = items_of(reader, {row.id for rows in rows_of.values() for row in rows}, scope)
    shown: dict[int, list[str]] = {}
    for use in reader.uses(experiences=seqs):
        shown.setdefault(use.experience, []).append(use.subject)
    approved = marked(reader, "experience", APPROVED)
    return [
        experience_of(
            row,
            unpack_rollouts(row.payload, f"experience {row.id}"),
            [items[each.id] for each in rows_of.get(row.seq, ()) if each.id in items],
            shown.get(row.seq, ()),
            scope,
            "owner" if row.seq in approved else LEVELS[row.level],
        )
        for row in every
    ]


def all_experiences(
    reader: Reader, scope: str, last: int | None = None, label: Label | None = None
) -> Iterator[Experience]:
    """Yield experiences, read in pages; ``reader`` must read a state that does not change. See ``MemoryBank``."""
    seqs = [row.seq for row in reader.experiences() if label in (None, row.label)]
    for rows in _pages(reader, seqs if last is None else seqs[max(0, len(seqs) - last) :], ended=False):
        yield from experiences_of(reader, rows, scope)


def experience_pages(reader: Reader, *, ended: bool) -> Iterator[list[ExperienceRow]]:
    """Yield the rows of experiences with their payloads, by pages."""
    return _pages(reader, [row.seq for row in reader.experiences(ended=ended)], ended=ended)


def _pages(reader: Reader, seqs: Sequence[int], *, ended: bool) -> Iterator[list[ExperienceRow]]:
    for start in range(0, len(seqs), _PAGE):
        yield reader.experiences(seqs=seqs[start : start + _PAGE], payload=True, ended=ended)


def snapshot_of(reader: Reader, row: SnapshotRow, scope: str) -> Snapshot:
    """Return a named state, which ``reader`` reads. Equal digests mean equal changes in the same order."""
    digest = sha256()
    for entry in reader.journal():
        value = (entry.note,) if entry.kind == "mark" else ()
        digest.update(repr((entry.seq, entry.kind, entry.subject, entry.items, *value)).encode())
    text = digest.hexdigest() if row.seq else ""
    return Snapshot(name=row.name, scope=scope, seq=row.seq, digest=text, created_at=row.created_at)


def versions_of(reader: Reader, id: str, *, earlier: bool = True) -> set[str]:
    """The ids of an item, and of its versions before and after edits."""
    ids, new = {id}, {id}
    while new:
        edits = reader.journal(subjects=new, kinds=["edit"])
        if earlier:
            edits += [entry for each in new for entry in reader.journal(item=each, kinds=["edit"])]
        new = {each for entry in edits for each in (entry.subject, *entry.items)} - ids
        ids |= new
    return ids


def current_ids(reader: Reader) -> dict[str, Sequence[str]]:
    """The items that edits replaced, and the items that have taken their places."""
    replaced = {entry.subject for entry in reader.journal(kinds=["edit"])}
    if not replaced:
        return {}
    present = {id for (id,) in reader.tally("items", ["id"])}
    every = replaced - present
    return {id: sorted(versions_of(reader, id, earlier=False) & present) or [id] for id in every}


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
            mark=entry.items[0] if entry.kind == "mark" else "",
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


def _item(given: ItemRows, scope: str, approved: Collection[int]) -> MemoryItem:
    """``given``: in the order in which they were learned."""
    first = given[0][0]
    is_approved = any(row.seq in approved for row, _ in given)
    return MemoryItem(
        id=first.id,
        scope=scope,
        seq=min(row.seq for row, _ in given),
        title=first.title,
        description=first.description,
        content=first.content,
        kind=first.kind,
        data=json.loads(first.data) if first.data != "{}" else {},
        level="owner" if is_approved else LEVELS[max(row.level for row, _ in given)],
        polarity=first.polarity,
        provenances=tuple(
            Provenance(
                experience_id=giver.id,
                task_id=giver.task_id,
                polarity=row.polarity,
                run_id=giver.run_id,
                distiller=giver.distiller,
                origin=giver.origin,
            )
            for row, giver in given
        ),
    )


def experience_of(
    row: ExperienceRow,
    rollouts: Rollouts | ExperienceDraft,
    items: Iterable[MemoryItem],
    shown: Sequence[str],
    scope: str,
    level: Level,
) -> Experience:
    """The experience of a row, with its rollouts, which are packed in the row."""
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
        level=level,
        reward=row.reward,
        submitted=rollouts.submitted,
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
    origin: str
    created_at: str
    """ISO 8601, UTC; when the first of them was recorded."""
    reward: float | None
    """Ground truth, from 0 to 1, if it was recorded: the mean."""
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
            what = f"pending rollout {id} of {group[0].key.task_id}"
            rollouts = [unpack_rollouts(row.payload, what) for row in group]
        except CorruptBank as exc:
            _log.warning("%s: skipped: %s", bank, exc)
            continue
        shown = dict.fromkeys(each for row in group for each in row.shown)
        rewards = [each.reward for each in rollouts if each.reward is not None]
        found.append(
            Pending(
                task=rollouts[0].task,
                trajectories=tuple(each.trajectories[0] for each in rollouts),
                run_id=group[0].key.run_id,
                shown=tuple(items[each] for each in shown if each in items),
                tries=last.tries,
                error=last.error,
                origin=min(group, key=lambda row: LEVELS.index(bank.trust.level(row.origin))).origin,
                created_at=min(row.created_at for row in group),
                reward=sum(rewards) / len(rewards) if rewards else None,
                bank=bank,
            )
        )
    return found
