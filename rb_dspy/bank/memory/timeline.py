"""One scope in memory, as it is at any number: the rows that were born here, over what lies under them."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from operator import attrgetter

from rb_dspy.bank.memory.rows import ExperienceRow, ItemRow, place_after, together
from rb_dspy.bank.memory.underlay import Underlay
from rb_dspy.bank.parts import Giving, Unit
from rb_dspy.bank.pending import Key, Row
from rb_dspy.schema import Change, Experience, MemoryItem, Snapshot

_number = attrgetter("seq")


class Timeline:
    """What ``BankStore`` says of one scope, without locks; of its index, see ``indexed``; of its lineage, ``descent``.

    ``writes`` makes it longer, and ``snapshots`` names what it is; nothing else changes it but new vectors.


    An item of the store below is *adopted*, its rows copied, when something happens to it here; all else of below is
    looked up there each time. An ``at`` that is not after the underlay's is a question about the store below alone.
    """

    def __init__(self, scope: str, under: Underlay) -> None:
        self.scope = scope
        self.under = under
        self.mark = under.at
        self.born: list[ExperienceRow] = []
        """Experiences from here, by number."""
        self.ids: dict[str, ExperienceRow] = {}
        self.attempts: dict[tuple[str, str], list[ExperienceRow]] = {}
        """Experiences from here, by run and task."""
        self.viewers: dict[str, list[ExperienceRow]] = {}
        """Experiences from here, by the items that their agents had been shown."""
        self.rows: list[ItemRow] = []
        """Item rows from here, by number."""
        self.known: dict[str, list[ItemRow]] = {}
        """All rows of an item, by number: for items from here, and for adopted ones."""
        self.said: dict[str, list[ItemRow]] = {}
        """The rows of ``known``, by the digests of their texts and by number."""
        self.given: dict[int, list[ItemRow]] = {}
        """The rows of ``known`` that experiences of below gave, by the experience's number, in no order."""
        self._whole: tuple[int, dict[str, MemoryItem]] = 0, {}
        """Items of several rows as they were at the number that was asked for last."""
        self.gain = 0
        """How many more items there are than below."""
        self.away: dict[str, int] = {}
        """Experiences of the store below that were ended here, and when."""
        self.unindexed: dict[int, int] = {}
        """The same for their places in the index, by number."""
        self.endings: dict[Unit, list[tuple[int, int]]] = {"experience": [], "item": []}
        """When, and the number of the indexed row that ended, in order."""
        self.heads: list[tuple[int, bytes]] = []
        """Number and hash of each journal entry from here, after the head below once that was asked for."""
        self.journal: dict[str, list[Change]] = {}
        self.subjects: dict[int, str] = {}
        """What each edit and each removal from here meant, by their numbers."""
        self.names: dict[str, Snapshot] = {}
        self.pending: dict[Key, Row] = {}
        """Rollouts that were recorded here, oldest first."""

    # Items

    def adopted(self, id: str) -> list[ItemRow]:
        """All rows of an item that this timeline has, those of below among them from now on."""
        rows = self.known.get(id)
        if rows is None:
            rows = [
                ItemRow(below.seq, below.item, below.polarity, below.provenance, below.experience, below.instruction)
                for below in self.under.item_rows("item", id)
            ]
            if rows:
                self.known[id] = rows
                for row in rows:
                    insort(self.said.setdefault(row.new.digest, []), row, key=_number)
                    self.given.setdefault(row.experience, []).append(row)
        return rows

    def live_rows(self, id: str) -> list[ItemRow]:
        """The live rows of an item, which is adopted."""
        return [row for row in self.adopted(id) if row.lives(self.mark)]

    def item(self, id: str, at: int | None = None) -> MemoryItem | None:
        at = self.reached(at)
        if at <= self.under.at or id not in self.known:
            return self.under.item(id, at)
        return self.own_item(id, at)

    def item_rows(self, unit: Unit, id: str, at: int | None = None) -> list[Giving]:
        """See ``BankStore``."""
        at = self.reached(at)
        born = self.ids.get(id) if unit == "experience" else None
        own = born.rows if born is not None else self.known.get(id) if unit == "item" else None
        if own is not None and at > self.under.at:
            return [row.giving() for row in own if row.lives(at)]
        below = self.under.item_rows(unit, id, at)
        if unit == "item" or at <= self.under.at or not below:
            return below
        kept = [row for row in below if row.item.id not in self.known]
        here = [row.giving() for row in self.given.get(below[0].experience, ()) if row.lives(at)]
        return sorted([*kept, *here], key=_number)

    def items_with(self, digests: Sequence[str], at: int | None = None) -> dict[str, str]:
        at = self.reached(at)
        below = self.under.items_with(digests, at)
        if at < self.mark and at <= self.under.at:
            return below
        for id in below.values():
            self.adopted(id)
        return {digest: row.new.id for digest in digests if (row := self.says(digest, at))}

    def says(self, digest: str, at: int) -> ItemRow | None:
        """The earliest row of ``known`` with this text."""
        return next((row for row in self.said.get(digest, ()) if row.lives(at)), None)

    def items(self, at: int | None = None) -> list[MemoryItem]:
        at = self.reached(at)
        if at <= self.under.at:
            return self.under.items(at)
        own = [found for id in self.known if (found := self.own_item(id, at))]
        return sorted(chain((item for item in self.under.items() if item.id not in self.known), own), key=_number)

    def edited(self, at: int | None = None) -> set[str]:
        at = self.reached(at)
        here = {id for id, told in self.journal.items() if any(each.kind == "edit" and each.seq <= at for each in told)}
        return here | self.under.edited(at)

    def count(self, at: int | None = None) -> int:
        at = self.reached(at)
        if at <= self.under.at:
            return self.under.count(at)
        if at == self.mark:
            return self.under.count() + self.gain
        adopted = sum(rows[0].seq <= self.under.at for rows in self.known.values())
        return self.under.count() - adopted + sum(any(r.lives(at) for r in rows) for rows in self.known.values())

    # Experiences

    def experience(self, id: str, at: int | None = None) -> Experience | None:
        at = self.reached(at)
        row = self.ids.get(id)
        if row is not None:
            return self._own_experience(row, at) if row.lives(at) else None
        found = self.under.experience(id, at)
        return found and self._from_below(found, at)

    def have(self, ids: Iterable[str]) -> set[str]:
        """Those of ``ids`` that there ever was an experience of."""
        own = {id for id in ids if id in self.ids}
        return own | {id for id in self.under.have(set(ids) - own) if self.ever(id) is not None}

    def ever(self, id: str) -> Experience | None:
        """An experience as it is, or as it was before it ended; None where there never was one."""
        row = self.ids.get(id)
        if row is not None:
            return self._own_experience(row, min(self.mark, row.ended - 1))
        found = self.under.experience(id)
        if found is None:
            return self.under.ended_experience(id)
        return self._with_items(found, self.away.get(id, self.mark + 1) - 1)

    def latest(self, task_id: str, at: int | None = None) -> Experience | None:
        at = self.reached(at)
        for row in reversed(self.born):
            if row.new.task.id == task_id and row.lives(at):
                return self._own_experience(row, at)
        below = (self._from_below(found, at) for found in self.under.of_task(task_id, at))
        return next(filter(None, below), None)

    def experiences(self, after: int, at: int | None = None) -> Iterator[Experience]:
        """Those born after ``after``, in order."""
        at = self.reached(at)
        for found in self.under.experiences(after, at) if after < self.under.at else ():
            if (patched := self._from_below(found, at)) is not None:
                yield patched
        for row in self.born[place_after(self.born, after) :]:
            if row.lives(at):
                yield self._own_experience(row, at)

    def task_ids(self, at: int | None = None) -> set[str]:
        at = self.reached(at)
        found = self.under.task_ids(at)
        for id, ended in self.away.items():
            gone = self.under.experience(id) if ended <= at else None
            if gone is not None and all(self.away.get(e.id, at + 1) <= at for e in self.under.of_task(gone.task.id)):
                found.discard(gone.task.id)
        return found.union(row.new.task.id for row in self.born if row.lives(at))

    def attempt(self, run_id: str, task_id: str) -> tuple[str, bool] | None:
        """See ``BankStore``."""
        own = self.attempts.get((run_id, task_id), [])
        every = [(row.new.id, row.lives(self.mark)) for row in reversed(own)]
        if not any(lives for _, lives in every):
            below = (found for found in self.under.of_task(task_id) if found.run_id == run_id)
            every += [(found.id, found.id not in self.away) for found in below]
        gone = None if every else self.under.ended_attempt(run_id, task_id)
        every += [] if gone is None else [(gone, False)]
        return next((each for each in every if each[1]), every[0] if every else None)

    def learned(self, run_id: str, at: int | None = None) -> set[str]:
        """See ``BankStore``."""
        at = self.reached(at)
        found = {row.new.task.id for row in self.born if row.new.run_id == run_id and row.lives(at)}
        below = self.under.learned(run_id, at)
        gone = {each.task.id for id in self.away if (each := self.under.experience(id))}
        return found | (below - gone) | {task_id for task_id in below & gone if self._lives_below(run_id, task_id, at)}

    def _lives_below(self, run_id: str, task_id: str, at: int) -> bool:
        return any(
            found.run_id == run_id and self.away.get(found.id, at + 1) > at for found in self.under.of_task(task_id, at)
        )

    def removed(self) -> int:
        """How many experiences and items were ended here."""
        gone = sum(not any(row.lives(self.mark) for row in rows) for rows in self.known.values())
        return len(self.away) + sum(not row.lives(self.mark) for row in self.born) + gone

    # The journal

    def history(self, id: str) -> list[Change]:
        return [*self.under.history(id), *self.journal.get(id, ())]

    def settled(self, at: int) -> int:
        """See ``BankStore``."""
        at = self.reached(at)
        if at < self.under.at:
            return self.under.settled(at)
        following = (seq for seq, _ in self.heads if seq > at)
        return next(following, self.mark + 1) - 1

    def digest(self, at: int) -> str:
        at = self.reached(at)
        if at < self.under.at:
            return self.under.digest(at)
        self.head()
        return self.heads[bisect_right(self.heads, at, key=lambda head: head[0]) - 1][1].hex()

    def head(self) -> bytes:
        """The hash of the last entry; empty where there is none."""
        if not self.heads:
            self.heads.append((self.under.at, bytes.fromhex(self.under.digest())))
        return self.heads[-1][1]

    # How it is put together

    def reached(self, at: int | None) -> int:
        """The number that is meant: the present for None, and for one that is to come; 0 for one below."""
        return self.mark if at is None else max(0, min(at, self.mark))

    def own_item(self, id: str, at: int) -> MemoryItem | None:
        """An item that is ``known``, as it was at a number."""
        if self._whole[0] != at:
            self._whole = at, {}
        found = self._whole[1].get(id)
        if found is None:
            rows = [row for row in self.known[id] if row.lives(at)]
            found = together(self.scope, rows) if rows else None
            if found is not None and len(self.known[id]) > 1:
                self._whole[1][id] = found  # the state at a number never changes
        return found

    def _own_experience(self, row: ExperienceRow, at: int) -> Experience:
        new = row.new
        return Experience(
            id=new.id,
            scope=self.scope,
            seq=row.seq,
            task=new.task,
            trajectories=new.trajectories,
            verdicts=new.verdicts,
            items=self.own_items(row, at),
            run_id=new.run_id,
            note=new.note,
            origin=new.origin,
            shown=new.shown,
            created_at=new.created_at,
        )

    def own_items(self, row: ExperienceRow, at: int) -> tuple[MemoryItem, ...]:
        """The items of an experience from here."""
        found = (self.own_item(given.new.id, at) for given in row.rows if given.lives(at))
        return tuple(filter(None, found))

    def _from_below(self, found: Experience, at: int) -> Experience | None:
        if at <= self.under.at:
            return found
        return None if self.away.get(found.id, at + 1) <= at else self._with_items(found, at)

    def _with_items(self, found: Experience, at: int) -> Experience:
        """An experience of below, with what happened to its items here."""
        if self.known.keys().isdisjoint(item.id for item in found.items):
            return found
        return found.model_copy(update={"items": self.patched(found.items, found.seq, at)})

    def patched(self, items: Sequence[MemoryItem], experience: int, at: int) -> tuple[MemoryItem, ...]:
        """Items of an experience of below, by number of their rows: those that were edited here come last."""
        ordered: list[tuple[int, MemoryItem]] = []
        for place, item in enumerate(items):
            if item.id not in self.known:
                ordered.append((place - len(items), item))
                continue
            for row in self.given.get(experience, ()):
                if row.new.id == item.id and row.lives(at):
                    now = self.own_item(item.id, at)
                    ordered.append((place - len(items) if row.seq <= self.under.at else row.seq, now or item))
        return tuple(item for _, item in sorted(ordered, key=lambda pair: pair[0]))
