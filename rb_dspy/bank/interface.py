"""What a store of banks must do, and the records that pass between it and the bank.

A store keeps what it is given and hands it back; it ranks nothing and decides nothing. Every call names a scope, and no
call shows anything of another: ids, counts and sequence numbers are a scope's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
import pydantic
from numpy.typing import NDArray

from rb_dspy.protocols import Vectors
from rb_dspy.schema import Experience, Label, MemoryItem, Polarity, State, Task, Trajectory, Verdict

Unit = Literal["experience", "item"]
"""What is ranked: whole experiences, as in the paper, or single items."""


@dataclass(frozen=True, slots=True)
class NewItem:
    """An admitted lesson. ``id`` names its text in its experience; ``digest`` its text alone, from wherever."""

    id: str
    digest: str
    title: str
    description: str
    content: str


@dataclass(frozen=True, slots=True)
class NewExperience:
    """An experience that is about to be stored. ``shown`` are ids of the items that the agent had been given."""

    id: str
    task: Task
    trajectories: tuple[Trajectory, ...]
    verdicts: tuple[Verdict, ...]
    items: tuple[NewItem, ...]
    polarity: Polarity
    label: Label
    run_id: str
    distiller: str
    state: State
    note: str
    created_at: str
    shown: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class VectorBatch:
    """Vectors, ``(n, dimension)``, in ascending order of ``seqs``, ``(n,)``; ``tasks[i]`` is the task of row i."""

    seqs: NDArray[np.int64]
    tasks: Sequence[str]
    vectors: Vectors

    def __len__(self) -> int:
        return len(self.seqs)


@dataclass(frozen=True, slots=True)
class Match:
    """What is shown of a ranked row: its experience, and the items that go with it."""

    experience_id: str
    task_id: str
    instruction: str
    items: tuple[MemoryItem, ...]


class BankStats(pydantic.BaseModel):
    """Counts of one scope. ``bytes_on_disk`` and ``schema_version`` are those of the whole file."""

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
    embedder: str
    dimension: int
    bytes_on_disk: int
    schema_version: int


class BankStore(Protocol):
    """Persistence of a bank. Safe to call from threads, and beside other processes where the medium is shared.

    Sequence numbers count up within a scope, over experiences and items together, in the order of commit: a reader that
    has seen everything up to ``n`` misses nothing by asking for what came after ``n``.
    """

    @property
    def location(self) -> str:
        """Where it is, for people."""
        ...

    def bind(self, embedder_id: str, dimension: int) -> tuple[str, int]:
        """The embedder that the bank belongs to; a bank that has none yet belongs to this one from now on."""
        ...

    def scopes(self) -> list[str]:
        """Names of the scopes, sorted."""
        ...

    def add_scope(self, scope: str) -> None:
        """Make ``scope`` exist; nothing happens where it does."""
        ...

    def append(
        self, scope: str, new: NewExperience, vector: Vectors | None, item_vectors: Sequence[Vectors]
    ) -> Experience:
        """Store all of it or nothing; durable on return. An id that is there already gives what is stored under it.

        ``vector``, shape ``(dimension,)``, is the experience's place in the index; None keeps it out.
        """
        ...

    def experience(self, scope: str, id: str) -> Experience | None: ...

    def item(self, scope: str, id: str) -> MemoryItem | None: ...

    def latest(self, scope: str, task_id: str) -> Experience | None:
        """The newest experience of a task."""
        ...

    def experiences(self, scope: str, *, after: int, limit: int) -> list[Experience]:
        """At most ``limit`` experiences in order, those with a sequence number above ``after``."""
        ...

    def items(self, scope: str) -> list[MemoryItem]:
        """All items in order."""
        ...

    def count(self, scope: str) -> int:
        """Number of items."""
        ...

    def task_ids(self, scope: str) -> set[str]:
        """Tasks that something was learned from, or tried to be: those with an experience that is not just recorded."""
        ...

    def vectors(self, scope: str, unit: Unit, *, after: int, limit: int) -> VectorBatch:
        """At most ``limit`` indexed rows in order, those with a sequence number above ``after``."""
        ...

    def matches(self, scope: str, unit: Unit, seqs: Sequence[int]) -> dict[int, Match]:
        """What to show for ranked rows, by sequence number."""
        ...

    def stats(self, scope: str) -> BankStats: ...

    def close(self) -> None: ...
