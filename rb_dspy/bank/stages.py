"""Which of several ingestions of one name counts, and when one may not go on."""

from __future__ import annotations

from collections.abc import Sequence

from rb_dspy.commands import bank_options
from rb_dspy.errors import InputError
from rb_dspy.schema import Experience, Ingestion, Task, Trajectory

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
            f"task {new.task.id}: the rollouts {new.id} do not wait any more, they were learned from, removed or joined"
            " by others meanwhile; ingest them again if they are to be learned from"
        )
    if not same_rollouts(kept.trajectories, new.trajectories):
        return new if begins else kept
    told = kept.told or new.told
    if STAGES.index(new.stage) > STAGES.index(kept.stage):
        return new.model_copy(update={"told": told})
    error = new.error if new.stage == kept.stage else kept.error
    return kept.model_copy(update={"error": error, "told": told})


def of_task(known: Experience, task: Task, location: str) -> Experience:
    """``known``, which has the id of an attempt at ``task``; ``location``: of the bank that it is in.

    Raises ``InputError`` where it is of another task.

    Ids are hashes of scope, run, task and rollouts, but an import keeps those that its file says.
    """
    if known.task.id == task.id:
        return known
    raise InputError(
        f"task {task.id}: the id of this attempt, {known.id}, is that of an imported experience of another task"
        f" ({known.task.id[:40]!r}); to learn from this one, name another run_id; to see where that one came from:"
        f" rb-dspy bank show {known.id}{bank_options(location, known.scope)}"
    )


def gives_way(kept: Ingestion | None, new: Ingestion, instead: Ingestion | None) -> bool:
    """Whether ``kept``, the ingestion of the id of ``instead``, goes when ``new`` comes: see ``BankStore.hold``.

    Of two calls of one name each takes away what is its own.
    """
    if kept is None or instead is None or kept.id == new.id:
        return False
    return same_rollouts(kept.trajectories, instead.trajectories)


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
