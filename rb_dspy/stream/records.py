"""A task as a record of its fields, in whatever file or table it stands; and the digest that names a list of them."""

from __future__ import annotations

import hashlib
import json
import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pydantic

from rb_dspy.errors import InputError, InvalidTask
from rb_dspy.schema import Task
from rb_dspy.wording import first_misfit

log = logging.getLogger("rb_dspy")

FIELDS = tuple(Task.model_fields)

_DIGITS = 10
"""40 bits in hex: of 10,000 tasks the chance that any two that differ are taken for the same is one in 22,000, of a
million more than one in three. Ids in banks are made of them, and the parts that tasks had in a compile are kept under
them, so it stays."""


class Ids:
    """Ids for records without one: the name of their file or table, and a digest of what is to be done.

    So a task keeps its id when others come or go or stand in another order, and two that differ have two, though their
    files have the same name, as surely as digests differ (``_DIGITS``); a number follows where one stands several
    times.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._times: Counter[str] = Counter()

    def of(self, task: Task) -> str:
        """The id of the next record, as a task without one."""
        key = fingerprint(task)
        self._times[key] += 1
        return f"{self._name}/{key}" + (f"-{self._times[key]}" if self._times[key] > 1 else "")

    def warn(self, place: str) -> None:
        """Say where a task stands several times: what the first teaches tells the others' answer."""
        again = self._times.total() - len(self._times)
        if again:
            log.warning(
                "%s: %d %s what another line asks, and will be shown what that taught: a score of them is partly an"
                " echo; leave them out",
                place,
                again,
                "task asks" if again == 1 else "tasks ask",
            )


def fingerprint(task: Task) -> str:
    """``_DIGITS`` of what is to be done: equal for a task under another id, or in another file."""
    said = json.dumps([task.instruction, task.env, task.env_args], sort_keys=True, default=str)
    return hashlib.sha256(said.encode()).hexdigest()[:_DIGITS]


def told_by(task_id: str) -> str:
    """The fingerprint in an id that ``Ids`` gave; of any other id something that is none."""
    return task_id.rpartition("/")[2].partition("-")[0]


def digest(tasks: Iterable[Task]) -> str:
    """20 hex digits of SHA-256 over the order, ids and contents of ``tasks``; equal in every process and format."""
    found = hashlib.sha256(b"rb_dspy tasks 1\n")
    for task in tasks:
        # Fields that are left at their default stay out, so that a field that Task gains later changes no digest.
        fields = task.model_dump(exclude_defaults=True)
        found.update(as_json(task, fields, sort_keys=True).encode() + b"\n")
    return found.hexdigest()[:20]


def check_ids(tasks: Sequence[Task], place: str) -> None:
    """Raise ``InputError`` for an id that stands twice."""
    task_id, times = max(Counter(task.id for task in tasks).items(), key=lambda found: found[1])
    if times > 1:
        raise InputError(f"{place}: the task id {task_id!r} stands {times} times; ids must differ")


def check_writable(tasks: Sequence[Task], path: Path) -> None:
    """Refuse what could not be read again."""
    if not tasks:
        raise InputError(f"{path}: a stream without tasks; expected at least one to write")
    check_ids(tasks, str(path))


def task_of(place: str, fields: Mapping[str, Any], ids: Ids) -> Task:
    """The task with these fields. Raises ``InvalidTask`` that names the ``place`` it was read at."""
    try:
        if "id" in fields:
            return Task.model_validate(fields)
        task = Task.model_validate({**fields, "id": "none"})
        return Task.model_validate({**fields, "id": ids.of(task)})  # a file's name may be no name of a task
    except InvalidTask as exc:
        raise InvalidTask(f"{place}: {exc}") from None
    except pydantic.ValidationError as exc:
        misfit = first_misfit(exc)
        if misfit.type == "extra_forbidden":
            name = str(misfit.loc[0])[:200]
            told = f"{place}: a task has no field {name!r}; it has {', '.join(FIELDS)}"
            raise InvalidTask(f"{told}; a question's right answer goes into env_args.answer") from None
        raise InvalidTask(f"{place}: {misfit.place[:200]}: {misfit.why}") from None


def as_json(task: Task, value: Mapping[str, Any], *, sort_keys: bool = False, ensure_ascii: bool = True) -> str:
    """``value``, fields of ``task``, as JSON. Raises ``InputError`` for what JSON cannot hold."""
    try:
        return json.dumps(value, sort_keys=sort_keys, ensure_ascii=ensure_ascii, separators=(",", ":"))
    except (ValueError, RecursionError) as exc:
        raise InputError(
            f"task {task.id!r}: no JSON can be made of its env_args ({type(exc).__name__}); make them simpler"
        ) from None
