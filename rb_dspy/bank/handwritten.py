"""A lesson that a person writes: an experience of a task whose instruction is the lesson itself."""

from __future__ import annotations

import pydantic

from rb_dspy.bank.admission import identity, new_item
from rb_dspy.bank.given import refused, text
from rb_dspy.bank.interface import BankStore
from rb_dspy.bank.parts import item_text
from rb_dspy.errors import InputError
from rb_dspy.schema import ExperienceDraft, MemoryDraft, MemoryItem, Task, Trajectory, Verdict


def draft_of(title: str, content: str, description: str) -> MemoryDraft:
    """The lesson. Raises ``InputError`` for an empty title or content, and for what is no text."""
    values = {"title": title, "description": description, "content": content}
    try:
        draft = MemoryDraft(**{name: text(name, value) for name, value in values.items()})
    except pydantic.ValidationError as exc:
        raise refused(exc) from None
    if not (draft.title and draft.content):
        raise InputError("a lesson needs a title and content; expected text in both")
    return draft


def stored_by_hand(store: BankStore, scope: str, draft: MemoryDraft) -> MemoryItem | None:
    """The item that says this and was written by hand; None where there is none."""
    item = new_item(scope, draft)
    id = store.items_with(scope, [item.digest]).get(item.digest)
    found = None if id is None else store.item(scope, id)
    task_id = _task_id(item.digest)
    return found if found and any(source.task_id == task_id for source in found.provenances) else None


def experience_of(store: BankStore, scope: str, draft: MemoryDraft, *, origin: str) -> ExperienceDraft:
    """What is to be appended: retrieval finds it by title, description and content, as there is no task.

    A lesson that was taken away and is written again is another experience.
    """
    item = new_item(scope, draft)
    task = Task(id=_task_id(item.digest), instruction=item_text(item))
    number = 0
    while True:
        trajectory = Trajectory(task_id=task.id, rollout_id=str(number), stop_reason="external")
        if not store.have(scope, [identity(scope, task, [trajectory], run_id="")]):
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


def _task_id(digest: str) -> str:
    return f"lesson-{digest}"
