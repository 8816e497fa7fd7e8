"""What a store of banks must do.

A store keeps what it is given and hands it back; it ranks nothing, embeds nothing and decides nothing. Every call names
a scope, and no call shows anything of another: ids, counts and sequence numbers are a scope's own.

Time is a sequence number. Each scope counts what happens to it: one number for an experience, one for each of its item
rows, one for an edit, a delete, a rollback. Rows are never changed or removed: they are *born* at a number and may be
*ended* at a later one, so the state of a scope at any number ``at`` is the rows with ``born <= at < ended``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Literal, Protocol

from rb_dspy.bank.lineage import GivenRow, Member
from rb_dspy.bank.parts import BankStats, Changes, Finding, Giving, Match, NewExperience, NewItem, Placed, Source, Unit
from rb_dspy.bank.pending import Key, Row
from rb_dspy.protocols import Vectors
from rb_dspy.schema import Change, Experience, MemoryItem, Removal, Snapshot


class BankStore(Protocol):
    """Persistence of a bank. Safe to call from threads, and beside other processes where the medium is shared.

    Each write is one transaction: all of it or nothing, durable on return, and in one order that every reader sees. A
    reader that has seen everything up to ``n`` misses nothing by asking for what came after ``n``.

    ``at`` in a read means the state at that number; None, or one that was not reached yet, the present; one below 0,
    that at 0, where there is nothing. An unknown scope raises ``UnknownScope``; a row that cannot be read is left out
    of lists with a warning in the log, and raises ``CorruptBank`` where it is asked for by its id. What several stores
    refuse they refuse in the words of ``refusals``.
    """

    @property
    def location(self) -> str:
        """Where it is, for people."""
        ...

    @property
    def base(self) -> BankStore | None:
        """The store that this is an overlay of, whose rows ``changes`` leaves out; None where it is none."""
        ...

    def bind(self, embedder_id: str, dimension: int, *, keep: bool = True) -> tuple[str, int]:
        """The embedder that the bank belongs to; a bank that has none yet belongs to this one from now on.

        Without ``keep`` from the first experience or edit on that is stored: who only looks changes nothing. A bank
        that has lost which it was belongs to no embedder of another dimension than its vectors have.

        What the first call gave is what this store is held to: once the bank was re-indexed for another embedder from
        elsewhere, writes and ``changes`` raise ``EmbedderMismatch``, however often this is called.
        """
        ...

    def scopes(self) -> list[str]:
        """Names of the scopes, sorted."""
        ...

    def add_scope(self, scope: str) -> None:
        """Make ``scope`` exist; nothing happens where it does."""
        ...

    # What is written

    def place(
        self,
        scope: str,
        batch: Sequence[NewExperience],
        *,
        embedder: tuple[str, int] | None = None,
        refuse_removed: bool = False,
        meanwhile: Callable[[Callable[[], bool]], None] | None = None,
    ) -> Sequence[Placed | Experience]:
        """Store experiences, and tell of each where it was placed (see ``stored.stored``), or what is stored.

        An id that is there already gives what is stored under it, or was, when it has ended; so may any other that the
        store had to look at anyway.
        With ``refuse_removed`` one that has ended raises ``InputError`` (``refusals.removed_since``) and nothing is
        stored; and where the run of one has learned from its task, what is stored of that is given. The rollouts that
        were learned from are pending no more: those of the run and the task, without a run those of this content. Where
        a live item has the text of a new one, the new one gets its id (of several, the earliest's); where one has its
        id but another text (it was edited), an id of its own.
        ``embedder``: whose vectors these are; None, of the one that this store is bound to. Raises ``EmbedderMismatch``
        where the bank belongs to another one by now, and ``InvalidVector`` where one has another dimension than that
        one's; then nothing is stored.
        ``meanwhile``: what the caller would do next; a store whose writing leaves the caller free calls it then, once,
        with what tells whether the writing is done.
        """
        ...

    def ready(self, *batches: Sequence[NewExperience]) -> Sequence[NewExperience]:
        """All of them, with all done for them that needs no turn to write, to be given to ``place`` instead of them.

        For what is ready already nothing is done again.
        """
        ...

    def record(self, scope: str, row: Row) -> None:
        """Keep a rollout that is to be learned from. One that is kept, or was learned from, changes nothing.

        In a run that is any experience of the run and the task, without one any of this content. Raises ``InputError``
        (``refusals.removed_since``) where it was removed since.
        """
        ...

    def fail(self, scope: str, run_id: str, task_id: str, rollout_ids: Collection[str], error: str) -> None:
        """Count a failed try to learn from pending rollouts of a run and a task: these, or all if none is named."""
        ...

    def forget(self, scope: str, these: Sequence[Key]) -> None:
        """These rollouts are pending no more."""
        ...

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
        """Give an item another text; ``new.id`` is ``id``. The text before it stays in the history.

        ``embedder``: as in ``place``.

        Raises ``InputError`` where no live item has this id, or another live item has this very text.
        """
        ...

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
        """End what ``source`` means: experiences with their item rows, or all rows of one item.

        With ``descendants`` also every experience whose agent had been shown an item that goes away, and so on. An item
        that another live experience gave as well loses a provenance and stays. Nothing to remove is no error. What has
        ended leads on: see ``lineage.closure``.
        """
        ...

    def snapshot(self, scope: str, name: str, created_at: str) -> Snapshot:
        """Name the present state. Raises ``InputError`` where the name is taken by another state."""
        ...

    def reindex(self, embedder_id: str, dimension: int, embed: Callable[[Sequence[str]], Vectors]) -> int:
        """Replace the vectors of all scopes by those of another embedder, built aside and swapped in one transaction.

        Returns how many were made. The rest of the bank can be read and appended to meanwhile: no lock is held while
        ``embed`` is called. Raises ``StorageError`` where appends never leave a moment to change over (``passes``), and
        ``InvalidVector`` for rows of another dimension; the bank is then as it was, as where ``embed`` raises.
        """
        ...

    def mend(self, embedder_id: str, dimension: int, embed: Callable[[Sequence[str]], Vectors]) -> int:
        """Make again what is damaged or missing, and can be made of the rest, in all scopes: vectors of sound texts,
        and whatever else is derived from what is stored.

        Returns how many vectors were made; all others stay, and nothing is embedded where there is none to make. The
        embedder is the bank's own: ``EmbedderMismatch`` where that is another one, also where there is none to make.
        What ``changes`` says of numbers before may then be more than it was: whoever follows it begins anew.
        """
        ...

    def renewals(self) -> int:
        """A number that grows when ``mend`` or ``reindex`` makes vectors again: who read ``changes`` before that may
        lack rows.
        """
        ...

    # What is read

    def mark(self, scope: str) -> int:
        """The highest number used; 0 in a scope where nothing happened yet."""
        ...

    def settled(self, scope: str, at: int) -> int:
        """The last number of the write that ``at`` belongs to: the state there is one that readers could see.

        0 for 0 and below, and ``mark`` for one that was not reached yet.
        """
        ...

    def have(self, scope: str, ids: Sequence[str]) -> set[str]:
        """Those of ``ids`` that experiences were stored under, also where these have ended."""
        ...

    def experience(self, scope: str, id: str, at: int | None = None) -> Experience | None: ...

    def latest(self, scope: str, task_id: str, at: int | None = None) -> Experience | None:
        """The newest experience of a task."""
        ...

    def experiences(self, scope: str, *, after: int, limit: int, at: int | None = None) -> list[Experience]:
        """At most ``limit`` experiences in order, those born after ``after``; none only where none are left."""
        ...

    def item(self, scope: str, id: str, at: int | None = None) -> MemoryItem | None: ...

    def item_rows(self, scope: str, unit: Unit, id: str, at: int | None = None) -> list[Giving]:
        """The live item rows of an item, or those of an experience, in order; those that are damaged are left out."""
        ...

    def members(self, scope: str, source: Source, at: int | None = None) -> list[Member]:
        """The experiences that ``source`` means, in order: for an item, those whose agent had been shown it.

        All that were stored up to ``at``, also those that have ended. None where nothing is meant.
        """
        ...

    def rows(self, scope: str, of: str | int, at: int | None = None) -> list[GivenRow]:
        """The item rows of an item, by its id, or of an experience, by its number, in order; see ``members``."""
        ...

    def items_with(self, scope: str, digests: Sequence[str], at: int | None = None) -> dict[str, str]:
        """Ids of items by the digests of their texts; of several items with one text, the earliest."""
        ...

    def retracted(self, scope: str, digests: Sequence[str], at: int | None = None) -> dict[str, Change]:
        """What took texts away, by their digests: an edit of an item that said it, or a removal of that item by its id.

        None for a text that a live item row has, nor for one whose last row ended with something else that was removed:
        an experience, a run, an origin, or what it descends from. The changes are without texts.
        """
        ...

    def items(self, scope: str, at: int | None = None) -> list[MemoryItem]:
        """All items in order of their numbers; the number of an item is that of its earliest live row."""
        ...

    def edited(self, scope: str, at: int | None = None) -> set[str]:
        """Ids of items that were ever given another text, also of those that are gone."""
        ...

    def count(self, scope: str, at: int | None = None) -> int:
        """Number of items."""
        ...

    def task_ids(self, scope: str, at: int | None = None) -> set[str]:
        """Tasks that have an experience."""
        ...

    def pending(self, scope: str, run_id: str | None = None, task_id: str | None = None) -> list[Row]:
        """Rollouts that nothing was learned from yet, oldest first: all, or those of a run, of a task, of both."""
        ...

    def pending_keys(self, scope: str) -> list[Key]:
        """The keys of all of them, also of those that are damaged."""
        ...

    def learned(self, scope: str, run_id: str, at: int | None = None) -> set[str]:
        """Tasks that a run has an experience of."""
        ...

    def attempt(self, scope: str, run_id: str, task_id: str) -> tuple[str, bool] | None:
        """The id of what a run learned from a task, and whether that lives; None where it has learned nothing."""
        ...

    def snapshots(self, scope: str) -> list[Snapshot]:
        """In the order of their numbers, then of their names."""
        ...

    def history(self, scope: str, id: str) -> list[Change]:
        """What happened to an experience or an item, in order; empty where it never was."""
        ...

    def changes(self, scope: str, unit: Unit, *, after: int, limit: int) -> Changes:
        """What happened to indexed rows after ``after``: at most ``limit`` new ones, and what ended as far as those go.

        A full answer goes as far as its last row; a shorter one as far as the scope's mark.
        """
        ...

    def version(self) -> int:
        """A number that is another one whenever anything may have been committed; a few microseconds."""
        ...

    def texts(self, scope: str, unit: Unit, *, after: int, limit: int) -> list[tuple[int, str]]:
        """The texts behind indexed rows, by number, in order, also of rows that have ended: what they are found by."""
        ...

    def matches(self, scope: str, unit: Unit, seqs: Sequence[int], at: int | None = None) -> dict[int, Match]:
        """What to show for ranked rows, by number; those that are damaged are left out."""
        ...

    def digest(self, scope: str, at: int) -> str:
        """The head of the hash chain after the last entry up to ``at``; empty for 0."""
        ...

    def stats(self, scope: str) -> BankStats: ...

    def check(self) -> Iterator[Finding]:
        """Read everything of all scopes and tell what is wrong with it."""
        ...

    def close(self) -> None: ...
