"""Whether the environments that a file of tasks names are installed."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from pathlib import Path

from rb_dspy.errors import InputError
from rb_dspy.jsonlines import objects
from rb_dspy.plugins import environment_family
from rb_dspy.schema import Task


def check_environments(tasks: Sequence[Task], path: Path) -> None:
    """Refuse a task of an environment that is not installed. ``tasks``: all that the file ``path`` holds.

    For who runs them in installed environments: a factory of the caller's may know others. Raises ``InputError`` that
    names the file and the line, or the row.
    """
    for position, task in enumerate(tasks):
        try:
            environment_family(task.env)
        except InputError as exc:
            raise InputError(f"{_place(path, position)}: {exc}") from None


def _place(path: Path, position: int) -> str:
    """Where the task at this position of a file stands."""
    if path.suffix.lower() in (".parquet", ".csv"):
        return f"{path}: row {position + 1}"
    if not path.is_file():  # a pipe, which cannot be read again
        return f"{path}: task {position + 1}"
    return f"{path}:{next(islice(objects(path), position, None))[0]}"
