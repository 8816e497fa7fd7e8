"""Record a rollout before it is learned from, with all that a person has stated of it so far."""

from __future__ import annotations

from collections.abc import Callable

from rb_dspy.bank.admission import STATED, Rollouts, corrects, identity, unpack_rollouts
from rb_dspy.bank.reading import grouped, latest
from rb_dspy.bank.store.base import PendingRow
from rb_dspy.bank.store.overlay import Reader, Writer
from rb_dspy.bank.writing import removed_since
from rb_dspy.schema import LEVELS, Level

Waiting = tuple[PendingRow, Rollouts]
"""A pending rollout: its row, and what is packed in it."""


def record(writer: Writer, row: PendingRow, new: Rollouts, place: str, level: Callable[[str], Level]) -> Waiting | None:
    """Store a rollout that is not judged yet, with what was stated of it before and is not stated anew.

    Returns what is pending then; a rollout that is pending already is replaced only if something else is stated. None:
    it was learned from, and nothing else is stated. Raises ``InputError`` if what was learned from it was removed.
    """
    (id,) = grouped([row.key])
    stored = latest(writer, id)
    if stored is not None and stored.ended is not None:
        raise removed_since(place, new.task.id, stored.id)
    learned = None
    if stored is not None:
        learned = unpack_rollouts(stored.payload, f"experience {stored.id}").model_copy(
            update={"reward": stored.reward}
        )
        if not _same(new, learned):
            return None
    waits = _waiting(writer, row)
    if waits is not None and not _same(new, waits[1]):
        return waits[0], new
    held = learned if waits is None else waits[1]
    new = new if held is None else _restated(new, held)
    if learned is not None and not _differ(new, learned):
        writer.remove_pending([row.key])  # a correction that was taken back
        return None
    if waits is not None:
        if not _differ(new, waits[1]):
            return waits
        before = waits[0]
        writer.remove_pending([row.key])
        origin = min(before.origin, row.origin, key=lambda name: LEVELS.index(level(name)))
        shown = tuple(dict.fromkeys((*row.shown, *before.shown)))
        row = row._replace(shown=shown, origin=origin, created_at=before.created_at)
    row = row._replace(payload=new.pack())
    writer.add_pending(row)
    return row, new


def _waiting(reader: Reader, row: PendingRow) -> Waiting | None:
    """The pending rollout with the key of ``row``."""
    run_id, task_id = row.key.run_id, row.key.task_id
    if all(each.key != row.key for each in reader.pending(run_id=run_id, task_id=task_id, payload=False)):
        return None
    waits = next(each for each in reader.pending(run_id=run_id, task_id=task_id) if each.key == row.key)
    return waits, unpack_rollouts(waits.payload, f"a rollout of {task_id}")


def _restated(new: Rollouts, held: Rollouts) -> Rollouts:
    """One rollout with what was stated of it before, in ``held``, as far as ``new`` does not state it anew."""
    (rollout,), (before,) = new.trajectories, held.trajectories
    stated = {name: getattr(rollout, name) or getattr(before, name) for name in STATED}
    is_scored = rollout.known_label is not None and (
        new.reward is not None or rollout.known_label != before.known_label
    )
    reward = new.reward if is_scored else held.reward
    return new.model_copy(update={"trajectories": (rollout.model_copy(update=stated),), "reward": reward})


def _same(new: Rollouts, held: Rollouts) -> bool:
    """Whether these are the same rollouts, whatever is stated of them."""
    return identity(new.task, new.trajectories, run_id="") == identity(new.task, held.trajectories, run_id="")


def _differ(new: Rollouts, held: Rollouts) -> bool:
    return corrects(new.task, new.trajectories, held.trajectories, new.reward, held.reward)
