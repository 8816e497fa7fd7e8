"""A store of banks in memory: what ``:memory:`` banks are kept in, and what forks and snapshots are."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import islice
from typing import Literal

from rb_dspy.bank import refusals, vectors
from rb_dspy.bank.interface import BankStore
from rb_dspy.bank.lineage import GivenRow, Member
from rb_dspy.bank.memory import descent, indexed, retractions, snapshots as memory_snapshots, writes as memory_writes
from rb_dspy.bank.memory.reindexing import Reindexing
from rb_dspy.bank.memory.stats import stats
from rb_dspy.bank.memory.timeline import Timeline
from rb_dspy.bank.memory.underlay import Underlay
from rb_dspy.bank.parts import BankStats, Changes, Finding, Giving, Match, NewExperience, NewItem, Source, Unit
from rb_dspy.bank.passes import PASSES, outrun
from rb_dspy.bank.pending import Key, Row, failed
from rb_dspy.errors import EmbedderMismatch, InputError, StorageError
from rb_dspy.protocols import Vectors
from rb_dspy.schema import Change, Experience, MemoryItem, Removal, Snapshot


class MemoryStore:
    """See ``BankStore``. Ends with the process; safe to use from threads. What it is given is kept, not copied.

    With a ``base`` it is an overlay: ``scope`` of the base as it was at ``at`` (None: as it is now), and what happens
    here goes on from that number. Neither sees what happens to the other later. Making one copies nothing and takes
    microseconds, whatever the size of the base; what is read from the base is read there each time. It has this one
    scope, no rollouts that wait in the base, and the base's embedder; ``changes`` gives only what happened here, its
    statistics are counted from lists, and ``removed`` in them is what was removed here. ``close`` does not close the
    base. With ``read_only`` every write raises ``StorageError``.

    Raises ``InputError`` for an ``at`` that the scope has not reached, and ``UnknownScope``.
    """

    def __init__(
        self,
        base: BankStore | None = None,
        scope: str | None = None,
        at: int | None = None,
        *,
        read_only: bool = False,
    ) -> None:
        self._base = base
        self._read_only = read_only
        self._lock = threading.RLock()
        self._version = 0
        self._embedder: tuple[str, int] | None = None
        """Whose the vectors are that are stored here; None before anything is, unless ``bind`` kept it."""
        self._held: tuple[str, int] | None = None
        """What this store is held to; see ``bind``."""
        self._timelines: dict[str, Timeline] = {}
        self._location = ":memory:"
        if (base is None) != (scope is None):
            raise InputError(
                "an overlay needs a base and one of its scopes; give both, or neither for a store of its own"
            )
        if base is not None and scope is not None:
            under = Underlay(base, scope, at)
            self._timelines[scope] = Timeline(scope, under)
            self._location = f"{base.location}@{under.at}"

    @property
    def location(self) -> str:
        """``:memory:``, or where the base is and the number that it is seen at."""
        return self._location

    @property
    def base(self) -> BankStore | None:
        """What this is an overlay of."""
        return self._base

    def bind(self, embedder_id: str, dimension: int, *, keep: bool = True) -> tuple[str, int]:
        with self._lock:
            found = self._belongs((embedder_id, dimension))
            if keep:
                self._embedder = self._embedder or found
            self._held = self._held or found
            return found

    def scopes(self) -> list[str]:
        with self._lock:
            return sorted(self._timelines)

    def add_scope(self, scope: str) -> None:
        with self._lock:
            if scope not in self._timelines:
                if self._base is not None:
                    raise InputError(f"{self.location}: has one scope only, not {scope!r}; add it to the bank itself")
                self._timelines[scope] = Timeline(scope, Underlay(None, scope, None))
                self._version += 1

    # What is written

    def place(
        self,
        scope: str,
        batch: Sequence[NewExperience],
        *,
        embedder: tuple[str, int] | None = None,
        refuse_removed: bool = False,
        meanwhile: Callable[[Callable[[], bool]], None] | None = None,
    ) -> Sequence[Experience]:
        packed = [memory_writes.packed(new) for new in batch]
        with self._lock:
            timeline = self._writing(scope)
            whose = self._whose(embedder)
            stored = [vector for each in packed for vector in (each.vector, *each.item_vectors) if vector is not None]
            self._check_lengths(stored, whose)
            if refuse_removed:
                known = timeline.have([new.id for new in batch])
                for new in batch:
                    found = timeline.attempt(new.run_id, new.task.id) if new.run_id else None
                    if new.id in known and timeline.experience(new.id) is None:
                        raise refusals.removed_since(self.location, new.task.id, new.id)
                    if found is not None and not found[1] and new.id not in known:
                        raise refusals.removed_since(self.location, new.task.id, found[0])
            if packed:
                self._bound_by_writing(whose)
            return memory_writes.append(timeline, packed, once=refuse_removed)

    def ready(self, *batches: Sequence[NewExperience]) -> Sequence[NewExperience]:
        return [new for batch in batches for new in batch]

    def record(self, scope: str, row: Row) -> None:
        with self._lock:
            timeline = self._writing(scope)
            found: tuple[str, bool] | None = None
            if row.key.run_id:
                found = timeline.attempt(row.key.run_id, row.key.task_id)
            elif timeline.have([row.key.content]):
                found = row.key.content, timeline.experience(row.key.content) is not None
            if found is None:
                timeline.pending.setdefault(row.key, row)
            elif not found[1]:
                raise refusals.removed_since(self.location, row.key.task_id, found[0])

    def fail(self, scope: str, run_id: str, task_id: str, rollout_ids: Collection[str], error: str) -> None:
        with self._lock:
            pending = self._writing(scope).pending
            for key, row in pending.items():
                meant = not rollout_ids or key.rollout_id in rollout_ids
                if meant and (key.run_id, key.task_id) == (run_id, task_id):
                    pending[key] = failed(row, error)

    def forget(self, scope: str, these: Sequence[Key]) -> None:
        with self._lock:
            timeline = self._writing(scope)
            for key in these:
                timeline.pending.pop(key, None)

    def edit(
        self,
        scope: str,
        id: str,
        new: NewItem,
        vector: Vectors,
        *,
        note: str,
        embedder: tuple[str, int] | None = None,
    ) -> MemoryItem:
        with self._lock:
            timeline = self._writing(scope)
            whose, data = self._whose(embedder), vectors.packed(vector)
            self._check_lengths([data], whose)
            edited = memory_writes.edit(timeline, id, new, data, note, self.location)
            self._bound_by_writing(whose)
            return edited

    def remove(
        self,
        scope: str,
        *,
        kind: Literal["delete", "rollback"],
        source: Source,
        descendants: bool,
        note: str,
        dry_run: bool = False,
    ) -> Removal:
        with self._lock:
            timeline = self._timeline(scope) if dry_run else self._writing(scope)
            return memory_writes.remove(timeline, kind, source, descendants=descendants, note=note, dry_run=dry_run)

    def snapshot(self, scope: str, name: str, created_at: str) -> Snapshot:
        with self._lock:
            return memory_snapshots.snapshot(self._writing(scope), name, created_at, self.location)

    def reindex(self, embedder_id: str, dimension: int, embed: Callable[[Sequence[str]], Vectors]) -> int:
        if self._base is not None:
            raise StorageError(f"{self.location}: has its base's vectors; re-index the bank itself, and fork it again")
        reindexing = Reindexing(self._timelines, (embedder_id, dimension), embed)
        for passed in range(PASSES + 1):  # until nothing was appended meanwhile
            with self._lock:
                missing = reindexing.missing()
                if not missing:
                    self._embedder = self._held = embedder_id, dimension
                    self._version += 1
                    return reindexing.put()
            if passed < PASSES:
                reindexing.make(missing)
        raise outrun(self.location)

    def mend(self, embedder_id: str, dimension: int, embed: Callable[[Sequence[str]], Vectors]) -> int:
        """Nothing rots in memory."""
        with self._lock:
            self._whose((embedder_id, dimension))
        return 0

    def renewals(self) -> int:
        return 0

    # What is read

    def mark(self, scope: str) -> int:
        with self._lock:
            return self._timeline(scope).mark

    def settled(self, scope: str, at: int) -> int:
        with self._lock:
            return self._timeline(scope).settled(at)

    def have(self, scope: str, ids: Sequence[str]) -> set[str]:
        with self._lock:
            return self._timeline(scope).have(ids)

    def experience(self, scope: str, id: str, at: int | None = None) -> Experience | None:
        with self._lock:
            return self._timeline(scope).experience(id, at)

    def latest(self, scope: str, task_id: str, at: int | None = None) -> Experience | None:
        with self._lock:
            return self._timeline(scope).latest(task_id, at)

    def experiences(self, scope: str, *, after: int, limit: int, at: int | None = None) -> list[Experience]:
        with self._lock:
            return list(islice(self._timeline(scope).experiences(after, at), limit))

    def item(self, scope: str, id: str, at: int | None = None) -> MemoryItem | None:
        with self._lock:
            return self._timeline(scope).item(id, at)

    def item_rows(self, scope: str, unit: Unit, id: str, at: int | None = None) -> list[Giving]:
        with self._lock:
            return self._timeline(scope).item_rows(unit, id, at)

    def members(self, scope: str, source: Source, at: int | None = None) -> list[Member]:
        with self._lock:
            return descent.members(self._timeline(scope), source, at)

    def rows(self, scope: str, of: str | int, at: int | None = None) -> list[GivenRow]:
        with self._lock:
            return descent.rows(self._timeline(scope), of, at)

    def items_with(self, scope: str, digests: Sequence[str], at: int | None = None) -> dict[str, str]:
        with self._lock:
            return self._timeline(scope).items_with(digests, at)

    def retracted(self, scope: str, digests: Sequence[str], at: int | None = None) -> dict[str, Change]:
        with self._lock:
            return retractions.retracted(self._timeline(scope), digests, at)

    def items(self, scope: str, at: int | None = None) -> list[MemoryItem]:
        with self._lock:
            return self._timeline(scope).items(at)

    def edited(self, scope: str, at: int | None = None) -> set[str]:
        with self._lock:
            return self._timeline(scope).edited(at)

    def count(self, scope: str, at: int | None = None) -> int:
        with self._lock:
            return self._timeline(scope).count(at)

    def task_ids(self, scope: str, at: int | None = None) -> set[str]:
        with self._lock:
            return self._timeline(scope).task_ids(at)

    def pending(self, scope: str, run_id: str | None = None, task_id: str | None = None) -> list[Row]:
        with self._lock:
            return [
                row
                for key, row in self._timeline(scope).pending.items()
                if run_id in (None, key.run_id) and task_id in (None, key.task_id)
            ]

    def pending_keys(self, scope: str) -> list[Key]:
        with self._lock:
            return list(self._timeline(scope).pending)

    def learned(self, scope: str, run_id: str, at: int | None = None) -> set[str]:
        with self._lock:
            return self._timeline(scope).learned(run_id, at)

    def attempt(self, scope: str, run_id: str, task_id: str) -> tuple[str, bool] | None:
        with self._lock:
            return self._timeline(scope).attempt(run_id, task_id)

    def snapshots(self, scope: str) -> list[Snapshot]:
        with self._lock:
            return memory_snapshots.snapshots(self._timeline(scope))

    def history(self, scope: str, id: str) -> list[Change]:
        with self._lock:
            return self._timeline(scope).history(id)

    def changes(self, scope: str, unit: Unit, *, after: int, limit: int) -> Changes:
        with self._lock:
            timeline = self._timeline(scope)
            whose = self._whose()
            if whose is not None:
                dimension = whose[1]
            elif self._base is not None:
                dimension = self._base.changes(scope, unit, after=timeline.under.at, limit=1).added.vectors.shape[1]
            else:
                dimension = 1  # nothing says, and there is nothing
            return indexed.changes(timeline, unit, dimension, after=after, limit=limit)

    def version(self) -> int:
        return self._version

    def texts(self, scope: str, unit: Unit, *, after: int, limit: int) -> list[tuple[int, str]]:
        with self._lock:
            return indexed.texts(self._timeline(scope), unit, after=after, limit=limit)

    def matches(self, scope: str, unit: Unit, seqs: Sequence[int], at: int | None = None) -> dict[int, Match]:
        with self._lock:
            return indexed.matches(self._timeline(scope), unit, seqs, at)

    def digest(self, scope: str, at: int) -> str:
        with self._lock:
            return self._timeline(scope).digest(at)

    def stats(self, scope: str) -> BankStats:
        with self._lock:
            timeline = self._timeline(scope)
            whose = self._embedder if self._base is None else self._held
            if self._base is not None and whose is None:
                below = self._base.stats(scope)
                whose = below.embedder, below.dimension
            return stats(timeline, whose or ("", 0))

    def check(self) -> Iterator[Finding]:
        """Nothing rots in memory."""
        return iter(())

    def close(self) -> None:
        """Nothing to let go of: forks may live on."""

    def _timeline(self, scope: str) -> Timeline:
        if scope not in self._timelines:
            raise refusals.no_scope(self.location, scope)
        return self._timelines[scope]

    def _writing(self, scope: str) -> Timeline:
        """The scope, to be changed."""
        timeline = self._timeline(scope)
        if self._read_only:
            raise StorageError(f"{self.location}: a snapshot is read-only; fork() it, or open the bank without at")
        self._version += 1
        return timeline

    def _belongs(self, given: tuple[str, int]) -> tuple[str, int]:
        """The embedder that the bank belongs to, this one where it has none yet."""
        mine = self._embedder or given
        return mine if self._base is None else self._base.bind(*mine, keep=False)

    def _whose(self, given: tuple[str, int] | None = None) -> tuple[str, int] | None:
        """Whose vectors may be stored here and found: this store's embedder, and of a fork its base's as well.

        None where nobody has said. Raises ``EmbedderMismatch``, also where ``given`` is another one.
        """
        whose = given or self._held or self._embedder
        if whose is None:
            return None
        now = self._belongs(whose)
        mine = now if self._base is None else self._held or now
        if mine != now:
            raise EmbedderMismatch(
                f"{self.location}: forked from a bank of {mine[0]!r}, which is now of {now[0]!r}; fork it again"
            )
        if whose != now:
            raise refusals.another_embedder(self.location, now, whose)
        return whose

    def _check_lengths(self, packed: Sequence[bytes], whose: tuple[str, int] | None) -> None:
        if whose is not None:
            vectors.check_lengths(set(map(len, packed)), whose, self.location)

    def _bound_by_writing(self, whose: tuple[str, int] | None) -> None:
        """What is stored first binds the bank; in a fork it binds only the fork."""
        self._embedder = self._embedder or whose
        if self._base is not None:
            self._held = self._held or whose
