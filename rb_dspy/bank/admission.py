"""What becomes of drafts when they enter a bank: checked, made storable, and named."""

from __future__ import annotations

import contextlib
import json
import re
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from hashlib import sha256
from json.encoder import encode_basestring_ascii as _quoted

from pydantic_core import PydanticSerializationError

from rb_dspy.bank.ascii_json import ascii_json
from rb_dspy.bank.parts import NewExperience, NewItem
from rb_dspy.errors import InputError
from rb_dspy.schema import (
    ExperienceDraft,
    Label,
    MemoryDraft,
    Task,
    Trajectory,
    Verdict,
)
from rb_dspy.text import MAX_TEXT, invisible, normalise

_NAME = 200

_DIGITS = 20
"""80 bits in hex: at a billion ids the chance that any two are equal is one in two million."""

_perhaps_hidden = re.compile(rb"\\[bfu]").search
"""Whether ASCII JSON escapes anything but quotes, backslashes, line ends and tabs; some of these look so as well."""

_json = json.JSONEncoder(separators=(",", ":")).encode


def checked_name(what: str, name: str | object) -> str:
    """``name`` if it can be one: 1 to 200 visible characters."""
    if not isinstance(name, str) or not name.strip() or len(name) > _NAME or invisible(name):
        raise InputError(f"{what} {str(name)[:40]!r}: expected 1 to {_NAME} visible characters")
    return name


def admit(scope: str, draft: ExperienceDraft, *, id: str | None = None, created_at: str | None = None) -> NewExperience:
    """The experience as it is to be stored. Raises ``InputError`` for parts that do not belong together.

    A draft that stands twice is admitted once. ``id`` and ``created_at`` are given where another bank gave them first.
    """
    if not draft.trajectories or len(draft.trajectories) != len(draft.verdicts):
        raise InputError(
            f"task {draft.task.id}: {len(draft.trajectories)} trajectories and {len(draft.verdicts)} verdicts; expected"
            " one verdict for each trajectory, and at least one"
        )
    empty = [lesson for lesson in draft.drafts if not (lesson.title.strip() and lesson.content.strip())]
    if empty:
        raise InputError(
            f"task {draft.task.id}: a lesson has the title {empty[0].title[:40]!r} and {len(empty[0].content.strip())}"
            " characters of content; expected both: leave it out"
        )
    own = identity(scope, draft.task, draft.trajectories, run_id=draft.run_id)
    label = overall(draft.verdicts)
    items = {item.digest: item for item in [new_item(scope, lesson) for lesson in draft.drafts]}
    return NewExperience(
        id=id or own,
        task=draft.task,
        trajectories=draft.trajectories,
        verdicts=draft.verdicts,
        items=tuple(items.values()),
        polarity=draft.polarity or ("success" if label == "success" else "failure"),
        label=label,
        run_id=draft.run_id,
        distiller=normalise(draft.distiller),
        note=normalise(draft.note),
        origin=checked_name("origin", draft.origin) if draft.origin else "",
        created_at=created_at or now(),
        shown=tuple(dict.fromkeys(draft.shown)),
    )


def new_item(scope: str, draft: MemoryDraft, id: str | None = None) -> NewItem:
    """A draft as an item: its id is a hash of scope and text, unless it has one already."""
    texts = draft.title, draft.description, draft.content
    said = _said(*texts)
    if _perhaps_hidden(said) or len(said) > MAX_TEXT:  # else ``normalise`` changes nothing, and takes longer to say so
        seen = normalise(draft.title), normalise(draft.description), normalise(draft.content)
        if seen != texts:
            texts, said = seen, _said(*seen)
    digest = _hash(said)
    usual = item_id(scope, digest)
    return NewItem(id or usual, digest, *texts, apart=id is not None and id != usual)


def item_id(parent: str, digest: str) -> str:
    """The id of an item with this text. ``parent`` is the scope; where that id is taken, see ``free_item_id``."""
    return "m" + _hash(ascii_json(("item", parent, digest)))


def free_item_id(parent: str, digest: str, taken: Callable[[str], bool]) -> str:
    """The first id that is not ``taken``, of those made of ``parent``, then of each other.

    ``parent`` is the experience that gives the item, whose usual id is that of an item that was edited. An import can
    have brought an item of the id that this gives, and that was edited since: hence those that follow on it.
    """
    id = item_id(parent, digest)
    while taken(id):
        id = item_id(id, digest)
    return id


def text_digest(title: str, description: str, content: str) -> str:
    """What tells whether an item's text is the one that was stored."""
    return _hash(_said(title, description, content))


def _said(title: str, description: str, content: str) -> bytes:
    return ascii_json(("text", title, description, content))


def _is_plain(told: bytes) -> bool:
    """Whether JSON of pydantic's is what ``json`` gives in ASCII: of that, they write one character differently."""
    return told.isascii() and 0x7F not in told


def identity(scope: str, task: Task, trajectories: Sequence[Trajectory], *, run_id: str) -> str:
    """The id of an experience: a hash of what makes it the same one, which is scope, run, task and rollout ids.

    Without a run there is no name for an attempt, so what happened in the rollouts takes the run's place. Raises
    ``InputError`` for a trajectory of another task, and for rollout ids that are not different.
    """
    strangers = [trajectory.task_id for trajectory in trajectories if trajectory.task_id != task.id]
    if strangers:
        raise InputError(f"task {task.id}: a trajectory is of the task {strangers[0]!r}; append it with its own task")
    rollouts = [trajectory.rollout_id for trajectory in trajectories]
    if len(set(rollouts)) < len(rollouts):
        raise InputError(f"task {task.id}: rollout ids {sorted(rollouts)} are not different; give each rollout its own")
    if run_id:
        return attempt_id(scope, task.id, rollouts, run_id=run_id)
    ordered = sorted(trajectories, key=lambda trajectory: trajectory.rollout_id)
    return _attempt_id(scope, task.id, rollouts, f"[{','.join([_happened(trajectory) for trajectory in ordered])}]")


def attempt_id(scope: str, task_id: str, rollout_ids: Sequence[str], *, run_id: str) -> str:
    """``identity`` of an attempt of a run."""
    return _attempt_id(scope, task_id, rollout_ids, _quoted(checked_name("run id", run_id)))


def _attempt_id(scope: str, task_id: str, rollout_ids: Sequence[str], attempt: str) -> str:
    named = ",".join([_quoted(rollout) for rollout in sorted(rollout_ids)])
    return "e" + _hash(f'["experience",{_quoted(scope)},{attempt},{_quoted(task_id)},[{named}]]'.encode("ascii"))


def _happened(rollout: Trajectory) -> str:
    """A rollout without its usage as JSON in ASCII: what ``json`` gives, for most in a quarter of the time."""
    with contextlib.suppress(PydanticSerializationError):  # a lone surrogate
        told = Trajectory.__pydantic_serializer__.to_json(rollout, exclude={"usage"})
        if _is_plain(told):
            return told.decode("ascii")
    return _json(rollout.model_dump(exclude={"usage"}))


def overall(verdicts: Sequence[Verdict]) -> Label:
    """One word for several rollouts: a success when any was one, else a failure when any was one, else unknown."""
    labels = {verdict.label for verdict in verdicts}
    return "success" if "success" in labels else "failure" if "failure" in labels else "unknown"


def now() -> str:
    """The time for people to read: ISO 8601, UTC, to the second."""
    return _second(int(time.time()))


@lru_cache(maxsize=1)
def _second(number: int) -> str:
    return datetime.fromtimestamp(number, UTC).isoformat(timespec="seconds")


def _hash(said: bytes) -> str:
    return sha256(said).hexdigest()[:_DIGITS]
