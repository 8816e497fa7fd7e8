"""Tasks that are generated from a seed."""

from __future__ import annotations

import difflib
import hashlib
import importlib.resources
import importlib.util
import json
from collections import deque
from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import Any, Self, TypeVar

import pydantic

from rb_dspy.errors import InputError, MissingDependency
from rb_dspy.schema import Frozen, Task

T = TypeVar("T")

MAX_MISSES = 500
"""A template has run out of tasks after this many unusable or repeated draws in a row."""


class TaskArgs(Frozen):
    """``env_args`` of a generated task."""

    @classmethod
    def of(cls, task: Task) -> Self:
        """Return the arguments of ``task``. Raises ``InputError`` if they belong to another family."""
        try:
            return cls.model_validate(task.env_args)
        except pydantic.ValidationError:
            fields = ", ".join(cls.model_fields)
            raise InputError(f"task {task.id!r}: env_args do not describe such a task; expected {fields}") from None


def mixed_seed(*parts: str | int) -> int:
    """A seed in [0, 2**31) that depends on every part; the same on every machine.

    Neighboring seeds must not be used directly: reasoning-gym adds seed and index, and Java's generator starts alike
    for them, so that neighboring streams would overlap.
    """
    digest = hashlib.sha256("\x1f".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1


def select_templates(family: str, existing: Sequence[str], templates: Sequence[str] | None) -> tuple[str, ...]:
    """Return ``templates``, by default all ``existing``. Raises ``InputError`` for a template that does not exist."""
    for template in templates or ():
        if template not in existing:
            near = difflib.get_close_matches(template, existing, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"list them with: rb-dspy envs {family}"
            raise InputError(f"unknown template {template!r} of {family}; {hint}")
    return tuple(existing if templates is None else templates)


def distinct(draws: Iterable[tuple[Hashable, Task] | None]) -> Iterator[Task]:
    """Yield tasks whose key is new, because an agent could win a repeated one by recall. None is an unusable draw."""
    seen: set[Hashable] = set()
    misses = 0
    for draw in draws:
        if draw is None or draw[0] in seen:
            misses += 1
            if misses == MAX_MISSES:
                return
        else:
            misses = 0
            seen.add(draw[0])
            yield draw[1]


def in_turn(sources: Iterable[Iterator[T]]) -> Iterator[T]:
    """Yield one value of each source in turn, until all have run out."""
    live = deque(sources)
    while live:
        source = live.popleft()
        value = next(source, None)
        if value is not None:
            live.append(source)
            yield value


def read_data(name: str) -> Any:
    """The content of a JSON file of this package: the texts that tasks are made from."""
    return json.loads(importlib.resources.files(__package__).joinpath(name).read_bytes())


def require(*modules: str) -> None:
    """Raise ``MissingDependency`` if a package of the extra ``text`` is missing. Imports nothing."""
    for module in modules:
        if importlib.util.find_spec(module) is None:
            raise MissingDependency(f"{module} is not installed; pip install 'rb-dspy[text]'")
