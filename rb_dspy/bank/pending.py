"""Rollouts that are recorded and not learned from yet."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

from rb_dspy.bank.admission import attempt_id, identity, now
from rb_dspy.bank.parts import NewExperience, Source
from rb_dspy.schema import MemoryItem, Task, Trajectory
from rb_dspy.text import normalise

if TYPE_CHECKING:
    from rb_dspy.bank.bank import MemoryBank


class Key(NamedTuple):
    """What makes a pending rollout the same one in its scope."""

    run_id: str
    task_id: str
    rollout_id: str
    content: str
    """Empty in a run; without a run the id of the experience that the rollout alone becomes, a hash of its content."""


@dataclass(frozen=True, slots=True)
class Row:
    """A pending rollout as a store keeps it; ``shown`` are ids of the items that its agent had been shown."""

    key: Key
    task: Task
    trajectory: Trajectory
    shown: tuple[str, ...]
    created_at: str
    tries: int = 0
    error: str = ""


class Waiting(NamedTuple):
    """What tells whether a pending rollout goes away with something else."""

    key: Key
    shown: tuple[str, ...]


@dataclass(frozen=True)
class Pending:
    """Rollouts of one task and one run that nothing was learned from yet; without a run one rollout.

    ``trajectories`` are ordered by rollout number, ``shown`` are the lessons that the agents had been shown, of those
    that are still in the bank, ``tries`` says how often learning from them failed, ``error`` why it failed last.
    """

    task: Task
    trajectories: tuple[Trajectory, ...]
    run_id: str
    shown: tuple[MemoryItem, ...]
    tries: int
    error: str
    created_at: str
    """ISO 8601, UTC; when the first of them was recorded."""
    bank: MemoryBank = field(repr=False, compare=False)
    """The bank that they were read from."""

    @property
    def id(self) -> str:
        """The id of the experience that they become."""
        return identity(self.bank.scope, self.task, self.trajectories, run_id=self.run_id)


def row(scope: str, task: Task, trajectory: Trajectory, *, run_id: str, shown: Iterable[str]) -> Row:
    """A rollout as it is recorded. Raises ``InputError`` where it is of another task, and for a bad run id."""
    return Row(
        key=key_of(scope, task, trajectory, run_id=run_id),
        task=task,
        trajectory=trajectory,
        shown=tuple(dict.fromkeys(shown)),
        created_at=now(),
    )


def key_of(scope: str, task: Task, trajectory: Trajectory, *, run_id: str) -> Key:
    """The key of a rollout. Raises like ``row``."""
    id = identity(scope, task, [trajectory], run_id=run_id)
    return Key(run_id, task.id, normalise(trajectory.rollout_id), "" if run_id else id)


def alone(scope: str, learned: Iterable[NewExperience]) -> list[Key]:
    """The keys of rollouts that were learned from without a run."""
    return [key_of(scope, new.task, trajectory, run_id="") for new in learned for trajectory in new.trajectories]


def grouped(keys: Iterable[Key]) -> list[list[Key]]:
    """What is learned from together: all rollouts of a task in a run; without a run each rollout by itself."""
    groups: dict[Key, list[Key]] = {}
    for key in keys:
        groups.setdefault(key if not key.run_id else key._replace(rollout_id=""), []).append(key)
    return list(groups.values())


def group_id(scope: str, keys: Sequence[Key]) -> str:
    """The id of the experience that a group of rollouts becomes."""
    first = keys[0]
    if not first.run_id:
        return first.content
    return attempt_id(scope, first.task_id, [key.rollout_id for key in keys], run_id=first.run_id)


def taken(
    waiting: Iterable[Waiting], source: Source, *, descendants: bool, tainted: Collection[str]
) -> list[list[Key]]:
    """The groups that go when ``source`` does: those of the removed run, and with ``descendants`` those of an agent
    that had been shown an item that is ``tainted``.
    """
    shown = {each.key: each.shown for each in waiting}
    return [
        group
        for group in grouped(shown)
        if (source.kind == "run" and group[0].run_id == source.name)
        or (descendants and any(not set(shown[key]).isdisjoint(tainted) for key in group))
    ]


def ordered(rows: Iterable[Row]) -> list[Row]:
    """By rollout number; ids that are no numbers come last, in the order of their letters."""

    def place(row: Row) -> tuple[bool, int, str]:
        id = row.key.rollout_id
        number = id.isdecimal() and id.isascii() and len(id) < 20
        return not number, int(id) if number else 0, id

    return sorted(rows, key=place)


def together(rows: Sequence[Row], shown: Sequence[MemoryItem], bank: MemoryBank) -> Pending:
    """A group of rollouts, in order."""
    last = max(rows, key=lambda row: row.tries)
    return Pending(
        task=rows[0].task,
        trajectories=tuple([row.trajectory for row in rows]),
        run_id=rows[0].key.run_id,
        shown=tuple(shown),
        tries=last.tries,
        error=last.error,
        created_at=min(row.created_at for row in rows),
        bank=bank,
    )


def failed(row: Row, error: str) -> Row:
    """``row`` after one more try that failed."""
    return replace(row, tries=row.tries + 1, error=error)
