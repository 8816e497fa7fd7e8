"""Tasks as JSON Lines: an object with the fields of ``Task`` a line."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rb_dspy.errors import InputError, RBError
from rb_dspy.files import replaced
from rb_dspy.schema import Task
from rb_dspy.stream.records import Ids, as_json, check_ids, check_writable, task_of


def read(path: Path) -> list[Task]:
    """See ``TaskStream.from_jsonl``."""
    tasks: list[Task] = []
    ids = Ids(path.stem)
    for number, line in lines(path):
        place = f"{path}:{number}"
        try:
            fields = json.loads(line)
        except json.JSONDecodeError as exc:
            raise InputError(f"{place}: not JSON: {exc.msg}") from None
        except (ValueError, RecursionError) as exc:  # a number of too many digits, brackets inside brackets
            raise InputError(f"{place}: JSON that cannot be read ({type(exc).__name__}); make it simpler") from None
        if not isinstance(fields, dict):
            raise InputError(f"{place}: expected a JSON object with 'instruction'")
        tasks.append(task_of(place, fields, ids))
    if not tasks:
        raise InputError(f"{path}: holds no task; expected one JSON object a line with 'instruction'")
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


def lines(path: Path) -> Iterator[tuple[int, str]]:
    """The number and the text of each line that says something."""
    try:
        with path.open(encoding="utf-8-sig") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield number, line
    except FileNotFoundError:
        raise InputError(f"{path}: no such file; expected JSON Lines, one task a line") from None
    except UnicodeDecodeError as exc:
        raise InputError(f"{path}: not UTF-8 text ({exc.reason} at byte {exc.start}); save it as UTF-8") from None
    except OSError as exc:
        raise RBError(f"{path}: cannot be read: {exc.strerror}") from None


def _line(task: Task, fields: Mapping[str, Any]) -> bytes:
    try:
        return as_json(task, fields, ensure_ascii=False).encode() + b"\n"
    except UnicodeEncodeError:  # half a character, which only an escape can write
        return as_json(task, fields).encode() + b"\n"
