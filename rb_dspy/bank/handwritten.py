"""A lesson that a person writes: an experience of a task whose instruction is the lesson itself."""

from __future__ import annotations

import pydantic

from rb_dspy.bank.admission import identity, item_text, new_item
from rb_dspy.bank.arguments import refused, text
from rb_dspy.bank.store.base import Reader
from rb_dspy.schema import ExperienceDraft, MemoryDraft, Task, Trajectory, Verdict


def lesson(title: str, content: str, description: str) -> MemoryDraft:
    """What a person wrote, as a draft. Raises ``InputError`` for texts that cannot be used."""
    values = {"title": title, "description": description, "content": content}
    try:
        return MemoryDraft(**{name: text(name, value) for name, value in values.items()})
    except pydantic.ValidationError as exc:
        raise refused(exc) from None


def task_id(item_id: str) -> str:
    """The id of the task of a handwritten lesson."""
    return f"lesson-{item_id[1:]}"


def handwritten(reader: Reader, draft: MemoryDraft, origin: str) -> ExperienceDraft | None:
    """What is to be appended; None if a person wrote this before and it is still there.

    A lesson that was removed and is written again is another experience. Raises ``InputError`` for an empty lesson.
    """
    item = new_item(draft)
    task = Task(id=task_id(item.id), instruction=item_text(item))
    if any(row.task_id == task.id for row in reader.items(ids=[item.id])):
        return None
    number = 0
    while True:
        trajectory = Trajectory(task_id=task.id, rollout_id=str(number), stop_reason="external")
        if not reader.experiences(ids=[identity(task, [trajectory], run_id="")], ended=True):
            break
        number += 1
    return ExperienceDraft(
        task=task,
        trajectories=(trajectory,),
        verdicts=(Verdict(label="success", reasons="a lesson written by hand"),),
        drafts=(draft,),
        polarity="success",
        origin=origin,
    )
