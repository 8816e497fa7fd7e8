"""Tasks as JSON Lines: an object with the fields of ``Task`` a line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rb_dspy.files import replaced
from rb_dspy.jsonlines import objects
from rb_dspy.schema import Task
from rb_dspy.stream.records import Ids, as_json, check_ids, check_writable, task_of


def read(path: Path) -> list[Task]:
    """See ``TaskStream.from_jsonl``."""
    tasks: list[Task] = []
    ids = Ids(path.stem)
    for number, fields in objects(path, " with 'instruction'"):
        tasks.append(task_of(f"{path}:{number}", fields, ids))
    check_ids(tasks, str(path))
    ids.warn(str(path))
    return tasks


def write(tasks: Sequence[Task], path: Path) -> None:
    """One task a line, in order; fields that have their default value are left out."""
    check_writable(tasks, path)
    always = {"id", "instruction"}
    lines = [_line(task, task.model_dump(include=always) | task.model_dump(exclude_defaults=True)) for task in tasks]
    with replaced(path) as file:
        file.writelines(lines)


def _line(task: Task, fields: Mapping[str, Any]) -> bytes:
    try:
        return as_json(task, fields, ensure_ascii=False).encode() + b"\n"
    except UnicodeEncodeError:  # half a character, which only an escape can write
        return as_json(task, fields).encode() + b"\n"
