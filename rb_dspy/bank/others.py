"""What is found for a task, without what that task taught itself."""

from __future__ import annotations

from collections.abc import Callable, Collection

from rb_dspy.schema import Retrieved, Task

Look = Callable[[str, int, Collection[str]], list[Retrieved]]
"""The nearest to a text: how many, and the tasks that are left out."""


def of_others(look: Look, task: Task, k: int, exclude_tasks: Collection[str]) -> list[Retrieved]:
    """The ``k`` nearest that ``task`` did not give first; further ones in the place of those that are left out.

    Also a lesson that others repeated after they had been shown it is left out: what it says came of this task.
    """
    several = isinstance(exclude_tasks, Collection) and not isinstance(exclude_tasks, str)
    excluded = (*exclude_tasks, task.id) if several else exclude_tasks  # which ``look`` refuses
    wanted = k
    while True:
        found = look(task.instruction, wanted, excluded)
        kept = [each for match in found if (each := _without(match, task.id)) is not None]
        if len(kept) >= k or len(found) < wanted:
            return kept[:k]
        wanted = 8 * wanted + 32  # few turns: each embeds the query anew


def _without(match: Retrieved, task_id: str) -> Retrieved | None:
    """``match`` without the lessons that ``task_id`` gave first; None where nothing is left of it."""
    items = tuple(item for item in match.items if item.provenance.task_id != task_id)
    if len(items) == len(match.items):
        return match
    return match.model_copy(update={"items": items}) if items else None
