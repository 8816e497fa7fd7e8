"""A task as a record of its fields, in whatever file or table it stands; and the digest that names a list of them."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pydantic

from rb_dspy.errors import InputError, InvalidTask
from rb_dspy.schema import Task

FIELDS = tuple(Task.model_fields)


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


def task_of(place: str, fields: Mapping[str, Any]) -> Task:
    """The task with these fields. Raises ``InvalidTask`` that names the ``place`` it was read at."""
    try:
        return Task.model_validate(fields)
    except InvalidTask as exc:
        raise InvalidTask(f"{place}: {exc}") from None
    except pydantic.ValidationError as exc:
        first = exc.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise InvalidTask(f"{place}: {where[:200]}: {first['msg'].lower()}") from None


def as_json(task: Task, value: Mapping[str, Any], *, sort_keys: bool = False, ensure_ascii: bool = True) -> str:
    """``value``, fields of ``task``, as JSON. Raises ``InputError`` for what JSON cannot hold."""
    try:
        return json.dumps(value, sort_keys=sort_keys, ensure_ascii=ensure_ascii, separators=(",", ":"))
    except (ValueError, RecursionError) as exc:
        raise InputError(
            f"task {task.id!r}: no JSON can be made of its env_args ({type(exc).__name__}); make them simpler"
        ) from None
