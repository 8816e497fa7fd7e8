"""Tasks as tables: Parquet, CSV and ``datasets.Dataset``.

A table has a row for each task and a column for each field, all of them text; ``env_args`` is a JSON object as text, so
that arguments of any shape stand in one column and come back as they were. ``datasets`` and ``pyarrow`` are imported
when they are used: they take a second.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rb_dspy.errors import InputError, InvalidTask, RBError
from rb_dspy.files import replaced
from rb_dspy.schema import Task
from rb_dspy.stream.records import FIELDS, Ids, as_json, check_ids, check_writable, task_of

if TYPE_CHECKING:
    import datasets

ColumnNames = Mapping[str, str]
"""Field of ``Task`` -> column of a table that holds it. ``"env_args.answer"`` is the argument ``answer``."""

_ANSWER = "answer"
"""The column of a CSV file that holds what is right, where nobody says which."""
_NAMED = 5
"""How many columns that are no fields an error names."""
_MARK = b"rb_dspy.tasks"
_VERSION = 1


def to_dataset(tasks: Sequence[Task], name: str) -> datasets.Dataset:
    """A row for each task, in order; the features are declared, all of them strings."""
    import datasets

    if not tasks:
        raise InputError(f"{name}: a stream without tasks; expected at least one to make a dataset of")
    check_ids(tasks, name)
    features = datasets.Features({field: datasets.Value("string") for field in FIELDS})
    info = datasets.DatasetInfo(features=features, dataset_name=name)
    return datasets.Dataset.from_dict(_table(tasks), features=features, info=info)


def from_dataset(dataset: datasets.Dataset, columns: ColumnNames | None, name: str) -> list[Task]:
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

    check_writable(tasks, path)
    schema = pa.schema([(field, pa.string()) for field in FIELDS])
    mark = json.dumps({"version": _VERSION, "name": name}).encode()
    table = pa.table(_table(tasks), schema=schema.with_metadata({_MARK: mark}))
    with replaced(path) as file:
        pq.write_table(table, file, write_page_checksum=True)


def read_parquet(path: Path, columns: ColumnNames | None, name: str | None) -> tuple[str, list[Task]]:
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


def read_csv(path: Path, columns: ColumnNames | None, name: str | None) -> tuple[str, list[Task]]:
    """See ``TaskStream.from_csv``. Returns the stream's name too."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            head = file.readline()
            file.seek(0)
            separator = max(",;\t", key=head.count)
            # Who writes a space behind each separator means it of no cell, nor of the quotes that follow it.
            spaced = f"{separator} " in head
            reader = csv.DictReader(file, delimiter=separator, skipinitialspace=spaced, strict=True)
            reader.fieldnames = there = [column.strip() for column in reader.fieldnames or ()]
            rows = [{column: cell or None for column, cell in row.items()} for row in reader]
    except FileNotFoundError:
        raise InputError(f"{path}: no such file; expected CSV, one task a row below the names of the columns") from None
    except UnicodeDecodeError as exc:
        raise InputError(f"{path}: not UTF-8 text ({exc.reason} at byte {exc.start}); save it as UTF-8") from None
    except csv.Error as exc:
        raise InputError(f"{path}:{reader.line_num}: not CSV: {exc}") from None
    except OSError as exc:
        raise RBError(f"{path}: cannot be read: {exc.strerror}") from None
    twice = next((column for column in there if there.count(column) > 1), None)
    if twice is not None:
        raise InputError(f"{path}: two columns are called {twice!r}; names must differ")
    long = next((number for number, row in enumerate(rows, 1) if None in row), None)
    if long is not None:
        raise InputError(f"{path}: row {long} has more cells than there are columns; quote what holds a separator")
    if columns is None:
        wanted = _meant(there, str(path))
    else:
        spelled = {field: _spelled(column, there) for field, column in columns.items()}
        wanted = _wanted(spelled, there, str(path))
    name = name or path.stem
    return name, _rows(rows, wanted, name, str(path))


def _rows(rows: Iterable[Mapping[str, Any]], wanted: ColumnNames, name: str, place: str) -> list[Task]:
    """Tasks of the rows of a table. A cell without a value is as if its column were not there."""
    tasks: list[Task] = []
    ids = Ids(name)
    for number, row in enumerate(rows, 1):
        fields: dict[str, Any] = {}
        for field, column in wanted.items():
            value = row[column]
            if value is None:
                continue
            outer, _, argument = field.partition(".")
            if argument:
                fields.setdefault(outer, {})[argument] = value
            else:
                fields[outer] = _cell(outer, value, f"{place}: row {number}")
        tasks.append(task_of(f"{place}: row {number}", fields, ids))
    if not tasks:
        raise InputError(f"{place}: holds no task; expected a row for each")
    check_ids(tasks, place)
    ids.warn(place)
    return tasks


def _wanted(columns: ColumnNames | None, there: Sequence[str], place: str) -> ColumnNames:
    """The columns to read: those that are asked for, else all, which must then be fields of ``Task``."""
    known = ", ".join(map(repr, there)) or "none"
    if columns is None:
        strange = [column for column in there if column not in FIELDS]
        if strange or "instruction" not in there:
            raise _misnamed(place, strange, there, FIELDS)
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


def _meant(there: Sequence[str], place: str) -> ColumnNames:
    """What the columns of a CSV file hold, by their names in whatever case; ``answer`` is what is right."""
    names = {name.casefold(): name for name in FIELDS} | {_ANSWER: f"env_args.{_ANSWER}"}
    found: dict[str, str] = {}
    strange = []
    for column in there:
        outer, _, argument = column.partition(".")
        field = names.get(column.casefold())
        if argument and outer.casefold() == "env_args":
            field = f"env_args.{argument}"
        if field is None:
            strange.append(column)
            continue
        same = next((other for other in found if _clash(other, field)), None)
        if same is not None:
            both = f"the columns {found[same]!r} and {column!r} both hold {min(same, field, key=len)}"
            raise InputError(f"{place}: {both}; expected one of them: take the other out")
        found[field] = column
    if strange or "instruction" not in found:
        raise _misnamed(place, strange, there, (*FIELDS, _ANSWER, "env_args.<argument>"))
    return found


def _misnamed(place: str, strange: Sequence[str], there: Sequence[str], expected: Sequence[str]) -> InputError:
    """Of a table whose columns are not all fields of a task; ``strange`` are those that are none."""
    lacks = "instruction" not in (column.casefold() for column in there)
    if strange:
        named = ", ".join(map(repr, strange[:_NAMED])) + (", ..." if len(strange) > _NAMED else "")
        what = f"the column {named} is no field" if len(strange) == 1 else f"the columns {named} are no fields"
        what += " of a task" + (", and no column is 'instruction'" if lacks else "")
    else:
        what = f"no column 'instruction'; columns: {', '.join(map(repr, there)) or 'none'}"
    remedy = "rename them or take out what is none of these" if len(strange) > 1 else "rename it or take it out"
    remedy = remedy if strange else "call the one with what is to be done so"
    return InputError(
        f"{place}: {what}; expected {', '.join(expected)}: {remedy}; from Python you may say which to read:"
        " columns={'instruction': '...', ...}"
    )


def _clash(one: str, other: str) -> bool:
    """Whether two columns hold the same: the arguments of a task stand in one column, or in one for each."""
    return one == other or ("env_args" in (one, other) and one.partition(".")[0] == other.partition(".")[0])


def _spelled(column: str, there: Sequence[str]) -> str:
    """The name of the column that is meant, as the file has it; ``column`` where that is not clear."""
    wanted = str(column).strip()
    alike = [each for each in there if each.casefold() == wanted.casefold()]
    return wanted if wanted in there else alike[0] if len(alike) == 1 else column


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
    rows = [task.model_dump() | {"env_args": as_json(task, task.env_args)} for task in tasks]
    for row in rows:
        for field, value in row.items():
            try:
                (value or "").encode()
            except UnicodeEncodeError:
                raise InputError(
                    f"task {row['id']!r}: its {field} holds half a character; expected text that UTF-8 can hold"
                ) from None
    return {field: [row[field] for row in rows] for field in FIELDS}


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
