"""The folds of tasks that are split: which part each goes to, and that no two parts have one in common."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rb_dspy.errors import InputError
from rb_dspy.protocols import Fold
from rb_dspy.schema import Task
from rb_dspy.stream.splits import PARTS, fold_of
from rb_dspy.stream.together import Remedies


def fixed_parts(groups: Sequence[Sequence[int]], tasks: Sequence[Task], remedies: Remedies) -> list[str | None]:
    """The part that each group of positions must go to for the folds of its tasks; None where it has none.

    Raises ``InputError`` that names two tasks where one group has tasks for two parts.
    """
    return [_fixed([tasks[position] for position in group], remedies) for group in groups]


def folds_missing(name: str, tasks: Iterable[Task], empty: Sequence[str], remedies: Remedies) -> str:
    """What to say where folds fix the parts of ``tasks`` such that the parts ``empty`` get none."""
    found = {(task.env, fold) for task in tasks if (fold := fold_of(task)) is not None}
    here = " and ".join(sorted(f"{env}'s {fold}" for env, fold in found))
    lacking = " and ".join(fold for fold, part in PARTS.items() if part in empty)
    return (
        f"{name}: too few tasks for {' and '.join(empty)}, since a fold is not split and these are of {here}; expected"
        f" tasks of the fold(s) {lacking}, too: add some, or {remedies.split}"
    )


def check_folds(tasks: Sequence[Task], places: Sequence[str], remedies: Remedies) -> None:
    """``places``: the part that each task is in. Raises ``InputError`` that names two of one fold in two parts."""
    seen: dict[tuple[str, str], int] = {}
    for position, task in enumerate(tasks):
        if (fold := fold_of(task)) is None:
            continue
        first = seen.setdefault((task.env, fold), position)
        if places[first] != places[position]:
            raise InputError(
                f"{tasks[first].id!r} in {places[first]} and {task.id!r} in {places[position]} are of {task.env}'s fold"
                f" {fold}; expected a fold in one of them: {remedies.parts}"
            )


def _fixed(group: Sequence[Task], remedies: Remedies) -> str | None:
    first: dict[Fold, Task] = {}
    for task in group:
        if (fold := fold_of(task)) is not None:
            first.setdefault(fold, task)
    if len(first) > 1:
        (fold, one), (other_fold, other), *_ = first.items()
        raise InputError(
            f"{one.id!r} of {one.env}'s fold {fold} and {other.id!r} of {other.env}'s fold {other_fold} cannot be told"
            " apart: they have one template, or are near-duplicates, maybe by way of others; expected such tasks in one"
            f" fold: leave one out, name their kinds as templates, or {remedies.split}"
        )
    return next((PARTS[fold] for fold in first), None)
