"""What goes into a store of banks and comes out of it."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np
import pydantic
from numpy.typing import NDArray

from rb_dspy.protocols import Vectors
from rb_dspy.schema import Label, MemoryItem, Polarity, Provenance, Task, Trajectory, Verdict

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


# A named tuple: there is one for every experience, and a frozen dataclass takes three times as long to make.
class Placed(NamedTuple):
    """The number of an experience that was stored, and the ids that its items got."""

    seq: int
    item_ids: Sequence[str]


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


@dataclass(frozen=True, slots=True)
class Source:
    """What is to be removed: an experience or an item by its id, a run, or an origin."""

    kind: Literal["experience", "item", "run", "origin"]
    name: str


def task_key(task_id: str) -> int:
    """A signed 64-bit hash that stands for a task id in the index."""
    return int.from_bytes(
        hashlib.blake2b(task_id.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little", signed=True
    )


def item_text(item: NewItem | MemoryItem) -> str:
    """What an item is found by: title, description and content, a line each."""
    return f"{item.title}\n{item.description}\n{item.content}"
