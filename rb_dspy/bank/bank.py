"""``MemoryBank``: one scope of a bank, as programs use it."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, NoReturn, Self

import pydantic

from rb_dspy import plugins
from rb_dspy.bank import admission, doctor, lineage, opening, purging, reading, recording, transfer, undeleting, writing
from rb_dspy.bank.doctor import BankStats, Finding, HeldItem, NearDuplicate, Origin
from rb_dspy.bank.embedding import embed, reindex
from rb_dspy.bank.reading import Pending
from rb_dspy.bank.removal import plan, unknown
from rb_dspy.bank.retrieval import Mode, Query, check, find
from rb_dspy.bank.search.searchers import OverlaySearcher, Searcher
from rb_dspy.bank.store.base import PendingRow, Unit
from rb_dspy.bank.store.overlay import Overlay, Scope
from rb_dspy.bank.store.sql import Database, SqlScope, scope_names
from rb_dspy.bank.store.sqlite import SqliteDatabase, restore
from rb_dspy.config import TrustConfig
from rb_dspy.errors import EmbedderMismatch, InputError, StorageError
from rb_dspy.protocols import Embedder, Vectors
from rb_dspy.redaction import redact
from rb_dspy.schema import (
    EVERY,
    LEVELS,
    Change,
    Experience,
    ExperienceDraft,
    Label,
    Mark,
    MemoryDraft,
    MemoryItem,
    Polarity,
    Removal,
    Retrieved,
    Snapshot,
    Task,
    Trajectory,
    Uses,
    Verdict,
)
from rb_dspy.text import counted, html_table, normalize

DEFAULT_EMBEDDER = "minilm"

_ERROR = 2_000
"""Maximum length of a stored error message, in characters."""


class MemoryBank:
    """One scope of a bank: experiences are appended, and the nearest lessons are retrieved (paper, section 3.2).

    Create one with ``open``. Threads and other processes may use the same bank at the same time: the next ``retrieve``
    finds what they appended. Reads write nothing. The embedding model is loaded when text is first embedded: listing,
    exporting and deleting do not need it.

    A bank is a handle, like an open file: copies of a program share it. It cannot be pickled or used after ``os.fork``;
    open the bank again in the new process.
    """

    def __init__(
        self,
        scope: Scope,
        searcher: Searcher,
        embedder: Embedder | None,
        trust: TrustConfig,
        database: Database | None = None,
    ) -> None:
        """Called by ``open`` and ``fork``. ``close`` closes ``database``; ``embedder`` None: the default one."""
        self.scope = scope.name
        self.trust = trust
        self._store = scope
        self._searcher = searcher
        self._embedder = embedder
        self._database = database

    @classmethod
    def open(
        cls,
        url: str | Path | None = None,
        *,
        scope: str,
        embedder: Embedder | str | None = None,
        create: bool = True,
        at: str | int | None = None,
        trust: TrustConfig | None = None,
    ) -> MemoryBank:
        """Open the bank at ``url``; create it if it is missing.

        Args:
            url: A path; ``postgresql://user:password@host:port/database``, which needs the extra ``postgres``; None or
                ``":memory:"`` for a bank in memory, which ``close`` deletes.
            scope: Name of the scope; scopes do not see each other.
            embedder: An embedder or the name of one (see ``plugins.embedder``); None: ``"minilm"``. A bank belongs to
                the embedder that created its first vectors.
            create: False: raise an error if the bank or the scope is missing.
            at: Name of a snapshot, or a sequence number: open that state, read-only (its ``fork`` is writable).
            trust: Which origins of lessons are trusted, and how far; decides when a lesson is stored, and how many
                places of a search an origin gets.

        Raises:
            InputError: An argument is not valid, or the snapshot does not exist.
            UnknownScope: ``create`` is False and the bank has no such scope.
            EmbedderMismatch: The bank belongs to another embedder.
            CorruptBank, SchemaTooNew, StorageError: The bank cannot be used, or is missing and ``create`` is False.
            MissingDependency: The extra for PostgreSQL is not installed.
        """
        admission.checked_name("scope", scope)
        chosen = None if embedder is None or embedder == "" else opening.embedder(embedder)
        database = opening.open_database(url, create=create and at is None)
        try:
            rows = opening.open_scope(database, scope, chosen, create=create and at is None)
            bank = cls(rows, opening.open_searcher(database, rows), chosen, trust or TrustConfig(), database)
            if at is None:
                return bank
            return bank._overlay(opening.resolve_mark(rows, at), read_only=True, owner=database)
        except BaseException:
            database.close()
            raise

    @staticmethod
    def backup(url: str | Path, *, to: str | Path) -> None:
        """Copy a bank's file with all scopes to the new file ``to``. Others may write to the bank meanwhile.

        Raises:
            InputError: ``to`` already exists.
            StorageError: There is no bank at ``url``, or a file cannot be read or written.
        """
        with closing(SqliteDatabase(opening.file_of(url), create=False)) as database:
            database.backup(Path(to).expanduser())

    @staticmethod
    def copy(url: str | Path, to: str | Path, *, scope: str | None = None) -> dict[str, int]:
        """Copy a scope (None: all of them) with its history and pending rollouts to another bank, which may be new.

        SQLite and PostgreSQL, in any direction. Each scope is one transaction. After an interruption, the same call
        goes on: a scope that ``to`` already has, with the same contents, is skipped.

        Returns:
            Scope -> experiences, of the scopes that were copied now.

        Raises:
            InputError: A scope of ``to`` has other contents, or ``to`` is the bank at ``url``.
            UnknownScope: The bank at ``url`` has no such scope.
            EmbedderMismatch: The bank at ``to`` belongs to another embedder.
            StorageError: There is no bank at ``url``, or a bank cannot be read or written.
        """
        with closing(opening.open_database(url, create=False)) as old:
            with old.reading() as connection:
                names = scope_names(connection) if scope is None else [scope]
            sources = [opening.open_scope(old, name, None, create=False) for name in names]
            with closing(opening.open_database(to, create=True)) as new:
                files = [each.path for each in (old, new) if isinstance(each, SqliteDatabase) and each.path is not None]
                if len(files) == 2 and files[0].samefile(files[1]):
                    raise InputError(f"{old.location}: is the bank to copy; name another one to copy it to")
                opened = [(each, opening.open_scope(new, each.name, None, create=True)) for each in sources]
                copied = {source.name: transfer.copy(source, target) for source, target in opened}
        return {name: number for name, number in copied.items() if number is not None}

    @staticmethod
    def restore(url: str | Path, *, copy: str | Path) -> Path | None:
        """Replace the bank at ``url`` with a copy.

        The existing bank is renamed; returns its new path, or None if there was none.

        Raises:
            CorruptBank: ``copy`` is damaged, or not a bank.
            StorageError: There is no bank at ``copy``, the bank is open elsewhere, or a file cannot be written.
        """
        return restore(opening.file_of(url), Path(copy).expanduser())

    @property
    def embedder(self) -> Embedder:
        """The embedder that creates the vectors of this bank."""
        return plugins.embedder(DEFAULT_EMBEDDER) if self._embedder is None else self._embedder

    @property
    def _place(self) -> str:
        """Location and scope, for error messages."""
        return f"{self._store.location}: scope {self.scope!r}"

    # Learning

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
        shown: Sequence[MemoryItem | Experience | str] = (),
        cited: Sequence[MemoryItem | Experience] = (),
        reward: float | None = None,
        submitted: int | None = None,
        again: bool = True,
        recorded: bool = False,
        retired: Mapping[str, str] = MappingProxyType({}),
        marks: Mapping[str, Mark] = MappingProxyType({}),
    ) -> Experience:
        """Store an experience and its items in one transaction; they are on disk when this returns.

        Appending the same attempt again returns the stored experience. An attempt is one task in one run, or, without
        ``run_id``, the same rollouts. Its pending rollouts are removed. If ``known_label`` or ``feedback`` of the
        rollouts differ from the stored ones, the new experience replaces the stored one, whose history stays. A draft
        with the text of an existing item adds a provenance to that item.

        Args:
            task: The task.
            trajectory: One rollout or several.
            verdict: One for each rollout.
            drafts: The lessons; ``ItemDraft`` for items of other kinds.
            run_id: Name of the run; see above.
            polarity: Polarity of the items; None: success if any verdict is a success, else failure.
            distiller: The LM that wrote the drafts.
            note: Why there are no drafts.
            origin: Source of the experience. With ``shown`` and ``retired`` it decides the level of its lessons: the
                lowest of the origin's, of what was shown, and of what is to be retired. Empty: your own program.
            shown: Items and experiences that the agent was shown, or their ids, in this order; see ``uses``.
            cited: Those that it said it used.
            reward: Ground truth, from 0 to 1, if it is known; None: the share of successes among known labels.
            submitted: The place of the trajectory whose answer was submitted.
            again: False: skip drafts whose exact text was removed before by an edit, a delete or a rollback of that
                item, and list their ids in the note; hold those that nearly say the same as a removed one.
            recorded: True: the rollouts were recorded, and have to be pending still. What was recorded as shown counts.
            retired: Id of an item -> why it is retired: it is not shown any more, but may be learned again, and
                ``undelete`` brings it back. What is the owner's, or trusted more than this experience, or among
                ``drafts`` stays, and the note says so; what is not there any more is skipped. If this experience is
                removed, what it retired comes back.
            marks: Id of what was shown -> whether it helped here: ``Use.mark`` of that use. Other ids are ignored, and
                the note says so.

        Raises:
            InputError: The arguments do not match each other, or the attempt was removed from the bank.
            InvalidVector, StorageError: Nothing is stored; the same applies to any error of the embedder.
        """
        if not again:
            with self._store.reading() as reader:
                drafts, note = writing.without_removed(reader, drafts, note)
        given = admission.ids_of(self.scope, shown)
        try:
            draft = ExperienceDraft(
                task=task,
                trajectories=(trajectory,) if isinstance(trajectory, Trajectory) else tuple(trajectory),
                verdicts=(verdict,) if isinstance(verdict, Verdict) else tuple(verdict),
                drafts=tuple(drafts),
                run_id=run_id,
                polarity=polarity,
                distiller=distiller,
                note=note,
                origin=origin,
                shown=given,
                cited=admission.ids_of(self.scope, cited),
                reward=reward,
                submitted=submitted,
                retired=dict(retired),
                marks=dict(marks),
            )
        except pydantic.ValidationError as exc:
            raise admission.refused(exc) from None
        new = replace(self._admit(draft), recorded=recorded)
        (id,), written = writing.append(self._store, lambda: self.embedder, self.trust, [new], guard=not again)
        return self._written(new, written[id]) if id in written else self._stored(task, id)

    def append_many(self, drafts: Iterable[ExperienceDraft]) -> list[str]:
        """Append many experiences in transactions of 500. Returns all ids, including those already stored.

        After an error, finished transactions stay, and a retry stores nothing twice. Removed experiences are skipped.
        """
        return writing.append(self._store, lambda: self.embedder, self.trust, map(self._admit, drafts))[0]

    def add(self, title: str, content: str, description: str = "", origin: str = "user") -> MemoryItem:
        """Store a lesson written by a person. It is searched by its own text, and its polarity is success.

        The same text added twice is one item. Raises ``InputError`` for an empty title or content, and the errors of
        ``append``.
        """
        draft = admission.checked_draft({"title": title, "content": content, "description": description})
        with self._store.reading() as reader:
            new = admission.handwritten(reader, draft, admission.checked_name("origin", origin))
        if new is not None:
            self.append_many([new])
        return self._item(admission.new_item(draft).id)

    def record(
        self,
        task: Task,
        trajectory: Trajectory,
        *,
        run_id: str = "",
        shown: Sequence[MemoryItem | Experience | str] = (),
        origin: str = "",
        reward: float | None = None,
    ) -> Pending | None:
        """Store a rollout before it is judged; it is ``pending`` until ``append``.

        A rollout that is already recorded or was learned from changes nothing, unless its ``known_label`` or
        ``feedback`` is new, or ``reward`` beside a ``known_label``. What was stated before and is not stated now
        stays, and so do the lessons that were shown and the less trusted origin. ``shown``, ``origin``, ``reward``: as
        for ``append``.

        Returns:
            The rollout as it is pending now; None if it was learned from, and nothing new is stated.

        Raises:
            InputError: The rollout belongs to another task, or the attempt was removed from the bank.
            StorageError: The bank cannot be written.
        """
        origin = admission.checked_name("origin", origin) if origin else ""
        key = reading.key_of(task, trajectory, run_id=run_id)
        new = admission.Rollouts(task=task, trajectories=(trajectory,), reward=reward)
        row = PendingRow(key, None, admission.ids_of(self.scope, shown), admission.now(), origin)
        record = partial(recording.record, row=row, new=new, place=self._place, level=self.trust.level)
        waits = self._store.together(writing.one_by_one, record)
        if waits is None:
            return None
        row, new = waits
        items = {item.id: item for item in self.items(row.shown)} if row.shown else {}
        return Pending(
            task=new.task,
            trajectories=new.trajectories,
            run_id=row.key.run_id,
            shown=tuple(items[id] for id in row.shown if id in items),
            tries=row.tries,
            error=row.error,
            origin=row.origin,
            created_at=row.created_at,
            reward=new.reward,
            bank=self,
        )

    def record_failure(
        self, task: Task, error: str, *, run_id: str = "", trajectories: Sequence[Trajectory] | None = None
    ) -> int:
        """Count a failed try to learn from the pending rollouts of a task and a run; store ``error`` without API keys.

        ``trajectories``: only these rollouts. Returns how many tries have failed; 0 if no rollout is pending.
        """
        only = None if trajectories is None else {reading.key_of(task, each, run_id=run_id) for each in trajectories}
        with self._store.write() as writer:
            rows = writer.pending(run_id=normalize(run_id), task_id=task.id, payload=False)
            rows = [row for row in rows if only is None or row.key in only]
            writer.fail_pending([row.key for row in rows], redact(normalize(error))[:_ERROR])
        return max((row.tries + 1 for row in rows), default=0)

    def pending(self, *, run_id: str | None = None, task_id: str | None = None) -> list[Pending]:
        """Return recorded rollouts that nothing was learned from yet, oldest first; filter by run, task or both.

        The rollouts of one task in one run are one group; without a run (``run_id=""``), each is its own group.
        """
        run_id = None if run_id is None else _text("run_id", run_id)
        task_id = None if task_id is None else _text("task_id", task_id)
        with self._store.reading() as reader:
            rows = reader.pending(run_id=run_id, task_id=task_id)
            shown = {id for row in rows for id in row.shown}
            return reading.pending_of(rows, reading.items_of(reader, shown, self.scope), self)

    def learned(self, run_id: str) -> set[str]:
        """Return the ids of the tasks that a run has learned from, with or without items."""
        with self._store.reading() as reader:
            return {task for (task,) in reader.tally("experiences", ["task_id"], run_id=_text("run_id", run_id))}

    def known(
        self, task: Task, trajectory: Trajectory | Sequence[Trajectory] = (), *, run_id: str = ""
    ) -> Experience | None:
        """Return the experience of this task in a run, or, without a run, of these rollouts; None if there is none yet.

        Raises:
            InputError: There was one, and it was removed.
        """
        rollouts = (trajectory,) if isinstance(trajectory, Trajectory) else trajectory
        with self._store.reading() as reader:
            row = reading.latest(reader, admission.identity(task, rollouts, run_id=run_id))
            return None if row is None else self._stored(task, row.id)

    # Retrieval

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
        marks: Mapping[str, str | None] | None = None,
        empty: bool = False,
        kinds: Collection[str] | None = None,
    ) -> list[Retrieved]:
        """Return the nearest experiences or items that pass all filters, best first, at most ``k``.

        Filters are applied before ranking, so ``k`` results are returned whenever ``k`` exist. Equal scores (to 1e-5)
        are ordered newest first. Text beyond the embedder's limit is ignored. Held lessons are never returned; an
        origin that ``trust`` does not name gets ``TrustConfig.cap`` results; items that nearly say the same
        leave one place to others.

        Args:
            query: A text, or a ``Task``: its key or instruction is the query, and lessons first learned from a task
                with its id are skipped, as are items whose ``data`` list it under ``tasks``, by its id or as "all".
            k: Number of results.
            unit: ``"experience"`` compares the query with task instructions (the paper's key) and returns experiences
                with all their items; ``"item"`` compares it with an item's title, description and content.
            min_score: Lowest cosine of a result; for dense mode only.
            exclude_tasks: Skip lessons that were learned only from these tasks.
            polarity: Only lessons from successes, or only from failures.
            mode: ``"dense"`` compares meaning (cosine), ``"lexical"`` words (BM25), ``"hybrid"`` both, by reciprocal
                rank.
            marks: Name of a mark -> the value that a result must have, or None: only what has no such mark.
            empty: With unit ``"experience"``: also those without lessons.
            kinds: Only items of these kinds, and experiences that gave one; None: any.

        Raises:
            InputError: An argument is not valid.
        """
        wanted = {} if marks is None else marks
        sought = Query(query, k, unit, mode, min_score, exclude_tasks, polarity, wanted, empty, kinds)
        return find(self._store, self._searcher, self._query_vector, self.trust, sought)

    def items(self, ids: Collection[str] | None = None, kinds: Collection[str] | None = None) -> list[MemoryItem]:
        """All items, or those with these ids or of these kinds, in the order in which they were learned.

        An edit changes no place. Raises ``InputError`` if ``kinds`` is a text.
        """
        check("kinds", kinds)
        with self._store.reading() as reader:
            return list(reading.items_of(reader, ids, self.scope, kinds).values())

    def experiences(self, last: int | None = None, *, label: Label | None = None) -> list[Experience]:
        """All experiences with their whole trajectories, oldest first; or the ``last`` ones, or those with a ``label``.

        The label of an experience is success if any of its verdicts is, else failure if any is.
        """
        with self._store.reading() as reader:
            return list(reading.all_experiences(reader, self.scope, last, label))

    def get(self, id: str) -> MemoryItem | Experience:
        """The item or experience with this id. Raises ``InputError`` if the scope has none.

        Here and wherever an id is given, its first characters do, at least five, if no other id begins with them.
        """
        id = self._id(id)
        with self._store.reading() as reader:
            found = reading.items_of(reader, [id], self.scope).get(id) or self._experience(id)
            if found is None:
                raise self._unknown(id)
            return found

    def is_from(self, item: MemoryItem, task_id: str) -> bool:
        """Whether anything in ``item`` was learned from a task: by one of its provenances, or as its data lists it."""
        with self._store.reading() as reader:
            known = item.data.get("tasks") == EVERY and lineage.has_learned(reader, _text("task_id", task_id))
        return lineage.lists(item, task_id, known=known) or any(each.task_id == task_id for each in item.provenances)

    def experience_of(self, task_id: str, run_id: str | None = None) -> Experience | None:
        """Return the newest experience of a task (in ``run_id``, if set), or None if there is none."""
        run_id = None if run_id is None else _text("run_id", run_id)
        with self._store.reading() as reader:
            rows = reader.experiences(task_id=_text("task_id", task_id), run_id=run_id)
            return self._experience(rows[-1].id) if rows else None

    def seen_tasks(self, prefix: str = "") -> set[str]:
        """Return the ids of learned tasks that begin with ``prefix``, without pending tasks."""
        with self._store.reading() as reader:
            return {task for (task,) in reader.tally("experiences", ["task_id"]) if task.startswith(prefix)}

    def experience_count(self) -> int:
        """The number of experiences, with or without items."""
        with self._store.reading() as reader:
            return len(reader.tally("experiences", ["seq"]))

    def uses(self, id: str) -> Uses:
        """How often an item or experience was shown to an agent and cited, for which tasks, and what came of it.

        An edit takes the uses along. Those by held experiences do not count until these are approved. Raises
        ``InputError`` if the scope has no such item or experience.
        """
        id = self.get(id).id
        return self.all_uses([id])[id]

    def all_uses(self, ids: Collection[str] | None = None) -> dict[str, Uses]:
        """The uses of many items and experiences, by id; None: of all that were used, by their present ids."""
        with self._store.reading() as reader:
            return reading.uses_of(reader, ids)

    def ages(self, ids: Collection[str]) -> dict[str, int]:
        """How many experiences came after each item of the bank was last learned, by id. An edit changes no age."""
        with self._store.reading() as reader:
            return reading.ages_of(reader, ids)

    def marks(self, id: str) -> dict[str, str]:
        """The marks of an item or experience: name -> value. Raises ``InputError`` if the id is unknown."""
        id = self.get(id).id
        with self._store.reading() as reader:
            return reading.marks_of(reader, id)

    def origins(self) -> list[Origin]:
        """Where the lessons come from: each origin with its level, its lessons, and how often they were shown."""
        with self._store.reading() as reader:
            return doctor.origins(reader, self.trust)

    def held_items(self) -> list[HeldItem]:
        """The items that are held, and the other origins that say the same; see ``approve``."""
        with self._store.reading() as reader:
            return doctor.held_items(self._store, reader, self.trust)

    def near_duplicates(self, min_score: float = 0.9) -> list[NearDuplicate]:
        """Pairs of items whose cosine is at least ``min_score``, nearest first.

        Similar items are never merged: a negated lesson is nearer to the original than a paraphrase is.
        """
        with self._store.reading() as reader:
            return doctor.near_duplicates(self._store, reader, min_score)

    # Changing

    def edit(
        self,
        id: str,
        *,
        title: str | None = None,
        description: str | None = None,
        content: str | None = None,
        note: str = "",
    ) -> MemoryItem:
        """Replace the text of an item in all its experiences. Returns the new item, which has a new id.

        The old text stays in ``history``. If another item already has the new text, the two become one item. The new
        text is yours: a held lesson that you edit is shown from now on.

        Raises:
            InputError: The item does not exist or was changed meanwhile; a title or content is empty or too long.
        """
        item = self._item(id)
        texts = {"title": title, "description": description, "content": content}
        given = {name: getattr(item, name) if text is None else text for name, text in texts.items()}
        new = admission.new_item(admission.checked_draft(given, item.kind, item.data))
        if new.id == item.id:
            return item
        embedder = self.embedder
        (vector,) = embed(embedder, [admission.item_text(new)])
        with self._store.write(embedder=(embedder.id, embedder.dimension)) as writer:
            writing.edit(writer, item.id, new, vector, normalize(note), self._store.location)
        return self._item(new.id)

    def mark(self, id: str, name: str, value: str | None = "yes") -> None:
        """Mark an item or an experience, for a filter of ``retrieve``; None removes the mark. ``history`` has all.

        A mark is about what is there now: if the same is learned again later, or edited, that is not marked. The mark
        ``approved`` is ``approve``'s.

        Raises:
            InputError: The id is unknown, or name or value are not valid.
        """
        admission.checked_name("mark", name)
        if name == reading.APPROVED:
            raise InputError("the mark 'approved' is set by approve()")
        if value is not None and (not isinstance(value, str) or not value.strip() or len(value) > _ERROR):
            raise InputError(f"mark {name}: value {value!r:.40}: expected 1 to {_ERROR:,} characters, or None")
        id = self.get(id).id
        with self._store.write() as writer:
            writing.mark(writer, [id], name, normalize(value or ""))

    def approve(self, id: str) -> MemoryItem | Experience:
        """Trust an item, or an experience and its items, as if you had written it: held lessons are shown from now on.

        What was learned from an agent that was shown others stays at its level. Raises ``InputError`` if the id is
        unknown.
        """
        found = self.get(id)
        ids = [found.id] if isinstance(found, MemoryItem) else [found.id, *(item.id for item in found.items)]
        with self._store.write() as writer:
            writing.mark(writer, ids, reading.APPROVED, "yes")
        return self.get(found.id)

    def reject(self, id: str, *, note: str = "", dry_run: bool = False) -> Removal:
        """``delete`` an item or experience that you do not trust: what nearly says the same is held from now on."""
        return self.delete(id, note=note or "rejected", dry_run=dry_run)

    def delete(self, id: str, *, note: str = "", dry_run: bool = False) -> Removal:
        """Remove an item, an experience with its items, or pending rollouts; the history of the first two stays.

        An item that is also in another experience stays, as does what was written from it; ``rollback`` removes that.
        What the experience had retired comes back. ``dry_run``: only return what would be removed.

        Raises:
            InputError: The id is unknown, or names a run or an origin, which only ``rollback`` removes.
        """
        return self._remove(id, kind="delete", descendants=False, note=note, dry_run=dry_run)

    def rollback(self, source: str, *, descendants: bool = True, note: str = "", dry_run: bool = False) -> Removal:
        """Remove everything learned from ``source`` or under its influence. What that had retired comes back.

        Args:
            source: Id of an experience or an item, ``run:NAME``, or ``origin:NAME``.
            descendants: Also remove experiences whose agents were shown a removed item, that retired one, or that gave
                an item which lists a removed task (``ItemDraft.data``), and so on.
            note: Reason, stored in the history.
            dry_run: Only return what would be removed.

        Raises:
            InputError: The bank has nothing from ``source``.
        """
        return self._remove(source, kind="rollback", descendants=descendants, note=note, dry_run=dry_run)

    def deleted_items(self) -> list[MemoryItem]:
        """The items that were deleted, rolled back or retired, and that are not there again; see ``undelete``.

        ``history`` says why.
        """
        with self._store.reading() as reader:
            return list(reading.ended_items(reader, writing.removed_rows(reader, retired=True), self.scope).values())

    def undelete(self, id: str, *, note: str = "") -> MemoryItem | Experience:
        """Bring back an item, or an experience with its items, that was deleted, rolled back or retired.

        It has its provenance, uses, level and marks again; an experience gets a new id, like one that is corrected, and
        retires again what it had retired.
        The same of another experience keeps its own level, and marks that were changed meanwhile stay as they are.

        Raises:
            InputError: It is not removed, or unknown, or an item whose experience was removed: undelete the experience.
        """
        id, note = self._id(id), _text("note", note)
        with self._store.reading() as reader:
            row = reading.latest(reader, id)
            new = None if row is None or row.ended is None else undeleting.undeleted(reader, row, note)
            gone = reading.ended_items(reader, writing.removed_rows(reader, retired=True), self.scope).get(id)
            here = bool(reading.items_of(reader, [id], self.scope)) or (row is not None and row.ended is None)
        if new is not None:
            writing.append(self._store, lambda: self.embedder, self.trust, [new])
            return self.get(new.id)
        if gone is None and here:
            state = "nothing to bring back" if row is None or row.id == id else f"it is {row.id} now"
            raise InputError(f"{self}: {id} is not removed; {state}")
        if gone is None:
            raise self._unknown(id, "removed item or experience")
        embedder = self.embedder
        vectors = embed(embedder, [admission.item_text(gone)])
        with self._store.write(embedder=(embedder.id, embedder.dimension)) as writer:
            undeleting.undelete_item(writer, id, vectors[0], note, self._place)
        return self._item(id)

    def history(self, id: str) -> list[Change]:
        """Return the changes of an experience or an item, oldest first, even if it was removed or edited."""
        id = self._id(id)
        with self._store.reading() as reader:
            changes = reading.history_of(reader, id)
            if not changes:
                raise self._unknown(id)
            return changes

    # States

    def fork(self) -> MemoryBank:
        """Return a private copy of the current state, in memory: later changes of one are not visible in the other.

        Copy on write: takes less than a millisecond at any size. Closes with this bank. Has no pending rollouts.
        """
        with self._store.reading() as reader:
            mark = reader.mark()
        return self._overlay(mark, read_only=False)

    def snapshot(self, name: str) -> Snapshot:
        """Name the current state; ``open(..., at=name)`` opens it.

        Raises:
            InputError: Another state has this name.
        """
        admission.checked_name("snapshot", name)
        with self._store.write() as writer:
            row = writing.snapshot(writer, name, self._place)
        return reading.snapshot_of(self._store.at(row.seq), row, self.scope)

    def snapshots(self) -> list[Snapshot]:
        """All snapshots of this scope, in order."""
        with self._store.reading() as reader:
            every = reader.snapshots()
            return [reading.snapshot_of(self._store.at(row.seq), row, self.scope) for row in every]

    # The bank itself

    def export_jsonl(self, path: str | Path) -> int:
        """Write this scope's experiences to a JSON Lines file; returns their number. See ``transfer``."""
        return transfer.write(Path(path), self._store)

    def import_jsonl(self, path: str | Path, *, origin: str = "", own: bool = False) -> list[str]:
        """Append the experiences of an ``export_jsonl`` file with their provenance; returns their ids.

        Experiences that are already stored, or were removed, are skipped; other rollouts of a stored run and task are
        an experience of their own. The whole file is checked before anything is stored.

        Args:
            path: The file.
            origin: Stored with all of them, so that ``rollback("origin:...")`` can remove them; empty: ``import:`` and
                the beginning of the file's SHA-256. What the file says of its origins is not believed.
            own: The file is your own export: believe it, so that origins, levels and marks stay; not with ``origin``.

        Raises:
            InputError: A line is not valid; the message gives its number.
        """
        if own and origin:
            raise InputError("import: own keeps the origins of the file; pass origin or own, not both")
        named = admission.checked_name("origin", origin) if origin else ""
        every = transfer.read(Path(path), self.trust, named, own=own)
        return writing.append(self._store, lambda: self.embedder, self.trust, every, foreign=True, guard=not own)[0]

    def reindex(self, embedder: Embedder | str | None = None) -> int:
        """Create missing vectors in all scopes; with ``embedder``, move the bank to that embedder.

        The bank stays usable meanwhile and switches in one transaction. After that, its forks and other processes that
        use the old embedder get ``EmbedderMismatch``. Returns the number of new vectors.

        Raises:
            StorageError: This is a fork or a snapshot, or the bank cannot be written.
        """
        scope = self._own_scope("reindex")
        chosen = self.embedder if embedder is None else opening.embedder(embedder)
        if embedder is None and (current := scope.embedder()) not in (None, (chosen.id, chosen.dimension)):
            raise EmbedderMismatch(f"{scope.location}: belongs to the embedder {current[0]}; pass it to reindex()")
        made = reindex(scope.database, chosen)
        self._embedder = chosen
        self._searcher = opening.open_searcher(scope.database, scope)
        return made

    def purge(self, source: str = "", *, text: str = "") -> Removal:
        """Permanently delete a source, or what contains ``text``: it is then not in the file, its log or its index.

        Use it for secrets; otherwise use ``delete`` or ``rollback``. Purging an item deletes its texts before and after
        edits. Purging an experience deletes its rollouts, the items that are in no other experience, and the versions
        before and after a corrected verdict. Items of others that were written from what is deleted, because they list
        its task and their experience retired it, or list the task of a deleted experience, are deleted, too; what had
        been retired for them, or by a deleted experience, comes back. Purging a text deletes every experience, item and
        pending rollout of this scope that contains it. Notes that quote what is deleted are emptied, and the records of
        runs beside the file say ``[purged]`` there. Backups, exports, evaluations and MLflow are not changed, nor are
        the write-ahead log and the replicas of a PostgreSQL server.

        Args:
            source: Id of an experience or an item, ``run:NAME``, or ``origin:NAME``.
            text: Instead of a source: the text, of at least four characters, exactly as it is written.

        Raises:
            InputError: The bank has nothing from ``source``.
            StorageError: This is a fork or a snapshot, or the bank cannot be written; or others
                were reading it, so the text is deleted but still in the log: purge again, which removes nothing more.
        """
        scope, name, text = self._own_scope("purge"), self._id(source), _text("text", text)
        if bool(name) == bool(text):
            raise InputError("purge: pass a source, or a text")
        with scope.write(embedder=scope.embedder(), exclusive=True) as writer:
            done = purging.purge_text(writer, text) if text else purging.purge(writer, name)
            known = bool(text) or any(
                entry.kind == "purge" for entry in writer.journal(subjects=[name, *purging.purged_name(name)])
            )
            if isinstance(scope.database, SqliteDatabase) and scope.database.path is not None:
                purging.purge_records(Path(f"{scope.database.path}.runs"), done)
        scope.database.vacuum()
        if not known and done.removal == Removal():
            raise self._unknown(name)
        return done.removal

    def scopes(self) -> list[str]:
        """Names of all scopes of this bank."""
        if self._database is None:
            return [self.scope]
        with self._database.reading() as connection:
            return scope_names(connection)

    def stats(self) -> BankStats:
        """Return counts of this scope, and the bank's embedder, size and schema version."""
        with self._store.reading() as reader:
            return doctor.stats(self._store, reader, self._database)

    def doctor(self) -> list[Finding]:
        """Check all stored data. Returns each problem with its remedy; empty if there are none."""
        with self._store.reading() as reader:
            return doctor.findings(self._store, reader, self._database)

    def close(self) -> None:
        """Close the bank and its forks. Closing twice does nothing."""
        if self._database is not None:
            self._database.close()

    def __len__(self) -> int:
        with self._store.reading() as reader:
            return len(reader.tally("items", ["id"]))

    def __bool__(self) -> bool:
        return True  # an empty bank is a bank: `bank or default` must not replace it

    def __repr__(self) -> str:
        return f"MemoryBank({self._store.location!r}, scope={self.scope!r})"

    def _repr_html_(self) -> str:
        """The newest ten lessons."""
        items = self.items()
        title = f"{self!r}: {counted(len(items), 'lesson')}"
        rows = [(item.title, item.content, item.polarity) for item in items[:-11:-1]]
        return html_table(title, ("newest", "", "from"), rows)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self  # dspy deep-copies programs and their inputs; all copies share one bank

    def __reduce__(self) -> NoReturn:
        # TypeError, because callers that try pickle first and have a fallback catch it
        raise TypeError("a MemoryBank is a handle and cannot be pickled; pass its path and open it there")

    def _own_scope(self, call: str) -> SqlScope:
        """The scope of the database. Raises ``StorageError`` if this is a fork or a snapshot."""
        if not isinstance(self._store, SqlScope):
            raise StorageError(f"{self._store.location}: a fork or a snapshot has no {call}; call it on the bank")
        return self._store

    def _remove(
        self, name: str, *, kind: Literal["delete", "rollback"], descendants: bool, note: str, dry_run: bool
    ) -> Removal:
        name, note = self._id(name), _text("note", note)
        if kind == "delete" and name.startswith(("run:", "origin:")):
            raise InputError(f"{name[:40]!r} is not the id of anything; rollback removes all of a run or an origin")
        if dry_run:
            with self._store.reading() as reader:
                removal = plan(reader, name, kind, descendants=descendants).removal
        else:
            with self._store.write(embedder=self._store.embedder()) as writer:
                removal = writing.remove(writer, name, kind, descendants=descendants, note=note)
        if removal == Removal():
            raise self._unknown(name)
        return removal

    def _experience(self, id: str) -> Experience | None:
        with self._store.reading() as reader:
            rows = reader.experiences(ids=[id], payload=True)
            return reading.experiences_of(reader, rows, self.scope)[0] if rows else None

    def _stored(self, task: Task, id: str) -> Experience:
        """The experience of an attempt. Raises ``InputError`` if it was removed."""
        experience = self._experience(id)
        if experience is None:
            raise writing.removed_since(self._store.location, task.id, id)
        return experience

    def _admit(self, draft: ExperienceDraft) -> admission.NewExperience:
        return admission.admit(draft, self.trust.level(draft.origin))

    def _written(self, new: admission.NewExperience, written: writing.Written) -> Experience:
        """The experience that was just stored; only lessons that other experiences gave too are read."""
        items = reading.as_items(self._store.now(), [(row, written.row) for row in written.items], self.scope, ())
        if written.shared:
            with self._store.reading() as reader:
                present = reading.items_of(reader, written.shared, self.scope)
            items = {id: present.get(id, item) for id, item in items.items()}
        return reading.experience_of(
            written.row, new.draft, items.values(), written.shown, self.scope, LEVELS[written.row.level]
        )

    def _item(self, id: str) -> MemoryItem:
        id = self._id(id)
        with self._store.reading() as reader:
            item = reading.items_of(reader, [id], self.scope).get(id)
        if item is None:
            raise self._unknown(id, "item")
        return item

    def _id(self, value: object) -> str:
        """The id that ``value`` is, or is the beginning of. Raises ``InputError`` if several ids begin with it."""
        id = _text("id", value)
        if not re.fullmatch(r"[em][0-9a-f]{4,19}", id):
            return id
        with self._store.reading() as reader:
            found = reader.ids(id)
        if len(found) > 1:
            raise InputError(f"{self._place}: {', '.join(found[:3])} begin with {id}; give more digits")
        return found[0] if found else id

    def _unknown(self, id: str, what: str = "item or experience") -> InputError:
        with self._store.reading() as reader:
            return unknown(reader, id, what, self._place)

    def _query_vector(self, text: str) -> Vectors:
        embedder = self.embedder
        if self._searcher.embedder not in ("", embedder.id):
            raise EmbedderMismatch(
                f"{self._store.location}: belongs to the embedder {self._searcher.embedder}, but was opened with"
                f" {embedder.id}; open it again with the first"
            )
        vector: Vectors = embed(embedder, [text])[0]
        return vector

    def _overlay(self, mark: int, *, read_only: bool, owner: Database | None = None) -> MemoryBank:
        overlay = Overlay(self._store, mark, read_only=read_only)
        return MemoryBank(overlay, OverlaySearcher(overlay, self._searcher), self._embedder, self.trust, owner)


def _text(what: str, value: object) -> str:
    if not isinstance(value, str):
        raise InputError(f"{what} {value!r:.40}: expected a text")
    return normalize(value)
