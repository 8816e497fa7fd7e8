"""What lies under an overlay: one scope of a store as it was at a number, whatever happened there since."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from rb_dspy.bank.admission import text_digest
from rb_dspy.bank.interface import BankStore, Match, NewItem, Unit
from rb_dspy.bank.memory.rows import FOREVER, ItemRow
from rb_dspy.errors import CorruptBank, InputError
from rb_dspy.schema import Change, Experience, MemoryItem, Snapshot

_PAGE = 500
_PROBE = 16
"""Numbers that are looked at in one go for an item's row; few experiences give more items."""
_FAR = 10_000
"""How far from an experience or an edit its rows can be."""


class Underlay:
    """Reads of ``scope`` of ``base`` that never go beyond ``at``; without a base there is nothing, and ``at`` is 0.

    Nothing is copied or counted before it is asked for. Raises ``InputError`` for a number that was not reached yet,
    ``UnknownScope`` where the base has no such scope.
    """

    def __init__(self, base: BankStore | None, scope: str, at: int | None) -> None:
        self.base = base
        self._scope = scope
        mark = base.mark(scope) if base else 0
        self.at = mark if at is None else at
        if not 0 <= self.at <= mark:
            raise InputError(f"scope {scope!r}: number {at} is not between 0 and {mark}, what happened here so far")
        self._count: int | None = None

    def upto(self, at: int) -> int:
        """``at``, but never after this state."""
        return min(at, self.at)

    def experience(self, id: str, at: int = FOREVER) -> Experience | None:
        return self.base.experience(self._scope, id, self.upto(at)) if self.base else None

    def have(self, ids: Collection[str]) -> set[str]:
        """Those of ``ids`` that there is, was or will be an experience of."""
        return self.base.have(self._scope, list(ids)) if self.base and ids else set()

    def ended_experience(self, id: str) -> Experience | None:
        """An experience that had ended by now, as it was before; None for one that never was."""
        if self.base:
            for change in reversed(self.history(id)):
                if change.kind in ("delete", "rollback") and (found := self.experience(id, change.seq - 1)):
                    return found
        return None

    def experiences(self, after: int, at: int = FOREVER) -> Iterator[Experience]:
        """Those born after ``after``, in order."""
        while self.base and (page := self.base.experiences(self._scope, after=after, limit=_PAGE, at=self.upto(at))):
            yield from page
            after = page[-1].seq

    def of_task(self, task_id: str, at: int = FOREVER) -> Iterator[Experience]:
        """The experiences of a task, newest first."""
        before = self.upto(at)
        while self.base and (found := self.base.latest(self._scope, task_id, before)):
            # Alive at its own number, and perhaps no more at ours.
            if now := self.experience(found.id, at):
                yield now
            before = found.seq - 1

    def task_ids(self, at: int = FOREVER) -> set[str]:
        return self.base.task_ids(self._scope, self.upto(at)) if self.base else set()

    def item(self, id: str, at: int = FOREVER) -> MemoryItem | None:
        return self.base.item(self._scope, id, self.upto(at)) if self.base else None

    def items(self, at: int = FOREVER) -> list[MemoryItem]:
        return self.base.items(self._scope, self.upto(at)) if self.base else []

    def count(self, at: int = FOREVER) -> int:
        if not self.base:
            return 0
        if at < self.at:
            return self.base.count(self._scope, at)
        if self._count is None:
            self._count = self.base.count(self._scope, self.at)
        return self._count

    def item_rows(self, id: str) -> list[ItemRow]:
        """The live rows of an item, in order; none where there is no such item."""
        item = self.item(id)
        if item is None:
            return []
        # An edit gives an item new rows, right after its own number; what gained it since has its row after its own.
        edited = max((change.seq for change in self.history(id) if change.kind == "edit"), default=0)
        texts = item.title, item.description, item.content
        rows = []
        for provenance in item.provenances:
            experience = self.experience(provenance.experience_id)
            if experience is None:
                raise CorruptBank(f"item {id}: its experience {provenance.experience_id} cannot be found; run doctor")
            seq, match = self._row(id, provenance.experience_id, after=max(edited, experience.seq))
            rows.append(
                ItemRow(
                    seq=seq,
                    new=NewItem(id, text_digest(*texts), *texts),
                    polarity=item.polarity,
                    provenance=provenance,
                    experience=experience.seq,
                    instruction=match.instruction,
                )
            )
        if self.base and len(rows) > 1:
            for row in rows:
                added = self.base.changes(self._scope, "item", after=row.seq - 1, limit=1).added
                if len(added) and added.seqs[0] == row.seq:
                    row.polarity = "success" if added.successes[0] else "failure"
        return sorted(rows, key=lambda row: row.seq)

    def _row(self, id: str, experience_id: str, after: int) -> tuple[int, Match]:
        end = min(self.at, after + _FAR) + 1
        for start in range(after + 1, end, _PROBE):
            numbers = range(start, min(start + _PROBE, end))
            for seq, match in self.matches("item", numbers).items():
                if match.experience_id == experience_id and match.items[0].id == id:
                    return seq, match
        raise CorruptBank(f"item {id}: its row of experience {experience_id} cannot be found; run doctor")

    def snapshots(self) -> list[Snapshot]:
        found = self.base.snapshots(self._scope) if self.base else []
        return [snapshot for snapshot in found if snapshot.seq <= self.at]

    def history(self, id: str) -> list[Change]:
        found = self.base.history(self._scope, id) if self.base else []
        return [change for change in found if change.seq <= self.at]

    def texts(self, unit: Unit, *, after: int, limit: int) -> list[tuple[int, str]]:
        found = self.base.texts(self._scope, unit, after=after, limit=limit) if self.base and after < self.at else []
        return [(seq, text) for seq, text in found if seq <= self.at]

    def matches(self, unit: Unit, seqs: Sequence[int], at: int = FOREVER) -> dict[int, Match]:
        return self.base.matches(self._scope, unit, seqs, self.upto(at)) if self.base and seqs else {}

    def digest(self, at: int = FOREVER) -> str:
        return self.base.digest(self._scope, self.upto(at)) if self.base else ""
