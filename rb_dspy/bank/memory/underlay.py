"""What lies under an overlay: one scope of a store as it was at a number, whatever happened there since."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from rb_dspy.bank.interface import BankStore
from rb_dspy.bank.lineage import GivenRow, Member
from rb_dspy.bank.memory.rows import FOREVER
from rb_dspy.bank.parts import Giving, Match, Source, Unit
from rb_dspy.errors import InputError
from rb_dspy.schema import Change, Experience, MemoryItem, Snapshot

_PAGE = 500


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

    def ended_attempt(self, run_id: str, task_id: str) -> str | None:
        """The id of what a run had learned from a task, where that had ended by now."""
        for member in self.members(Source("run", run_id)):
            if not member.lives and (found := self.ended_experience(member.id)) and found.task.id == task_id:
                return member.id
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

    def learned(self, run_id: str, at: int = FOREVER) -> set[str]:
        return self.base.learned(self._scope, run_id, self.upto(at)) if self.base else set()

    def item(self, id: str, at: int = FOREVER) -> MemoryItem | None:
        return self.base.item(self._scope, id, self.upto(at)) if self.base else None

    def edited(self, at: int = FOREVER) -> set[str]:
        return self.base.edited(self._scope, self.upto(at)) if self.base else set()

    def items_with(self, digests: Sequence[str], at: int = FOREVER) -> dict[str, str]:
        return self.base.items_with(self._scope, digests, self.upto(at)) if self.base else {}

    def retracted(self, digests: Sequence[str], at: int = FOREVER) -> dict[str, Change]:
        return self.base.retracted(self._scope, digests, self.upto(at)) if self.base and digests else {}

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

    def item_rows(self, unit: Unit, id: str, at: int = FOREVER) -> list[Giving]:
        return self.base.item_rows(self._scope, unit, id, self.upto(at)) if self.base else []

    def members(self, source: Source, at: int = FOREVER) -> list[Member]:
        return self.base.members(self._scope, source, self.upto(at)) if self.base else []

    def rows(self, of: str | int, at: int = FOREVER) -> list[GivenRow]:
        return self.base.rows(self._scope, of, self.upto(at)) if self.base else []

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

    def settled(self, at: int) -> int:
        return min(self.at, self.base.settled(self._scope, at)) if self.base else at

    def digest(self, at: int = FOREVER) -> str:
        return self.base.digest(self._scope, self.upto(at)) if self.base else ""
