"""Rollouts that were recorded but not learned from yet."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rb_dspy.bank.admission import attempt_id, identity, now
from rb_dspy.bank.reading import pack_rollouts, unpack_rollouts
from rb_dspy.bank.store.base import PendingKey, PendingRow
from rb_dspy.errors import CorruptBank
from rb_dspy.schema import MemoryItem, Task, Trajectory
from rb_dspy.text import normalize

if TYPE_CHECKING:
    from rb_dspy.bank.bank import MemoryBank

_log = logging.getLogger("rb_dspy.bank")


@dataclass(frozen=True)
class Pending:
    """Rollouts of one task and one run that nothing was learned from yet; without a run, one rollout.

    ``trajectories`` are ordered by rollout number; ``shown`` are the lessons that the agents were shown and that are
    still in the bank; ``tries`` counts failed tries to learn from them, ``error`` is why the last one failed.
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
        """The id of the experience that they will become."""
        return identity(self.task, self.trajectories, run_id=self.run_id)


def pending_row(task: Task, trajectory: Trajectory, *, run_id: str, shown: Iterable[str]) -> PendingRow:
    """Convert a rollout to a row. Raises ``InputError`` for a rollout of another task and for a bad run id."""
    return PendingRow(
        key=key_of(task, trajectory, run_id=run_id),
        payload=pack_rollouts(task, [trajectory]),
        shown=tuple(dict.fromkeys(shown)),
        created_at=now(),
    )


def key_of(task: Task, trajectory: Trajectory, *, run_id: str) -> PendingKey:
    """The key of a rollout. Raises like ``pending_row``."""
    id = identity(task, [trajectory], run_id=run_id)
    return PendingKey(run_id, task.id, normalize(trajectory.rollout_id), "" if run_id else id)


def grouped(keys: Iterable[PendingKey]) -> dict[str, list[PendingKey]]:
    """Group keys by the id of their future experience: all of a task in a run, or, without a run, each alone."""
    groups: dict[str, list[PendingKey]] = {}
    for key in keys:
        groups.setdefault(attempt_id(key.run_id, key.task_id) if key.run_id else key.content, []).append(key)
    return groups


def pending_of(rows: Sequence[PendingRow], items: dict[str, MemoryItem], bank: MemoryBank) -> list[Pending]:
    """Return the groups of ``rows``, oldest first; ``items`` are the items that are still in the bank, by id.

    A group that cannot be read is skipped, with a warning in the log.
    """
    by_key = {row.key: row for row in rows}
    found = []
    for id, keys in grouped(by_key).items():
        group = sorted((by_key[key] for key in keys), key=_number)
        last = max(group, key=lambda row: row.tries)
        try:
            rollouts = [
                unpack_rollouts(row.payload or b"", f"pending rollout {id} of {group[0].key.task_id}") for row in group
            ]
        except CorruptBank as exc:
            _log.warning("%s: skipped: %s", bank, exc)
            continue
        shown = dict.fromkeys(each for row in group for each in row.shown)
        found.append(
            Pending(
                task=rollouts[0].task,
                trajectories=tuple(each.trajectories[0] for each in rollouts),
                run_id=group[0].key.run_id,
                shown=tuple(items[each] for each in shown if each in items),
                tries=last.tries,
                error=last.error,
                created_at=min(row.created_at for row in group),
                bank=bank,
            )
        )
    return found


def _number(row: PendingRow) -> tuple[bool, int, str]:
    """Sort key: rollouts by number; ids that are not numbers come last."""
    id = row.key.rollout_id
    return not id.isdecimal(), len(id), id
