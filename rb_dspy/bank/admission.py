"""Admit drafts to a bank: check them, normalize their text, and use a hash of the text as the id."""

from __future__ import annotations

import itertools
import json
import logging
import re
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any

import pydantic
from pydantic import JsonValue

from rb_dspy.bank.store.base import HELD, ExperienceRow, ItemRow
from rb_dspy.bank.store.overlay import Reader
from rb_dspy.bank.store.tables import embedded_text
from rb_dspy.errors import CorruptBank, InputError
from rb_dspy.schema import (
    LEVELS,
    Experience,
    ExperienceDraft,
    ItemDraft,
    Label,
    Level,
    MemoryDraft,
    MemoryItem,
    Task,
    Trajectory,
    Verdict,
)
from rb_dspy.text import first_error, invisible, normalize, without_invisible

_log = logging.getLogger("rb_dspy.bank")

_NAME = 200
"""Maximum length of a name, in characters."""

_DIGITS = 20
"""80 bits in hex: with a billion ids, the chance of a collision is one in two million."""

_MOST = 1_000_000_000
"""Maximum bytes of an unpacked payload; rb_dspy writes no larger ones."""

STATED = ("known_label", "feedback")
"""Fields of a rollout that a person states, and may correct."""


@dataclass(frozen=True)
class NewExperience:
    """An experience to be stored: the draft, its row, and the rows of its items; ``seq`` is 0 until they are stored."""

    draft: ExperienceDraft
    row: ExperienceRow
    items: tuple[ItemRow, ...]
    """An item gets the level of the experience; or that of its row, 2 if the owner edited it, if that is higher."""
    corrects: str = ""
    """The id of the experience that it replaces."""
    back: str | None = None
    """It was removed and is brought back: why."""
    held: frozenset[str] = frozenset()
    """Ids of items that are held, whatever the level of the experience."""
    marks: tuple[tuple[str, str, str], ...] = ()
    """Id, name and value of marks that it comes with."""
    stated: bool = False
    """Whether its level is final; otherwise what was shown may lower it."""
    imported: bool = False
    """Whether it comes from a file that is not believed."""
    recorded: bool = False
    """Whether its rollouts have to be pending still when it is stored."""

    @property
    def id(self) -> str:
        return self.row.id


def checked_name(what: str, name: object) -> str:
    """Return ``name``. Raises ``InputError`` unless it has 1 to 200 visible characters."""
    if not isinstance(name, str) or not name.strip() or len(name) > _NAME or invisible(name):
        raise InputError(f"{what} {str(name)[:40]!r}: expected 1 to {_NAME} visible characters")
    return name


def admit(
    draft: ExperienceDraft, level: Level, *, created_at: str = "", items: Iterable[ItemRow] | None = None
) -> NewExperience:
    """Convert a draft from an origin of ``level`` to an experience to be stored.

    Lessons with the same text become one item. ``items``: the lessons, if they are converted already.

    Raises ``InputError`` if task, trajectories and verdicts do not match, or a lesson has no title or no content.
    """
    if not draft.trajectories or len(draft.trajectories) != len(draft.verdicts):
        raise InputError(
            f"task {draft.task.id}: {len(draft.trajectories)} trajectories and {len(draft.verdicts)} verdicts; expected"
            " one verdict for each trajectory, and at least one"
        )
    if draft.submitted is not None and draft.submitted >= len(draft.trajectories):
        raise InputError(f"task {draft.task.id}: submitted is {draft.submitted}; expected the place of a trajectory")
    task, labels = draft.task, {verdict.label for verdict in draft.verdicts}
    label: Label = "success" if "success" in labels else "failure" if "failure" in labels else "unknown"
    known = [rollout.known_label == "success" for rollout in draft.trajectories if rollout.known_label]
    reward = draft.reward if draft.reward is not None or not known else sum(known) / len(known)
    row = ExperienceRow(
        seq=0,
        id=identity(task, draft.trajectories, run_id=draft.run_id),
        ended=None,
        task_id=task.id,
        template=None if task.template is None else normalize(task.template),
        run_id=draft.run_id,
        origin=checked_name("origin", draft.origin) if draft.origin else "",
        distiller=normalize(draft.distiller),
        note=normalize(draft.note),
        label=label,
        polarity=draft.polarity or ("success" if label == "success" else "failure"),
        instruction=task.key or task.instruction,
        created_at=created_at or now(),
        level=LEVELS.index(level),
        reward=reward,
        payload=Rollouts(
            task=task, trajectories=draft.trajectories, verdicts=draft.verdicts, submitted=draft.submitted
        ).pack(),
    )
    given = map(new_item, draft.drafts) if items is None else items
    return NewExperience(draft, row, tuple({item.id: item for item in given}.values()))


class Rollouts(pydantic.BaseModel):
    """The content of a payload."""

    task: Task
    trajectories: tuple[Trajectory, ...]
    verdicts: tuple[Verdict, ...] = ()
    submitted: int | None = pydantic.Field(default=None, exclude_if=lambda place: place is None)
    reward: float | None = pydantic.Field(default=None, exclude_if=lambda reward: reward is None)

    def pack(self) -> bytes:
        """These as compressed JSON."""
        return zlib.compress(json.dumps(self.model_dump(), separators=(",", ":")).encode("ascii"), 6)


def unpack_rollouts(payload: bytes | None, what: str) -> Rollouts:
    """Unpack the result of ``Rollouts.pack``. Raises ``CorruptBank``, whose message names ``what``."""
    try:
        engine = zlib.decompressobj()
        text = engine.decompress(payload or b"", _MOST)
        if not engine.eof:
            raise ValueError("it is truncated or too large")
        return Rollouts.model_validate(json.loads(text))
    except (zlib.error, ValueError) as exc:
        raise CorruptBank(f"{what} is damaged ({exc!s:.100}); restore a backup") from None


def ids_of(scope: str, shown: Sequence[MemoryItem | Experience | str]) -> tuple[str, ...]:
    """Return the ids of what was shown, or named by its id. What is of other scopes is skipped, with a warning in the
    log."""
    items = [(each, scope) if isinstance(each, str) else (each.id, each.scope) for each in shown]
    own = dict.fromkeys(id for id, of in items if of == scope)
    if others := sum(of != scope for _, of in items):
        _log.warning("scope %r: %d shown lessons or experiences of other scopes are not noted", scope, others)
    return tuple(own)


def checked_draft(
    texts: Mapping[str, Any], kind: str = "lesson", data: Mapping[str, JsonValue] | None = None
) -> MemoryDraft:
    """Return a draft with these texts. Raises ``InputError`` if a text is too long or not valid."""
    if odd := next((name for name, text in texts.items() if not isinstance(text, str)), ""):
        raise InputError(f"{odd}: got {type(texts[odd]).__name__}; expected a text")
    try:
        draft = (
            MemoryDraft(**texts) if kind == "lesson" and not data else ItemDraft(**texts, kind=kind, data=data or {})
        )
    except pydantic.ValidationError as exc:
        raise refused(exc) from None
    for name, text in texts.items():
        if len(stored := getattr(draft, name)) < len(text.strip()):
            raise InputError(f"{name} has {len(text):,} characters; expected at most {len(stored):,}")
    return draft


def refused(exc: pydantic.ValidationError) -> InputError:
    """Convert the first error to one line. Its keys are escaped, because they may be untrusted text."""
    place, problem = first_error(exc)
    return InputError(f"{ascii(place)[1:-1][:80]}: {problem}")


def new_item(draft: MemoryDraft) -> ItemRow:
    """Convert a draft to an item. Raises ``InputError`` if it has no title or no content."""
    title, description, content = (
        without_invisible(normalize(text)) for text in (draft.title, draft.description, draft.content)
    )
    if not (title.strip() and content.strip()):
        missing = "content" if title.strip() else "title"
        raise InputError(f"a lesson ({title[:40]!r}) has no {missing}; expected a title and a content")
    kind, data = (draft.kind, draft.data) if isinstance(draft, ItemDraft) else ("lesson", {})
    packed = json.dumps(data, separators=(",", ":"), sort_keys=True) if data else "{}"
    id = item_id(title, description, content, kind, packed)
    return ItemRow(0, id, None, 0, 0, "", "success", title, description, content, kind, packed, "", HELD)


def item_id(title: str, description: str, content: str, kind: str, data: str) -> str:
    """A hash of what an item says: the same lesson twice is one item."""
    more = () if (kind, data) == ("lesson", "{}") else (kind, data)
    return f"m{_hash('item', title, description, content, *more)}"


def identity(task: Task, trajectories: Sequence[Trajectory], *, run_id: str) -> str:
    """The id of an experience: a hash of run and task, or, without a run, of the task and its rollouts.

    What a person said about the rollouts does not count: a corrected rollout is the same attempt.

    Raises ``InputError`` if a trajectory belongs to another task, or two trajectories have the same rollout id.
    """
    strangers = [trajectory.task_id for trajectory in trajectories if trajectory.task_id != task.id]
    if strangers:
        raise InputError(f"task {task.id}: a trajectory belongs to task {strangers[0]!r}; append it with its own task")
    rollouts = [trajectory.rollout_id for trajectory in trajectories]
    if len(set(rollouts)) < len(rollouts):
        raise InputError(f"task {task.id}: rollout ids {sorted(rollouts)} are not unique; give each rollout its own")
    if run_id:
        return attempt_id(checked_name("run id", run_id), task.id)
    ordered = sorted(trajectories, key=lambda trajectory: trajectory.rollout_id)
    apart = {"usage", "shown", *STATED}
    return f"e{_hash('rollouts', task.id, *(each.model_dump(exclude=apart) for each in ordered))}"


def corrects(
    task: Task,
    new: Sequence[Trajectory],
    stored: Sequence[Trajectory],
    reward: float | None = None,
    stored_reward: float | None = None,
) -> bool:
    """Whether ``new`` are the stored rollouts, with another verdict or feedback that a person stated.

    Another ``reward`` beside a stated verdict counts too.
    """
    if identity(task, new, run_id="") != identity(task, stored, run_id=""):
        return False
    stated, before = ([[getattr(each, name) for name in STATED] for each in rollouts] for rollouts in (new, stored))
    scored = reward is not None and reward != stored_reward and any(each.known_label for each in new)
    return (stated != before or scored) and any(map(any, stated))


def corrected_id(id: str) -> str:
    """The id of the experience that replaces ``id`` when a verdict is corrected."""
    return f"e{_hash('corrected', id)}"


def attempt_id(run_id: str, task_id: str) -> str:
    """The id of the experience of a run and a task."""
    return f"e{_hash('attempt', run_id, task_id)}"


def item_text(item: ItemRow | MemoryItem) -> str:
    """The text that an item is embedded by: title, description and content, one per line, or as its kind says."""
    return embedded_text(item.kind, item.title, item.description, item.content)


def now() -> str:
    """The current time, for display: ISO 8601, UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


_ENCODER = json.JSONEncoder(separators=(",", ":"))


def _hash(*parts: object) -> str:
    return sha256(_ENCODER.encode(parts).encode("ascii")).hexdigest()[:_DIGITS]


def is_handwritten(task_id: str) -> bool:
    """Whether this is the task id of a handwritten lesson."""
    return re.fullmatch(rf"lesson-[0-9a-f]{{{_DIGITS}}}", task_id) is not None


def handwritten(reader: Reader, draft: MemoryDraft, origin: str) -> ExperienceDraft | None:
    """Return the experience of a handwritten lesson, or None if the same lesson is already stored.

    A lesson that was removed and is written again is a new experience. Raises ``InputError`` for an empty lesson.
    """
    item = new_item(draft)
    task = Task(id=f"lesson-{item.id[1:]}", instruction=item_text(item))
    if any(row.task_id == task.id and row.origin == origin for row in reader.items(ids=[item.id])):
        return None
    for number in itertools.count():
        trajectory = Trajectory(task_id=task.id, rollout_id=str(number), stop_reason="external")
        if not reader.experiences(ids=[identity(task, [trajectory], run_id="")], ended=True):
            break
    return ExperienceDraft(
        task=task,
        trajectories=(trajectory,),
        verdicts=(Verdict(label="success", reasons="a lesson written by hand"),),
        drafts=(draft,),
        polarity="success",
        origin=origin,
    )
