"""Tasks as data: JSON Lines, Parquet and ``datasets.Dataset``, and the digest that names them.

A table has a row for each task and a column for each field, all of them text; ``env_args`` is a JSON object as text, so
that arguments of any shape stand in one column and come back as they were. ``datasets`` and ``pyarrow`` are imported
when they are used: they take a second.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pydantic

from rb_dspy.errors import InputError, InvalidTask, RBError
from rb_dspy.plugins import environment_family
from rb_dspy.schema import Task

if TYPE_CHECKING:
    import datasets

Columns = Mapping[str, str]
"""Field of ``Task`` -> column of a table that holds it. ``"env_args.answer"`` is the argument ``answer``."""

FIELDS = tuple(Task.model_fields)

_MARK = b"rb_dspy.tasks"
_VERSION = 1


def digest(tasks: Iterable[Task]) -> str:
    """20 hex digits of SHA-256 over the order, ids and contents of ``tasks``; equal in every process and format."""
    found = hashlib.sha256(b"rb_dspy tasks 1\n")
    for task in tasks:
        # Fields that are left at their default stay out, so that a field that Task gains later changes no digest.
        fields = task.model_dump(exclude_defaults=True)
        found.update(_json(task, fields, sort_keys=True).encode() + b"\n")
    return found.hexdigest()[:20]


def read_jsonl(path: Path) -> list[Task]:
    """See ``TaskStream.from_jsonl``."""
    tasks: list[Task] = []
    for number, line in _lines(path):
        place = f"{path}:{number}"
        try:
            fields = json.loads(line)
        except json.JSONDecodeError as exc:
            raise InputError(f"{place}: not JSON: {exc.msg}") from None
        except (ValueError, RecursionError) as exc:  # a number of too many digits, brackets inside brackets
            raise InputError(f"{place}: JSON that cannot be read ({type(exc).__name__}); make it simpler") from None
        if not isinstance(fields, dict):
            raise InputError(f"{place}: expected a JSON object with 'instruction'")
        tasks.append(_task(place, {"id": f"{path.stem}/{number}", **fields}))
    if not tasks:
        raise InputError(f"{path}: holds no task; expected one JSON object a line with 'instruction'")
    check_ids(tasks, str(path))
    return tasks


def write_jsonl(tasks: Sequence[Task], path: Path) -> None:
    """One task a line, in order; fields that have their default value are left out."""
    _check_writable(tasks, path)
    always = {"id", "instruction"}
    lines = [_line(task, task.model_dump(include=always) | task.model_dump(exclude_defaults=True)) for task in tasks]
    _replace(path, lambda aside: aside.write_bytes(b"".join(lines)))


def to_dataset(tasks: Sequence[Task], name: str) -> datasets.Dataset:
    """A row for each task, in order; the features are declared, all of them strings."""
    import datasets

    if not tasks:
        raise InputError(f"{name}: a stream without tasks; expected at least one to make a dataset of")
    check_ids(tasks, name)
    features = datasets.Features({field: datasets.Value("string") for field in FIELDS})
    info = datasets.DatasetInfo(features=features, dataset_name=name)
    return datasets.Dataset.from_dict(_table(tasks), features=features, info=info)


def from_dataset(dataset: datasets.Dataset, columns: Columns | None, name: str) -> list[Task]:
    """See ``TaskStream.from_dataset``."""
    import datasets

    if isinstance(dataset, datasets.DatasetDict):
        splits = ", ".join(map(repr, dataset))
        raise InputError(f"a DatasetDict; expected one Dataset: choose one of its splits: {splits}")
    if not isinstance(dataset, datasets.Dataset):
        raise InputError(
            f"a {type(dataset).__name__}; expected a datasets.Dataset: Dataset.from_list(rows) makes one of dicts"
        )
    place = f"dataset {name!r}"
    wanted = _wanted(columns, dataset.column_names, place)
    # Columns that are not wanted may be pictures or sounds, which would be decoded.
    rows = dataset.with_format(None).select_columns(sorted(set(wanted.values())))
    return _rows(rows, wanted, name, place)


def write_parquet(tasks: Sequence[Task], name: str, path: Path) -> None:
    """The columns of ``to_dataset``; the name and the version of the format stand in the file's metadata."""
    import pyarrow as pa  # type: ignore[import-untyped]
    import pyarrow.parquet as pq  # type: ignore[import-untyped]

    _check_writable(tasks, path)
    schema = pa.schema([(field, pa.string()) for field in FIELDS])
    mark = json.dumps({"version": _VERSION, "name": name}).encode()
    table = pa.table(_table(tasks), schema=schema.with_metadata({_MARK: mark}))
    _replace(path, lambda aside: pq.write_table(table, aside, write_page_checksum=True))


def read_parquet(path: Path, columns: Columns | None, name: str | None) -> tuple[str, list[Task]]:
    """See ``TaskStream.from_parquet``. Returns the stream's name too: ``name``, the file's own, or that of the file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with path.open("rb") as data, pq.ParquetFile(data, page_checksum_verification=True) as file:
            name = name or _own_name(path, (file.schema_arrow.metadata or {}).get(_MARK)) or path.stem
            wanted = _wanted(columns, file.schema_arrow.names, str(path))
            rows = file.read(columns=sorted(set(wanted.values()))).to_pylist()
    except FileNotFoundError:
        raise InputError(f"{path}: no such file; expected Parquet, one task a row") from None
    except (OSError, pa.ArrowException) as exc:
        if isinstance(exc, OSError) and exc.strerror:
            raise RBError(f"{path}: cannot be read: {exc.strerror}") from None
        raise InputError(f"{path}: not a Parquet file, or a damaged one; write it again") from None
    return name, _rows(rows, wanted, name, str(path))


def check_ids(tasks: Sequence[Task], place: str) -> None:
    """Raise ``InputError`` for an id that stands twice."""
    task_id, times = max(Counter(task.id for task in tasks).items(), key=lambda found: found[1])
    if times > 1:
        raise InputError(f"{place}: the task id {task_id!r} stands {times} times; ids must differ")


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
    if path.suffix == ".parquet":
        return f"{path}: row {position + 1}"
    return f"{path}:{[number for number, _ in _lines(path)][position]}"


def _rows(rows: Iterable[Mapping[str, Any]], wanted: Columns, name: str, place: str) -> list[Task]:
    """Tasks of the rows of a table. A cell without a value is as if its column were not there."""
    tasks: list[Task] = []
    for number, row in enumerate(rows, 1):
        fields: dict[str, Any] = {"id": f"{name}/{number}"}
        for field, column in wanted.items():
            value = row[column]
            if value is None:
                continue
            outer, _, argument = field.partition(".")
            if argument:
                fields.setdefault(outer, {})[argument] = value
            else:
                fields[outer] = _cell(outer, value, f"{place}: row {number}")
        tasks.append(_task(f"{place}: row {number}", fields))
    if not tasks:
        raise InputError(f"{place}: holds no task; expected a row for each")
    check_ids(tasks, place)
    return tasks


def _wanted(columns: Columns | None, there: Sequence[str], place: str) -> Columns:
    """The columns to read: those that are asked for, else all, which must then be fields of ``Task``."""
    known = ", ".join(map(repr, there)) or "none"
    if columns is None:
        strange = [column for column in there if column not in FIELDS]
        if strange or "instruction" not in there:
            what = f"the column {strange[0]!r} is no field of a task" if strange else "no column 'instruction'"
            raise InputError(
                f"{place}: {what}; columns: {known}; say which to read: columns={{'instruction': '...', ...}}"
            )
        return {column: column for column in there}
    for field, column in columns.items():
        outer, dot, argument = field.partition(".")
        if outer not in FIELDS or (dot and (outer != "env_args" or not argument or "env_args" in columns)):
            raise InputError(
                f"columns: {field!r} is no field of a task; expected one of {', '.join(FIELDS)}, or env_args.<argument>"
                " in place of env_args"
            )
        if column not in there:
            raise InputError(f"{place}: no column {column!r} for {field!r}; columns: {known}")
    if "instruction" not in columns:
        raise InputError(f"columns: says nothing of 'instruction'; expected the column that holds it, of {known}")
    return columns


def _cell(field: str, value: Any, place: str) -> Any:
    if field == "env_args":
        if not isinstance(value, str):
            return value
        try:
            return json.loads(value)
        except (ValueError, RecursionError):
            raise InvalidTask(f"{place}: env_args: not JSON; expected an object as JSON text") from None
    # Numbered rows and classes are common, and their numbers name them as well as a text would.
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _table(tasks: Sequence[Task]) -> dict[str, list[str | None]]:
    rows = [task.model_dump() | {"env_args": _json(task, task.env_args)} for task in tasks]
    for row in rows:
        for field, value in row.items():
            try:
                (value or "").encode()
            except UnicodeEncodeError:
                raise InputError(
                    f"task {row['id']!r}: its {field} holds half a character; expected text that UTF-8 can hold"
                ) from None
    return {field: [row[field] for row in rows] for field in FIELDS}


def _task(place: str, fields: Mapping[str, Any]) -> Task:
    try:
        return Task.model_validate(fields)
    except InvalidTask as exc:
        raise InvalidTask(f"{place}: {exc}") from None
    except pydantic.ValidationError as exc:
        first = exc.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise InvalidTask(f"{place}: {where[:200]}: {first['msg'].lower()}") from None


def _line(task: Task, fields: Mapping[str, Any]) -> bytes:
    try:
        return _json(task, fields, ensure_ascii=False).encode() + b"\n"
    except UnicodeEncodeError:  # half a character, which only an escape can write
        return _json(task, fields).encode() + b"\n"


def _json(task: Task, value: Mapping[str, Any], *, sort_keys: bool = False, ensure_ascii: bool = True) -> str:
    try:
        return json.dumps(value, sort_keys=sort_keys, ensure_ascii=ensure_ascii, separators=(",", ":"))
    except (ValueError, RecursionError) as exc:
        raise InputError(
            f"task {task.id!r}: no JSON can be made of its env_args ({type(exc).__name__}); make them simpler"
        ) from None


def _own_name(path: Path, mark: bytes | None) -> str:
    """The name that ``write_parquet`` gave; empty for a file of others."""
    if mark is None:
        return ""
    try:
        found = json.loads(mark)
        version, name = int(found["version"]), str(found["name"])
    except (ValueError, KeyError, TypeError):
        raise InputError(f"{path}: its metadata {_MARK.decode()!r} cannot be read; write the file again") from None
    if version > _VERSION:
        raise InputError(f"{path}: version {version} of the format; expected at most {_VERSION}: upgrade rb-dspy")
    return name


def _lines(path: Path) -> Iterator[tuple[int, str]]:
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


def _check_writable(tasks: Sequence[Task], path: Path) -> None:
    """Refuse what could not be read again."""
    if not tasks:
        raise InputError(f"{path}: a stream without tasks; expected at least one to write")
    check_ids(tasks, str(path))


def _replace(path: Path, write: Callable[[Path], object]) -> None:
    """Write a file whole or not at all; one that was there is replaced."""
    aside = path.with_name(f".rb-dspy-tasks-{secrets.token_hex(8)}")
    try:
        if path.is_dir():
            raise InputError(f"{path}: a folder; expected the name of a file")
        if not path.parent.is_dir():
            raise InputError(f"{path.parent}: no such folder; make it, or give another path")
        try:
            write(aside)
            aside.replace(path)
        finally:
            aside.unlink(missing_ok=True)
    except OSError as exc:
        raise RBError(f"{path}: cannot be written: {exc.strerror}; what was there is as before") from None
