"""What callers give a bank, seen to be what it takes: anything else is one line, and nothing is stored of it.

Appends are many: what is right costs no more than a look at its type.
"""

from __future__ import annotations

import logging
import operator
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, SupportsIndex, TypeVar

import numpy as np
import pydantic

from rb_dspy.errors import InputError
from rb_dspy.schema import ExperienceDraft, MemoryDraft, MemoryItem, Task, Trajectory, Verdict
from rb_dspy.text import first_error, normalise

_log = logging.getLogger("rb_dspy.bank")

T = TypeVar("T")


def drafted(
    scope: str,
    task: Task,
    trajectory: Trajectory | Sequence[Trajectory],
    verdict: Verdict | Sequence[Verdict],
    drafts: Sequence[MemoryDraft],
    shown: Sequence[MemoryItem],
    **more: Any,
) -> ExperienceDraft:
    """What ``MemoryBank.append`` was given, as one. Raises ``InputError`` for what is of another type."""
    trajectories = (trajectory,) if isinstance(trajectory, Trajectory) else several("trajectories", trajectory)
    verdicts = (verdict,) if isinstance(verdict, Verdict) else several("verdicts", verdict)
    try:
        return ExperienceDraft(
            task=task,
            trajectories=trajectories,
            verdicts=verdicts,
            drafts=several("drafts", drafts),
            shown=ids_of(scope, shown),
            **more,
        )
    except pydantic.ValidationError as exc:
        raise refused(exc) from None


def refused(exc: pydantic.ValidationError) -> InputError:
    """The first error, in one line."""
    place, problem = first_error(exc)
    return InputError(f"{place}: got {type(exc.errors()[0]['input']).__name__}; {problem}")


def ids_of(scope: str, shown: Sequence[MemoryItem]) -> tuple[str, ...]:
    """The ids of what an agent was shown, of this scope's: no scope tells of another one, so those are left out.

    Raises ``InputError`` for what is no item: an id may be anything's.
    """
    items = several("shown", shown)
    for item in items:
        if not isinstance(item, MemoryItem):
            raise _another("shown", item, "the items themselves, as retrieve or get gives them")
    own = tuple([item.id for item in items if item.scope == scope])
    if len(own) < len(items):
        _log.warning("scope %r: %d shown lessons of other scopes are not noted", scope, len(items) - len(own))
    return own


def rollouts(task: Task, given: Trajectory | Sequence[Trajectory]) -> tuple[Trajectory, ...]:
    """One rollout of ``task``, or several. Raises ``InputError`` for what is of another type, the task as well."""
    task_of(task)
    return (given,) if isinstance(given, Trajectory) else each("trajectories", given, Trajectory)


def task_of(given: Task | object) -> Task:
    """A task. Raises ``InputError`` for what is none."""
    if not isinstance(given, Task):
        raise _another("task", given, "a Task")
    return given


def each(what: str, given: Sequence[T], kind: type[T]) -> tuple[T, ...]:
    """All of them, of this type. Raises ``InputError``."""
    these = several(what, given)
    for one in these:
        if not isinstance(one, kind):
            raise _another(what, one, f"a list of {kind.__name__}")
    return these


def many(drafts: Iterable[ExperienceDraft]) -> Iterator[ExperienceDraft]:
    """What is appended together, one by one as it is asked for. Raises ``InputError`` for what is of another type."""
    return map(_draft, _listed("drafts", drafts))


def several(what: str, given: Iterable[T]) -> tuple[T, ...]:
    """All of them. Raises ``InputError`` for what is no list, nor can be gone through like one."""
    return tuple(given if given.__class__ is list or given.__class__ is tuple else _listed(what, given))


def text(what: str, given: str | object) -> str:
    """A text as it is stored. Raises ``InputError`` for what is none."""
    if not isinstance(given, str):
        raise _another(what, given, "text")
    return normalise(given)


def id_(given: str | object) -> str:
    """An id as it is stored. Raises ``InputError`` for what is no text, such as the item that has it."""
    if not isinstance(given, str):
        raise InputError(f"got {type(given).__name__}; expected an id, which is text: give its id")
    return normalise(given)


def whole_number(given: object) -> int | None:
    """A whole number, numpy's too; None for anything else."""
    if isinstance(given, bool | np.bool_) or not isinstance(given, SupportsIndex):
        return None
    return operator.index(given)


def file(given: str | Path) -> Path:
    """The place of a file. Raises ``InputError`` for what is none."""
    if not isinstance(given, str | os.PathLike):
        raise _another("path", given, "the name of a file")
    path = Path(given)
    try:
        name = os.fsencode(path)
    except UnicodeEncodeError:
        raise InputError(f"path {str(path)[:80]!r}: half a character is in it; expected the name of a file") from None
    if b"\0" in name:
        raise InputError(f"path {str(path)[:80]!r}: a path holds no NUL; expected the name of a file")
    return path


def _listed(what: str, given: Iterable[T]) -> Iterable[T]:
    # A record can be gone through as well, and gives its fields.
    if isinstance(given, str | pydantic.BaseModel) or not isinstance(given, Iterable):
        raise _another(what, given, "a list")
    return given


def _draft(given: ExperienceDraft) -> ExperienceDraft:
    if not isinstance(given, ExperienceDraft):
        raise _another("drafts", given, "a list of ExperienceDraft")
    return given


def _another(what: str, given: object, expected: str) -> InputError:
    return InputError(f"{what}: got {type(given).__name__}; expected {expected}")
