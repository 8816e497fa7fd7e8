"""``MemoryBank``: what is admitted, what counts as the same, and what may be found."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Collection, Iterable, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, Self

from rb_dspy.bank import given, handwritten, pending, portability, refusals
from rb_dspy.bank.admission import admit, checked_name, identity, now
from rb_dspy.bank.appending import append, append_all
from rb_dspy.bank.commands import bank_options
from rb_dspy.bank.current import Current
from rb_dspy.bank.duplicates import NearDuplicate, near_duplicates
from rb_dspy.bank.editing import edited
from rb_dspy.bank.embedding import embed
from rb_dspy.bank.interface import BankStore
from rb_dspy.bank.memory.store import MemoryStore
from rb_dspy.bank.opening import chosen_embedder, copy_store, marked, open_store, restore_store
from rb_dspy.bank.others import of_others
from rb_dspy.bank.parts import BankStats, Finding, Unit, item_text
from rb_dspy.bank.pending import Pending
from rb_dspy.bank.places import Order, ordered
from rb_dspy.bank.redaction import redact
from rb_dspy.bank.retraction import note_of, retracted
from rb_dspy.bank.retrieval import Finder, Mode
from rb_dspy.bank.sources import no_item, source_of, source_of_id, unknown
from rb_dspy.errors import BankError, StorageError
from rb_dspy.protocols import Embedder
from rb_dspy.schema import (
    Change,
    Experience,
    ExperienceDraft,
    MemoryDraft,
    MemoryItem,
    Polarity,
    Removal,
    Retrieved,
    Snapshot,
    Task,
    Trajectory,
    Verdict,
)

DEFAULT_EMBEDDER = "minilm"

_ERROR = 2_000
"""Characters that are kept of why learning failed."""


class MemoryBank:
    """One scope of a bank: experiences go in for good, and the nearest come out (paper, section 3.2).

    Make one with ``open``. Safe to use from threads and from asyncio, and beside other processes with the same file:
    what they append is found by the next ``retrieve``. Reading never writes. Nothing loads an embedding model but what
    writes lessons, and ``retrieve`` from a scope that holds some.

    A bank is a handle, like an open file: copying a program that holds one copies the reference, and it cannot be
    pickled or used after ``os.fork``; open the bank again there.
    """

    def __init__(self, store: BankStore, scope: str, embedder: Embedder, finder: Finder) -> None:
        """For ``open`` and ``fork``; ``scope`` must exist in ``store``."""
        self.scope = scope
        self._opened: BankStore | None = store
        self._location = store.location
        self._current = Current(embedder)
        self._finder = finder
        self._under: MemoryBank | None = None
        """For a bank that was opened at a snapshot: the bank below, which ends with it."""
        self._process = os.getpid()

    @classmethod
    def open(
        cls,
        url: str | Path | None = None,
        *,
        scope: str,
        embedder: Embedder | str | None = None,
        create: bool = True,
        at: str | int | None = None,
    ) -> MemoryBank:
        """The bank at ``url``: a path, or None or ``":memory:"`` for one that ends with ``close``.

        ``embedder``: one, or the name of one (see ``plugins.embedder``); None is ``"minilm"``. A bank belongs to the
        embedder it was made with. ``create=False`` looks only: neither the file nor the scope is made. A file
        that this user may not write is only read, and nothing is left beside it; what writes raises ``StorageError``.
        ``at``: the name of a snapshot, or a sequence number. What was the state then is what is found now, whatever
        happened since; such a bank refuses to be written, its ``fork`` does not.

        Raises ``InputError`` (scope, at, a url that is no path, such as that of a database server), ``UnknownScope``,
        ``EmbedderMismatch``, ``MissingDependency`` (embedder, SQLAlchemy), ``CorruptBank``, ``SchemaTooNew``,
        ``StorageError``. A file that is refused is left as it was.
        """
        checked_name("scope", scope)
        chosen = chosen_embedder(DEFAULT_EMBEDDER if embedder is None or embedder == "" else embedder)
        store, folder = open_store(url, scope, chosen, create=create and at is None)
        try:
            bank = cls(store, scope, chosen, Finder(store, scope, chosen, folder=folder))
            if at is None:
                return bank
            then = bank._overlay(marked(store, scope, at), read_only=True)
            then._under = bank
            return then
        except BaseException:
            store.close()
            raise

    @staticmethod
    def backup(url: str | Path, *, to: str | Path) -> None:
        """Copy the bank's file at ``url``, all scopes, to the new file ``to``: one file, on disk when it returns.

        Also while this process or others write to it: all is in it that was appended before, and what a process that
        was killed had left in the log. ``restore`` puts it back.

        Raises ``InputError`` (url, no file, something at ``to``), ``CorruptBank`` for what is no bank,
        ``StorageError``.
        """
        copy_store(url, to)

    @staticmethod
    def restore(url: str | Path, *, copy: str | Path) -> Path | None:
        """Put a copy of a bank, with its own log, in the place of the file at ``url``: on disk when it returns.

        What was there is never written over: its file, log and indexes are moved aside together; returns the path of
        that file now, None where there was nothing. ``copy`` is only read, and it is checked first, as ``doctor`` does.
        Copying a file over a bank by hand is not the same: a log that a process which was killed has left beside it
        would be mixed into the copy.

        Raises ``InputError`` (url, copy), ``CorruptBank`` for a copy that is damaged or no bank, ``SchemaTooNew``,
        ``StorageError`` where the bank is open anywhere, or the disk refuses. Then what was there is as it was.
        """
        return restore_store(url, copy)

    @property
    def embedder(self) -> Embedder:
        """What makes the vectors of this bank."""
        return self._current.embedder

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
        note: str = "",
        origin: str = "",
        shown: Sequence[MemoryItem] = (),
        again: bool = True,
    ) -> Experience:
        """Store an experience whole, with the items that its drafts become: durable when it returns, or not stored.

        The same attempt appended again (scope, ``run_id`` and task id; without a run id the same rollouts) gives what
        was stored the first time, unchanged. What was recorded of it is pending no more, in the same transaction.
        ``polarity`` of the items follows the verdict: success, else failure; of several verdicts one success decides.
        ``note`` says why there are no drafts. ``origin`` names who brought this, where it was not learned here.
        ``shown``: what the agent had been given of this scope's, kept with the verdict as exposures. A draft whose text
        an item of this scope has already becomes one more provenance of that item. ``again=False`` leaves out drafts
        that were taken away before (``retracted``), and the note says so. An experience without items is kept and never
        retrieved.

        Raises ``InputError`` for parts that do not belong together and for an attempt that was removed from the bank,
        ``InvalidVector``, ``StorageError``, and whatever the embedder raises; then nothing was stored, unless the disk
        failed: that says that it is not known.
        """
        dropped = {} if again else self.retracted(drafts)
        draft = given.drafted(
            self.scope,
            task,
            trajectory,
            verdict,
            [lesson for lesson in drafts if lesson not in dropped] if dropped else drafts,
            shown,
            run_id=run_id,
            polarity=polarity,
            distiller=distiller,
            note="; ".join(filter(None, [note, note_of(dropped)])) if dropped else note,
            origin=origin,
        )
        return self._append(draft)

    def retracted(self, drafts: Sequence[MemoryDraft]) -> dict[MemoryDraft, Change]:
        """The drafts that say, word for word, what somebody took away from this scope, by a delete or a rollback of
        that very item or by an edit of it, and that no item says now; with what took each of them away.
        """
        return retracted(self._store, self.scope, given.each("drafts", drafts, MemoryDraft))

    def add(self, title: str, content: str, description: str = "", origin: str = "user") -> MemoryItem:
        """Store a lesson that a person wrote. It is found by its own text, and its polarity is success.

        The same text written twice is one item. Raises ``InputError`` for an empty title or content, and like
        ``append``.
        """
        lesson = handwritten.draft_of(title, content, description)
        item = handwritten.stored_by_hand(self._store, self.scope, lesson)
        if item is None:
            draft = handwritten.experience_of(self._store, self.scope, lesson, origin=checked_name("origin", origin))
            (item,) = self._append(draft).items
        return item

    def record(self, task: Task, trajectory: Trajectory, *, run_id: str = "", shown: Sequence[MemoryItem] = ()) -> None:
        """Keep a rollout that is to be learned from: on disk when it returns, whole, and ``pending`` until ``append``.

        The same rollout recorded again changes nothing: in a run that is the same task and rollout id, without one the
        same content. Nor does a rollout of an attempt that was learned from (see ``append``). ``shown``: what the agent
        had been given of this scope's.

        Raises ``InputError`` for parts that do not belong together and for an attempt that was removed from the bank,
        ``StorageError`` where the bank cannot be written.
        """
        (rollout,) = given.rollouts(task, [trajectory])
        items = given.ids_of(self.scope, shown)
        self._store.record(self.scope, pending.row(self.scope, task, rollout, run_id=run_id, shown=items))

    def record_failure(self, task: Task, error: str, *, run_id: str = "", rollout_ids: Collection[str] = ()) -> None:
        """Count a failed try to learn from what is pending of a task and a run, and keep ``error``, without keys.

        ``rollout_ids``: of these rollouts only. Where none is pending nothing happens.
        """
        meant = [given.text("rollout id", id) for id in given.several("rollout_ids", rollout_ids)]
        said = redact(given.text("error", error))[:_ERROR]
        self._store.fail(self.scope, given.text("run id", run_id), given.task_of(task).id, meant, said)

    def learned(self, run_id: str) -> set[str]:
        """Ids of the tasks that a run has learned from here, with or without items."""
        return self._store.learned(self.scope, given.text("run id", run_id))

    def append_many(self, drafts: Iterable[ExperienceDraft]) -> Sequence[Experience]:
        """``append`` for many: read, embedded and stored in pages of 2,048, each of them whole or not at all.

        The next page is made ready while one is being stored. What was stored before an error stays; doing it again
        repeats nothing. What was removed from the bank stays away: what comes back for such a one is what it was. Each
        experience that comes back is put together when it is first looked at.
        """
        admitted = (admit(self.scope, draft) for draft in given.many(drafts))
        return append_all(self._store, self.scope, self._current, admitted)

    def pending(self, *, run_id: str | None = None, task_id: str | None = None) -> list[Pending]:
        """What was recorded and not learned from yet, oldest first: all, or what is of a run, of a task, of both.

        In a run the rollouts of a task are one, without a run (``run_id=""``) each rollout is by itself. Others may be
        learning from it right now.
        """
        store, items = self._store, dict[str, MemoryItem | None]()
        rows = {row.key: row for row in store.pending(self.scope, run_id, task_id)}
        every = []
        for group in pending.grouped(rows):
            here = pending.ordered([rows[key] for key in group])
            ids = dict.fromkeys(id for row in here for id in row.shown)
            items |= {id: store.item(self.scope, id) for id in ids if id not in items}
            every.append(pending.together(here, [item for id in ids if (item := items[id])], self))
        return every

    def known(
        self, task: Task, trajectory: Trajectory | Sequence[Trajectory], *, run_id: str = ""
    ) -> Experience | None:
        """What ``append`` of these rollouts has stored already; None where nothing was learned from them yet."""
        id = identity(self.scope, task, given.rollouts(task, trajectory), run_id=run_id)
        if run_id and (attempt := self._store.attempt(self.scope, run_id, task.id)):
            id = attempt[0]
        return self._store.experience(self.scope, id)

    def retrieve(
        self,
        query: str | Task,
        k: int = 1,
        unit: Unit = "experience",
        min_score: float | None = None,
        exclude_tasks: Collection[str] = (),
        *,
        polarity: Polarity | None = None,
        mode: Mode = "dense",
    ) -> list[Retrieved]:
        """The ``k`` nearest, best first; fewer only where this scope has no more.

        ``query``: a text; or a ``Task``, for which its instruction is asked, and lessons that a task of its id gave
        first are left out, as in ``ReasoningBank.recall``.

        ``unit="experience"`` compares ``query`` with the instructions of the tasks (the paper's key) and gives each
        experience with all its items; ``"item"`` compares it with an item's title, description and content, and gives
        single items. ``mode="dense"`` compares meaning (cosine of embeddings), ``"lexical"`` words (BM25), ``"hybrid"``
        both, by reciprocal rank.
        Ranked after scope, ``exclude_tasks`` and ``polarity`` are applied, which never leaves a place empty; of several
        experiences that gave a lesson, one that passes is enough. Dense ranking is exact (for vectors of half
        precision) up to some thousand rows. Up to 131,072 all rows are read wherever codes of them leave a doubt:
        no proof, but none of 109,000 queries of rows made to mislead it missed one (``experiments/bank/mislead.py``).
        Beyond, 98 to 100 of 100 places are those of exact search on a million clustered texts (``recall.py`` beside
        it). Among equal scores (to 1e-5) the newest is first.
        ``min_score`` leaves out what is less similar by cosine; the other modes have none. The end of a text that is
        too long for the embedder is not read.
        """

        def look(text: str, number: int, excluded: Collection[str]) -> list[Retrieved]:
            return self._found.find(text, number, unit, min_score, excluded, polarity, mode)

        def found(_: Embedder) -> list[Retrieved]:
            if isinstance(query, Task):
                return of_others(look, query, k, exclude_tasks)
            return look(query, k, exclude_tasks)

        return self._current.settled(found)

    async def aappend(
        self,
        task: Task,
        trajectory: Trajectory | Sequence[Trajectory],
        verdict: Verdict | Sequence[Verdict],
        drafts: Sequence[MemoryDraft],
        **more: Any,
    ) -> Experience:
        """``append`` in a thread, in the caller's context. Cancelling the await does not undo the append."""
        return await asyncio.to_thread(self.append, task, trajectory, verdict, drafts, **more)

    async def aretrieve(
        self,
        query: str | Task,
        k: int = 1,
        unit: Unit = "experience",
        min_score: float | None = None,
        exclude_tasks: Collection[str] = (),
        **more: Any,
    ) -> list[Retrieved]:
        """``retrieve`` in a thread, in the caller's context."""
        return await asyncio.to_thread(self.retrieve, query, k, unit, min_score, exclude_tasks, **more)

    def items(self, *, order: Order = "number") -> list[MemoryItem]:
        """All items, oldest first. An edit gives an item a new number, and so the last place, unless ``order`` is
        ``"learned"``: then it stands where it was learned, among the others of its experience.
        """
        return ordered(self._store, self.scope, order)

    def experiences(self) -> list[Experience]:
        """All experiences with their whole trajectories, oldest first."""
        return list(portability.experiences(self._store, self.scope))

    def get(self, id: str) -> MemoryItem | Experience:
        """The item or experience with this id. Raises ``InputError`` where the scope has none."""
        wanted = given.id_(id)
        found = self._store.item(self.scope, wanted) or self._store.experience(self.scope, wanted)
        if found is None:
            raise unknown(self._store, self.scope, wanted, "item or experience")
        return found

    def experience_of(self, task_id: str, run_id: str | None = None) -> Experience | None:
        """The newest experience of a task, of this run where one is named; None where there is none."""
        store, wanted = self._store, given.id_(task_id)
        found = store.latest(self.scope, wanted)
        while found is not None and run_id is not None:
            if found.run_id == run_id and (now := store.experience(self.scope, found.id)) is not None:
                return now
            found = store.latest(self.scope, wanted, found.seq - 1)  # alive then, and perhaps no more
        return found

    def seen_tasks(self, prefix: str = "") -> set[str]:
        """Ids of the tasks that were learned from here, with or without items, and that begin with ``prefix``.

        A task whose rollouts are only pending is not among them.
        """
        begins = given.text("prefix", prefix)
        return {task_id for task_id in self._store.task_ids(self.scope) if task_id.startswith(begins)}

    def scopes(self) -> list[str]:
        """Names of all scopes of this bank."""
        return self._store.scopes()

    def stats(self) -> BankStats:
        """Counts of this scope, and what the bank is."""
        return self._store.stats(self.scope)

    def near_duplicates(self, min_score: float = 0.9) -> list[NearDuplicate]:
        """Pairs of items whose cosine is at least ``min_score``, nearest first, each with both texts.

        Nothing is ever merged on similarity: a negated lesson is nearer to the original than a paraphrase is.
        """
        return near_duplicates(self._store, self.scope, min_score)

    def edit(
        self,
        id: str,
        *,
        title: str | None = None,
        description: str | None = None,
        content: str | None = None,
        note: str = "",
    ) -> MemoryItem:
        """Give an item another text, wherever it is shown; the text before it stays in ``history``. ``note`` says why.

        A text that is what the item says already changes nothing and is not in ``history``. Raises ``InputError`` where
        there is no such item, for an experience, for an empty title or content, for what is longer than a
        ``MemoryDraft`` may be, and where another item says exactly this.
        """
        wanted = given.id_(id)
        item = self._store.item(self.scope, wanted)
        if item is None:
            raise no_item(self._store, self.scope, wanted)
        new = edited(self.scope, item, title=title, description=description, content=content)
        if new is None:
            return item

        def stored(embedder: Embedder) -> MemoryItem:
            (vector,) = embed(embedder, [item_text(new)], embedder.dimension)
            whose = embedder.id, embedder.dimension
            return self._store.edit(self.scope, new.id, new, vector, note=given.text("note", note), embedder=whose)

        return self._current.settled(stored)

    def delete(self, id: str, *, note: str = "", dry_run: bool = False) -> Removal:
        """Take away an item, an experience with its items, or pending rollouts; the history of the first two stays.

        An item that another experience gave as well outlives an experience. What is damaged can be taken away too.
        ``dry_run`` tells what would go. Raises ``InputError`` for an unknown id.
        """
        store, wanted = self._store, given.id_(id)
        for group in pending.grouped(store.pending_keys(self.scope)):
            if pending.group_id(self.scope, group) == wanted:
                if not dry_run:
                    store.forget(self.scope, group)
                return Removal(pending=(wanted,))
        return store.remove(
            self.scope,
            kind="delete",
            source=source_of_id(store, self.scope, wanted),
            descendants=False,
            note=given.text("note", note),
            dry_run=dry_run,
        )

    def rollback(self, source: str, *, descendants: bool = True, note: str = "", dry_run: bool = False) -> Removal:
        """Take away what came from ``source``, with all that descends from it: what was learned under its influence.

        ``source``: the id of an experience or item, ``run:NAME``, or ``origin:NAME``. An experience descends from an
        item when its agent had been shown it. An item that another experience gave as well stays, unless all of those
        had been shown it: they only repeat it. Descent is followed through what was deleted or rolled back before, and
        may begin there. ``dry_run`` tells what would go. History stays; snapshots too.
        Raises ``InputError`` for a source of which nothing is here.
        """
        meant = source_of(self._store, self.scope, given.id_(source), descendants=descendants)
        return self._store.remove(
            self.scope,
            kind="rollback",
            source=meant,
            descendants=descendants,
            note=given.text("note", note),
            dry_run=dry_run,
        )

    def history(self, id: str) -> list[Change]:
        """What happened to an experience or an item, oldest first, also when it is gone."""
        wanted = given.id_(id)
        found = self._store.history(self.scope, wanted)
        if not found:
            raise unknown(self._store, self.scope, wanted, "item or experience, nor ever had one,")
        return found

    def fork(self) -> MemoryBank:
        """A private copy of the bank as it is now: what either learns from here on, the other never sees.

        Copy on write, in less than a millisecond whatever the size, in memory only; ends with this bank. It shares the
        indexes of this bank, and finds what a bank of its content would, by words too.
        """
        return self._overlay(self._store.mark(self.scope), read_only=False)

    def snapshot(self, name: str) -> Snapshot:
        """Name the present state, for good; ``open(..., at=name)`` gives it back exactly.

        The same name for the same state is the same snapshot; for another state it raises ``InputError``.
        """
        return self._store.snapshot(self.scope, checked_name("snapshot", name), now())

    def snapshots(self) -> list[Snapshot]:
        """All snapshots of this scope, in order."""
        return self._store.snapshots(self.scope)

    def export_jsonl(self, path: str | Path) -> int:
        """Write this scope's experiences to a JSON Lines file, whole; returns how many. See ``portability``."""
        return portability.write(self._store, self.scope, given.file(path))

    def import_jsonl(self, path: str | Path, *, origin: str = "") -> Sequence[Experience]:
        """Append what ``export_jsonl`` wrote, with its provenance; what is here already is not repeated.

        Nor is what was deleted or rolled back here: it stays away, and what comes back for such a one is what it was.
        Lessons that were edited here stay as they are here.

        ``origin`` marks all of it, so that ``rollback("origin:...")`` can take it away again. The whole file is checked
        before any of it is stored. Raises ``InputError`` naming the line that cannot be used.
        """
        named = checked_name("origin", origin) if origin else ""
        checked = portability.read(given.file(path), self.scope, origin=named, store=self._store)
        return append_all(self._store, self.scope, self._current, checked)

    def reindex(self, embedder: Embedder | str | None = None) -> int:
        """Make new what is derived, with ``embedder`` where the bank is to belong to another; returns the vectors made.

        That is the index, and of all scopes what was damaged or lost and can be made of the rest: what ids are found
        by, and vectors whose texts are there, by the bank's own embedder. Whoever has the bank open elsewhere finds the
        latter when it is opened again.

        All scopes of the bank change over to another embedder at once; until then it works as before, and goes on so
        where this raises what the embedder does, ``InvalidVector``, or ``StorageError``: of the disk, or since others
        append so steadily that there is never a moment to change over. What is damaged is mended after that, and
        indexes are saved: what those raise finds the bank changed. Whoever has the bank open elsewhere with the old
        one, and its forks, get ``EmbedderMismatch`` and have to open it again. A fork has no index of its own to make:
        ``StorageError``.
        """
        store = self._store
        if store.base is not None:
            raise StorageError(f"{self._location}: a fork or a snapshot has no index of its own; reindex the bank")
        chosen = self._current.embedder if embedder is None else chosen_embedder(embedder)
        vectors = partial(embed, chosen, dimension=chosen.dimension)
        made = 0
        with self._current.moving:
            if embedder is not None:
                made = store.reindex(chosen.id, chosen.dimension, vectors)
                self._finder = self._finder.anew(chosen)
                self._current.embedder = chosen
            try:
                mended = store.mend(chosen.id, chosen.dimension, vectors)
                if made or mended:
                    self._finder.forget(store.scopes())
            finally:
                self._finder = self._finder.anew(chosen)  # what it has read lacks what was mended, also before an error
        self._finder.build()
        return made + mended

    def doctor(self) -> list[Finding]:
        """Read everything, of all scopes, and tell what is wrong and what to do about it; empty when all is well."""
        found = [*self._store.check()]
        try:
            return [*found, *self._finder.check()]
        except BankError as exc:
            again = f"rb-dspy bank reindex{bank_options(self._location, self.scope)}"
            where, remedy = f"scope {self.scope!r}: index", f"mend what else was found, then {again}"
            return [*found, Finding(severity="error", kind="index", where=where, what=str(exc), remedy=remedy)]

    def close(self) -> None:
        """Let go of the file. Twice is once. Its forks end too."""
        store, self._opened = self._opened, None
        with contextlib.ExitStack() as ending:  # the last first, and each whatever those before it raise, Ctrl-C too
            if self._under is not None:
                ending.callback(self._under.close)
            if store is not None:
                ending.callback(store.close)
                why = refusals.closed(self._location)
                ending.callback(self._finder.retire, why)

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
            raise refusals.closed(self._location)
        if self._process != os.getpid():
            raise refusals.left_behind(self._location)
        return self._opened

    @property
    def _found(self) -> Finder:
        self._store  # noqa: B018  raises for a bank that is closed, or that a fork left behind
        return self._finder

    def _append(self, draft: ExperienceDraft) -> Experience:
        return append(self._store, self.scope, self._current, admit(self.scope, draft))

    def _overlay(self, at: int, *, read_only: bool) -> MemoryBank:
        store = MemoryStore(self._store, self.scope, at, read_only=read_only)
        embedder = self._current.embedder
        mine = embedder.id, embedder.dimension
        bound = store.bind(*mine)
        if bound != mine:
            raise refusals.another_embedder(self._location, bound, mine)
        return MemoryBank(store, self.scope, embedder, Finder(store, self.scope, embedder, over=self._finder))
