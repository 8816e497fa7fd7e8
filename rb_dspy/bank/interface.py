"""What a store of banks must do, and the records that pass between it and the bank.

A store keeps what it is given and hands it back; it ranks nothing, embeds nothing and decides nothing. Every call names
a scope, and no call shows anything of another: ids, counts and sequence numbers are a scope's own.

Time is a sequence number. Each scope counts what happens to it: one number for an experience, one for each of its item
rows, one for an edit, a delete, a rollback. Rows are never changed or removed: they are *born* at a number and may be
*ended* at a later one, so the state of a scope at any number ``at`` is the rows with ``born <= at < ended``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

import numpy as np
import pydantic
from numpy.typing import NDArray

from rb_dspy.errors import InputError
from rb_dspy.protocols import Vectors
from rb_dspy.schema import (
    Change,
    Experience,
    Ingestion,
    Label,
    MemoryItem,
    Polarity,
    Provenance,
    Removal,
    Snapshot,
    Task,
    Trajectory,
    Verdict,
)

Unit = Literal["experience", "item"]
"""What is ranked: whole experiences, as in the paper, or single items."""

UNITS: tuple[Unit, ...] = ("experience", "item")


# Not frozen, though nothing changes them: a frozen one takes three times as long to make, and appends make many.
@dataclass(slots=True, unsafe_hash=True)
class NewItem:
    """An admitted lesson.

    ``id`` is a hash of scope and text, so the same lesson from two experiences is one item with two rows (each with its
    own number, experience and vector). ``digest`` is a hash of the text alone: it changes when the text is edited, and
    shows a damaged row.
    """

    id: str
    digest: str
    title: str
    description: str
    content: str
    apart: bool = field(default=False, compare=False)
    """Whether ``id`` is another than the hash of scope and text: one that was edited, or came from another scope."""


@dataclass(slots=True, unsafe_hash=True)
class NewExperience:
    """An experience that is about to be stored. ``shown`` are ids of the items that the agent had been given.

    ``vector``, shape ``(dimension,)``, is its place in the index, None keeps it out; ``item_vectors`` are aligned with
    ``items``. Both are unit float32 rows; a store rounds them as ``vectors.packed`` does, and every store alike.
    """

    id: str
    task: Task
    trajectories: tuple[Trajectory, ...]
    verdicts: tuple[Verdict, ...]
    items: tuple[NewItem, ...]
    polarity: Polarity
    label: Label
    run_id: str
    distiller: str
    note: str
    origin: str
    created_at: str
    shown: tuple[str, ...]
    vector: Vectors | None = None
    item_vectors: tuple[Vectors, ...] = ()

    def with_vectors(self, vector: Vectors, item_vectors: tuple[Vectors, ...]) -> NewExperience:
        """The same with vectors: what ``dataclasses.replace`` gives, in half the time."""
        return NewExperience(
            self.id,
            self.task,
            self.trajectories,
            self.verdicts,
            self.items,
            self.polarity,
            self.label,
            self.run_id,
            self.distiller,
            self.note,
            self.origin,
            self.created_at,
            self.shown,
            vector,
            item_vectors,
        )


@dataclass(frozen=True, slots=True)
class VectorBatch:
    """Vectors, ``(n, dimension)`` float32 unit rows, in ascending order of ``seqs``, ``(n,)``."""

    seqs: NDArray[np.int64]
    tasks: NDArray[np.int64]
    """``task_key`` of each row's task."""
    successes: NDArray[np.bool_]
    """Whether the row's lessons come from a success."""
    vectors: Vectors

    def __len__(self) -> int:
        return len(self.seqs)


@dataclass(frozen=True, slots=True)
class Changes:
    """What happened to the indexed rows of a scope after some number, up to and including ``mark``.

    ``added`` holds every row that was born, also those that have ended since. ``ended``, ``(m, 2)`` int64: the number
    of a row and the number that ended it, in ascending order of the latter; rows of earlier answers are among them.
    """

    mark: int
    added: VectorBatch
    ended: NDArray[np.int64]
    more: bool = False
    """Whether to ask again from ``mark``: the answer was full, counting damaged rows, which are not among ``added``."""


@dataclass(frozen=True, slots=True)
class Match:
    """What is shown of a ranked row: its experience, and the items that go with it."""

    experience_id: str
    task_id: str
    instruction: str
    items: tuple[MemoryItem, ...]


@dataclass(frozen=True, slots=True)
class Giving:
    """That an experience gave an item: a live item row."""

    seq: int
    item: NewItem
    polarity: Polarity
    """Of this experience's lessons, whatever the item's is."""
    provenance: Provenance
    experience: int
    """The number of the experience."""
    instruction: str
    """That of the experience's task."""


Severity = Literal["error", "warning"]


class Finding(pydantic.BaseModel):
    """Something that ``doctor`` found wrong."""

    model_config = pydantic.ConfigDict(frozen=True)

    severity: Severity
    """An error means that something is lost or wrong; a warning, that it will mend itself or wants a look."""
    kind: Literal["file", "row", "chain", "orphan", "vector", "index", "pending", "snapshot"]
    where: str
    """Scope and id, or what there is to name the place."""
    what: str
    remedy: str


class BankStats(pydantic.BaseModel):
    """Counts of one scope as it is now. ``bytes_on_disk`` and ``schema_version`` are those of the whole file."""

    model_config = pydantic.ConfigDict(frozen=True)

    scope: str
    items: int
    experiences: int
    experiences_with_items: int
    by_polarity: dict[str, int]
    """Items from successes and from failures."""
    by_verdict: dict[str, int]
    """Experiences by verdict; one with several rollouts counts as a success when any of them was judged one."""
    by_template: dict[str, int]
    """Experiences by their task's template; tasks without one are not counted."""
    exposures: int
    """How often an item was shown to an agent whose rollout was then appended."""
    pending: int
    """Rollouts that are not learned from yet."""
    removed: int
    """Experiences and items that were deleted or rolled back; their history is kept."""
    embedder: str
    dimension: int
    bytes_on_disk: int
    schema_version: int


class BankStore(Protocol):
    """Persistence of a bank. Safe to call from threads, and beside other processes where the medium is shared.

    Each write is one transaction: all of it or nothing, durable on return, and in one order that every reader sees. A
    reader that has seen everything up to ``n`` misses nothing by asking for what came after ``n``.

    ``at`` in a read means the state at that number; None, the present. An unknown scope raises ``UnknownScope``; a row
    that cannot be read is left out of lists with a warning in the log, and raises ``CorruptBank`` where it is asked for
    by its id.
    """

    @property
    def location(self) -> str:
        """Where it is, for people."""
        ...

    def bind(self, embedder_id: str, dimension: int) -> tuple[str, int]:
        """The embedder that the bank belongs to; a bank that has none yet belongs to this one from now on.

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

    def append(
        self,
        scope: str,
        batch: Sequence[NewExperience],
        *,
        embedder: tuple[str, int] | None = None,
        refuse_removed: bool = False,
        meanwhile: Callable[[], None] | None = None,
    ) -> list[Experience]:
        """Store experiences; an id that is there already gives what is stored under it, or was, when it has ended.

        With ``refuse_removed`` one that has ended raises ``InputError`` (``removed_since``) and nothing is stored.
        An ingestion of the same id is done with and goes. Where a live item has the text of a new one, the new one gets
        its id (of several, the earliest's); where one has its id but another text (it was edited), an id of its own.
        ``embedder``: whose vectors these are; None, of the one that this store is bound to. Raises ``EmbedderMismatch``
        where the bank belongs to another one by now.
        ``meanwhile``: what the caller would do next; a store whose writing leaves the caller free calls it then, once.
        """
        ...

    def ready(self, batch: Sequence[NewExperience]) -> Sequence[NewExperience]:
        """The same, with all done for it that needs no turn to write, to be given to ``append`` in its place."""
        ...

    def hold(self, ingestion: Ingestion) -> Ingestion:
        """Keep an ingestion, in its scope, and return what is kept: see ``further``.

        Raises ``InputError`` where nothing is kept under its id, and it is not a beginning or an experience was ever
        stored under that id: it was learned from or removed meanwhile, and is not to come back.
        """
        ...

    def drop(self, scope: str, id: str) -> None:
        """Forget an ingestion, if there is one."""
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

        ``embedder``: as in ``append``.

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
        that another live experience gave as well loses a provenance and stays. Nothing to remove is no error.
        """
        ...

    def snapshot(self, scope: str, name: str, created_at: str) -> Snapshot:
        """Name the present state. Raises ``InputError`` where the name is taken by another state."""
        ...

    def reindex(self, embedder_id: str, dimension: int, embed: Callable[[Sequence[str]], Vectors]) -> int:
        """Replace the vectors of all scopes by those of another embedder, built aside and swapped in one transaction.

        Returns how many were made. The rest of the bank can be read and appended to meanwhile.
        """
        ...

    # What is read

    def mark(self, scope: str) -> int:
        """The highest number used; 0 in a scope where nothing happened yet."""
        ...

    def settled(self, scope: str, at: int) -> int:
        """The last number of the write that ``at`` belongs to: the state there is one that readers could see."""
        ...

    def have(self, scope: str, ids: Sequence[str]) -> set[str]:
        """Those of ``ids`` that experiences were stored under, also where these have ended."""
        ...

    def experience(self, scope: str, id: str, at: int | None = None) -> Experience | None: ...

    def latest(self, scope: str, task_id: str, at: int | None = None) -> Experience | None:
        """The newest experience of a task."""
        ...

    def experiences(self, scope: str, *, after: int, limit: int, at: int | None = None) -> list[Experience]:
        """At most ``limit`` experiences in order, those born after ``after``.

        Fewer than ``limit`` only where no more are left, damaged ones counted.
        """
        ...

    def item(self, scope: str, id: str, at: int | None = None) -> MemoryItem | None: ...

    def item_rows(self, scope: str, unit: Unit, id: str, at: int | None = None) -> list[Giving]:
        """The live item rows of an item, or those of an experience, in order; those that are damaged are left out."""
        ...

    def items_with(self, scope: str, digests: Sequence[str], at: int | None = None) -> dict[str, str]:
        """Ids of items by the digests of their texts; of several items with one text, the earliest."""
        ...

    def items(self, scope: str, at: int | None = None) -> list[MemoryItem]:
        """All items in order of their numbers; the number of an item is that of its earliest live row."""
        ...

    def count(self, scope: str, at: int | None = None) -> int:
        """Number of items."""
        ...

    def task_ids(self, scope: str, at: int | None = None) -> set[str]:
        """Tasks that have an experience."""
        ...

    def ingestions(self, scope: str) -> list[Ingestion]:
        """Those that are kept, in the order they came."""
        ...

    def snapshots(self, scope: str) -> list[Snapshot]:
        """In the order of their numbers."""
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


@dataclass(frozen=True, slots=True)
class Source:
    """What is to be removed: an experience or an item by its id, a run, or an origin."""

    kind: Literal["experience", "item", "run", "origin"]
    name: str


STAGES = ("recorded", "judged", "distilled")
"""How far an ingestion can have got, in order."""


def further(kept: Ingestion | None, new: Ingestion) -> Ingestion:
    """Which of two ingestions of one id counts: the one that got further, else the first with the error of the new.

    Where they are of different rollouts nothing is taken from one into the other: a beginning, which is recorded and
    has no error, takes the place of what is kept, and anything else loses to it. Only a beginning can be kept where
    nothing is: for anything else it raises ``InputError``.
    """
    begins = new.stage == "recorded" and not new.error
    if kept is None:
        if begins:
            return new
        raise InputError(
            f"task {new.task.id}: the rollouts {new.id} do not wait any more, they were learned from or removed"
            " meanwhile; ingest them again if they are to be learned from"
        )
    if not same_rollouts(kept.trajectories, new.trajectories):
        return new if begins else kept
    if STAGES.index(new.stage) > STAGES.index(kept.stage):
        return new
    return kept.model_copy(update={"error": new.error}) if new.stage == kept.stage else kept


def removed_since(location: str, new: NewExperience) -> InputError:
    """What ``append`` raises with ``refuse_removed``."""
    return InputError(
        f"{location}: this attempt at {new.task.id[:40]!r} was learned from as {new.id} and removed since; append it"
        " under another run_id"
    )


def same_rollouts(one: Sequence[Trajectory], other: Sequence[Trajectory]) -> bool:
    """Whether the same happened in both, in whatever order they stand and whatever they used."""
    if len(one) != len(other):
        return False
    pairs = zip(_in_order(one), _in_order(other), strict=True)  # mostly the same objects, and they may be long
    return all(mine is its or _what_happened(mine) == _what_happened(its) for mine, its in pairs)


def _in_order(rollouts: Sequence[Trajectory]) -> list[Trajectory]:
    return sorted(rollouts, key=lambda rollout: rollout.rollout_id)


def _what_happened(rollout: Trajectory) -> Trajectory:
    return rollout.model_copy(update={"usage": {}})


def task_key(task_id: str) -> int:
    """A signed 64-bit hash that stands for a task id in the index."""
    return int.from_bytes(
        hashlib.blake2b(task_id.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little", signed=True
    )


def item_text(item: NewItem | MemoryItem) -> str:
    """What an item is found by: title, description and content, a line each."""
    return f"{item.title}\n{item.description}\n{item.content}"
