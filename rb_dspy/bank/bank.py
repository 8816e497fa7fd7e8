"""``MemoryBank``: what is admitted, what counts as the same, and what may be found."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Collection, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, Self

from rb_dspy import plugins
from rb_dspy.bank.admission import admit, checked_name, identity, item_text
from rb_dspy.bank.embedding import embed
from rb_dspy.bank.index import ExactIndex
from rb_dspy.bank.interface import BankStats, BankStore, Unit
from rb_dspy.bank.opening import open_store
from rb_dspy.errors import CorruptBank, InputError, StorageError
from rb_dspy.protocols import Embedder
from rb_dspy.schema import (
    Experience,
    MemoryDraft,
    MemoryItem,
    Polarity,
    Retrieved,
    State,
    Task,
    Trajectory,
    Verdict,
    visible,
)

DEFAULT_EMBEDDER = "minilm"

_PAGE = 500
"""Rows of one read: a long list is read in pages, so that no read transaction stays open for long."""
_VECTORS = 20_000


class MemoryBank:
    """One scope of a bank: experiences go in for good, and the nearest come out (paper, section 3.2).

    Make one with ``open``. Safe to use from threads and from asyncio, and beside other processes with the same file:
    what they append is found by the next ``retrieve``. Reading never writes. Nothing loads an embedding model but
    ``append`` with drafts and ``retrieve`` from a scope that holds lessons.

    A bank is a handle, like an open file: copying a program that holds one copies the reference, and it cannot be
    pickled or used after ``fork``; open the bank again there.
    """

    def __init__(self, store: BankStore, scope: str, embedder: Embedder, dimension: int) -> None:
        """For ``open`` and for tests of other stores; ``scope`` must exist in ``store``."""
        self.scope = scope
        self._opened: BankStore | None = store
        self._location = store.location
        self._embedder = embedder
        self._dimension = dimension
        self._indexes: dict[Unit, ExactIndex] = {"experience": ExactIndex(dimension), "item": ExactIndex(dimension)}
        self._indexing = threading.Lock()
        self._process = os.getpid()

    @classmethod
    def open(
        cls,
        url: str | Path | None = None,
        *,
        scope: str,
        embedder: Embedder | str | None = None,
        create: bool = True,
    ) -> MemoryBank:
        """The bank at ``url``: a path, or None or ``":memory:"`` for one that ends with ``close``.

        ``embedder``: one, or the name of one (see ``plugins.embedder``); None is ``"minilm"``. A bank belongs to the
        embedder it was made with. ``create=False`` looks only: neither the file nor the scope is made.

        Raises ``InputError`` (scope, url), ``UnknownScope``, ``EmbedderMismatch``, ``MissingDependency`` (embedder),
        ``CorruptBank``, ``SchemaTooNew``, ``StorageError``. A file that is refused is left as it was.
        """
        checked_name("scope", scope)
        chosen = plugins.embedder(embedder or DEFAULT_EMBEDDER) if isinstance(embedder, str | None) else embedder
        store, dimension = open_store(url, scope, chosen, create=create)
        return cls(store, scope, chosen, dimension)

    def append(
        self,
        task: Task,
        trajectory: Trajectory | Sequence[Trajectory],
        verdict: Verdict | Sequence[Verdict],
        drafts: Sequence[MemoryDraft],
        *,
        run_id: str = "",
        polarity: Polarity | None = None,
        distiller: str = "",
        state: State = "distilled",
        note: str = "",
        shown: Sequence[MemoryItem] = (),
    ) -> Experience:
        """Store an experience whole, with the items that its drafts become: durable when it returns, or not stored.

        The same attempt appended again (scope, ``run_id``, task id and rollout ids; without a run id also the same
        rollouts) gives what was stored the first time, unchanged. ``polarity`` of the items follows the verdict:
        success, else failure; of several verdicts one success decides. ``note`` says why there are no drafts.
        ``state="recorded"`` keeps rollouts that could not be judged or distilled, to be learned from later.
        ``shown``: what the agent had been given, kept with the verdict as exposures. An experience without items is
        kept and never retrieved.

        Raises ``InputError`` for parts that do not belong together, ``InvalidVector``, ``StorageError``, and whatever
        the embedder raises; then nothing was stored.
        """
        store = self._store
        new = admit(
            self.scope,
            task,
            (trajectory,) if isinstance(trajectory, Trajectory) else tuple(trajectory),
            (verdict,) if isinstance(verdict, Verdict) else tuple(verdict),
            drafts,
            run_id=run_id,
            polarity=polarity,
            distiller=distiller,
            state=state,
            note=note,
            shown=shown,
        )
        known = store.experience(self.scope, new.id)
        if known is not None:
            return known
        if not new.items:
            return store.append(self.scope, new, None, ())
        texts = [task.instruction, *map(item_text, new.items)]
        vector, *item_vectors = embed(self._embedder, texts, self._dimension)
        return store.append(self.scope, new, vector, item_vectors)

    def known(
        self, task: Task, trajectory: Trajectory | Sequence[Trajectory], *, run_id: str = ""
    ) -> Experience | None:
        """What ``append`` of these rollouts has stored already; None where nothing was learned from them yet."""
        rollouts = (trajectory,) if isinstance(trajectory, Trajectory) else tuple(trajectory)
        return self._store.experience(
            self.scope, identity(self.scope, task, rollouts, run_id=run_id, state="distilled")
        )

    def retrieve(
        self,
        query: str,
        k: int = 1,
        unit: Unit = "experience",
        min_score: float | None = None,
        exclude_tasks: Collection[str] = (),
    ) -> list[Retrieved]:
        """The ``k`` nearest, best first, with their cosine similarities; fewer only where this scope has no more.

        ``unit="experience"`` compares ``query`` with the instructions of the tasks (the paper's key) and gives each
        experience with all its items; ``"item"`` compares it with an item's title, description and content, and gives
        single items.
        Ranked after scope and ``exclude_tasks`` are applied, exactly. Among equal scores (to 1e-6) the newest is first.
        ``min_score`` leaves out what is less similar. The end of a text that is too long for the embedder is not read.
        """
        store = self._store
        if unit not in self._indexes:
            raise InputError(f"unit {unit!r}: expected 'experience' or 'item'")
        if not isinstance(query, str) or isinstance(exclude_tasks, str) or k < 0:
            raise InputError("retrieve takes a text, k of at least 0, and a collection of task ids to exclude")
        if k == 0:
            return []
        index = self._caught_up(store, unit)
        if not len(index):
            return []
        (vector,) = embed(self._embedder, [visible(query)], self._dimension)
        hits = index.search(vector, k, exclude_tasks=exclude_tasks, min_score=min_score)
        found: list[Retrieved] = []
        for start in range(0, len(hits), _PAGE):
            page = hits[start : start + _PAGE]
            matches = store.matches(self.scope, unit, [hit.seq for hit in page])
            for hit in page:
                match = matches.get(hit.seq)
                if match is None:
                    raise CorruptBank(f"{self._location}: number {hit.seq} is indexed, but its text is gone")
                found.append(
                    Retrieved(
                        score=hit.score,
                        experience_id=match.experience_id,
                        task_id=match.task_id,
                        instruction=match.instruction,
                        items=match.items,
                    )
                )
        return found

    async def aappend(
        self,
        task: Task,
        trajectory: Trajectory | Sequence[Trajectory],
        verdict: Verdict | Sequence[Verdict],
        drafts: Sequence[MemoryDraft],
        *,
        run_id: str = "",
        polarity: Polarity | None = None,
        distiller: str = "",
        state: State = "distilled",
        note: str = "",
        shown: Sequence[MemoryItem] = (),
    ) -> Experience:
        """``append`` in a thread, in the caller's context. Cancelling the await does not undo the append."""
        given: dict[str, Any] = {"run_id": run_id, "polarity": polarity, "distiller": distiller, "state": state}
        return await asyncio.to_thread(self.append, task, trajectory, verdict, drafts, note=note, shown=shown, **given)

    async def aretrieve(
        self,
        query: str,
        k: int = 1,
        unit: Unit = "experience",
        min_score: float | None = None,
        exclude_tasks: Collection[str] = (),
    ) -> list[Retrieved]:
        """``retrieve`` in a thread, in the caller's context."""
        return await asyncio.to_thread(self.retrieve, query, k, unit, min_score, exclude_tasks)

    def items(self) -> list[MemoryItem]:
        """All items, oldest first."""
        return self._store.items(self.scope)

    def experiences(self) -> list[Experience]:
        """All experiences with their whole trajectories, oldest first."""
        found: list[Experience] = []
        while page := self._store.experiences(self.scope, after=found[-1].seq if found else 0, limit=_PAGE):
            found += page
        return found

    def get(self, id: str) -> MemoryItem | Experience:
        """The item or experience with this id. Raises ``InputError`` where the scope has none."""
        wanted = visible(id)
        found = self._store.item(self.scope, wanted) or self._store.experience(self.scope, wanted)
        if found is None:
            raise InputError(f"{self._location}: scope {self.scope!r} has no item or experience {wanted[:40]!r}")
        return found

    def experience_of(self, task_id: str) -> Experience | None:
        """The newest experience of a task, None where there is none."""
        return self._store.latest(self.scope, visible(task_id))

    def seen_tasks(self, prefix: str = "") -> set[str]:
        """Ids of the tasks that were learned from here, with or without items, and that begin with ``prefix``.

        A task whose rollouts are only recorded is not among them.
        """
        return {task_id for task_id in self._store.task_ids(self.scope) if task_id.startswith(prefix)}

    def scopes(self) -> list[str]:
        """Names of all scopes of this bank."""
        return self._store.scopes()

    def stats(self) -> BankStats:
        """Counts of this scope, and what the bank is."""
        return self._store.stats(self.scope)

    def close(self) -> None:
        """Let go of the file. Twice is once."""
        store, self._opened = self._opened, None
        if store is not None:
            store.close()

    def __len__(self) -> int:
        return self._store.count(self.scope)

    def __bool__(self) -> bool:
        return True  # an empty bank is a bank: `bank or default` must not replace it

    def __repr__(self) -> str:
        return f"MemoryBank({self._location!r}, scope={self.scope!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self  # dspy deep-copies programs and their inputs; all copies mean the one bank

    def __reduce__(self) -> NoReturn:
        # TypeError, since that is what those who try pickle first and something else then expect
        raise TypeError("a MemoryBank is a handle and cannot be pickled; pass its path and open it there")

    @property
    def _store(self) -> BankStore:
        if self._opened is None:
            raise StorageError(f"{self._location}: this bank is closed; open it again")
        if self._process != os.getpid():
            raise StorageError(f"{self._location}: opened before a fork; open it again in this process")
        return self._opened

    def _caught_up(self, store: BankStore, unit: Unit) -> ExactIndex:
        """The index, with everything that any process has appended by now."""
        index = self._indexes[unit]
        with self._indexing:
            more = True
            while more:
                batch = store.vectors(self.scope, unit, after=index.mark, limit=_VECTORS)
                more = len(batch) == _VECTORS  # a batch that is not full was the last: no further look
                if batch:
                    index.add(batch)
        return index
