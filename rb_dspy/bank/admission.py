"""What becomes of drafts when they enter a bank: checked, made storable, and named."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from datetime import UTC, datetime

from rb_dspy.bank.interface import NewExperience, NewItem
from rb_dspy.errors import InputError
from rb_dspy.schema import (
    Label,
    MemoryDraft,
    MemoryItem,
    Polarity,
    State,
    Task,
    Trajectory,
    Verdict,
    hidden_characters,
    visible,
)

_NAME = 200


def checked_name(what: str, name: str) -> str:
    """``name`` if it can be one: 1 to 200 visible characters."""
    if not isinstance(name, str) or not name.strip() or len(name) > _NAME or hidden_characters(name):
        raise InputError(f"{what} {str(name)[:40]!r}: expected 1 to {_NAME} visible characters")
    return name


def admit(
    scope: str,
    task: Task,
    trajectories: Sequence[Trajectory],
    verdicts: Sequence[Verdict],
    drafts: Sequence[MemoryDraft],
    *,
    run_id: str,
    polarity: Polarity | None,
    distiller: str,
    state: State,
    note: str,
    shown: Sequence[MemoryItem],
) -> NewExperience:
    """The experience as it is to be stored. Raises ``InputError`` for parts that do not belong together.

    An item's id is a hash of its experience's id and its text, so the same lesson from two experiences is two items. A
    draft that stands twice is admitted once.
    """
    if not trajectories or len(trajectories) != len(verdicts):
        raise InputError(
            f"task {task.id}: {len(trajectories)} trajectories and {len(verdicts)} verdicts; expected"
            " one verdict for each trajectory, and at least one"
        )
    experience_id = identity(scope, task, trajectories, run_id=run_id, state=state)
    label = overall(verdicts)
    items: dict[str, NewItem] = {}
    for draft in drafts:
        texts = [visible(draft.title), visible(draft.description), visible(draft.content)]
        digest = _digest("text", *texts)
        items[digest] = NewItem(f"m{_digest('item', experience_id, *texts)}", digest, *texts)
    return NewExperience(
        id=experience_id,
        task=task,
        trajectories=tuple(trajectories),
        verdicts=tuple(verdicts),
        items=tuple(items.values()),
        polarity=polarity or ("success" if label == "success" else "failure"),
        label=label,
        run_id=run_id,
        distiller=visible(distiller),
        state=state,
        note=visible(note),
        created_at=datetime.now(UTC).isoformat(timespec="seconds"),
        shown=tuple(dict.fromkeys(item.id for item in shown)),
    )


def identity(scope: str, task: Task, trajectories: Sequence[Trajectory], *, run_id: str, state: State) -> str:
    """The id of an experience: a hash of what makes it the same one, which is scope, run, task and rollout ids.

    Without a run there is no name for an attempt, so what happened in the rollouts takes the run's place. What was only
    recorded is another experience than what was learned from the same rollouts later. Raises ``InputError`` for a
    trajectory of another task, and for rollout ids that are not different.
    """
    strangers = [trajectory.task_id for trajectory in trajectories if trajectory.task_id != task.id]
    if strangers:
        raise InputError(f"task {task.id}: a trajectory is of the task {strangers[0]!r}; append it with its own task")
    rollouts = sorted(trajectory.rollout_id for trajectory in trajectories)
    if len(set(rollouts)) < len(rollouts):
        raise InputError(f"task {task.id}: rollout ids {rollouts} are not different; give each rollout its own")
    if run_id:
        checked_name("run id", run_id)
        attempt: object = run_id
    else:
        ordered = sorted(trajectories, key=lambda trajectory: trajectory.rollout_id)
        attempt = [trajectory.model_dump(exclude={"usage"}) for trajectory in ordered]
    recorded = ["recorded"] if state == "recorded" else []
    return f"e{_digest('experience', scope, attempt, task.id, rollouts, *recorded)}"


def overall(verdicts: Sequence[Verdict]) -> Label:
    """One word for several rollouts: a success when any was one, else a failure when any was one, else unknown."""
    labels = {verdict.label for verdict in verdicts}
    return "success" if "success" in labels else "failure" if "failure" in labels else "unknown"


def item_text(item: NewItem) -> str:
    """What an item is found by: title, description and content, a line each."""
    return f"{item.title}\n{item.description}\n{item.content}"


def _digest(*parts: object) -> str:
    """80 bits in hex: at a billion ids the chance that any two are equal is one in two million."""
    return hashlib.sha256(json.dumps(parts, separators=(",", ":")).encode("ascii")).hexdigest()[:20]
