"""Tables of tasks, as spreadsheets and data frames write them."""

from __future__ import annotations

import codecs
import csv
import io
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from datetime import date, time
from decimal import Decimal
from itertools import zip_longest
from pathlib import Path
from typing import Any

from rb_dspy.environments.question import ANSWERS, REVEAL
from rb_dspy.errors import InputError, InvalidTask
from rb_dspy.schema import Task

FIELDS = tuple(Task.model_fields)
NAMES = (*FIELDS, *ANSWERS, REVEAL)
"""Names of columns, and of keys of a JSON object, besides ``env_args.<argument>``."""

_DECIMAL_COMMA = re.compile(r"[+-]?\d+,\d+")

Columns = Mapping[str, str] | None
"""Field of a task -> column; None: the columns are called like the fields."""


def read_csv(path: Path, columns: Columns) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield place and fields of each row of a CSV file in UTF-8, or in UTF-16 with a byte-order mark.

    Cells end at commas, semicolons or tabs: at whichever separates the known columns in the first line. In a table with
    semicolons the answer ``3,14`` is also right as ``3.14``.

    Raises:
        InputError: The file cannot be read; the message has the line.
    """
    try:
        data = path.read_bytes()
        utf16 = data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
        if not utf16 and (nul := data.find(0)) >= 0:
            raise UnicodeDecodeError("utf-8", data, nul, nul + 1, "NUL")
        text = data.decode("utf-16" if utf16 else "utf-8-sig")
    except OSError as exc:
        raise InputError(f"{path}: cannot be read: {exc.strerror}; expected a CSV file") from exc
    except UnicodeDecodeError as exc:
        line = data.count(b"\n", 0, exc.start) + 1
        raise InputError(f"{path}:{line}: is not {exc.encoding}; save the table as CSV UTF-8") from None
    wanted = set(columns.values()) if columns else set(NAMES)
    headers = {mark: next(_records(path, text, mark, strict=False), (1, []))[1] for mark in ",;\t"}
    mark = max(headers, key=lambda each: len(wanted.intersection(map(_name, headers[each]))))
    header = [name.strip() or f"(column {number})" for number, name in enumerate(headers[mark], 1)]
    if repeated := [name for name, times in Counter(map(_name, header)).items() if times > 1]:
        raise InputError(f"{path}: several columns are called {repeated[0]!r}; rename or remove all but one")
    for place, fields in as_fields(_rows(path, text, mark, header), columns):
        for holder in (fields, fields.get("env_args")) if mark == ";" else ():
            if isinstance(holder, dict) and _DECIMAL_COMMA.fullmatch(str(holder.get("answer"))):
                holder.setdefault("answers", [holder["answer"].replace(",", ".")])
        yield place, fields


def read_parquet(path: Path, columns: Columns) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield place and fields of each row of a Parquet file. Raises ``InputError`` if it cannot be read."""
    import pyarrow as pa  # type: ignore[import-untyped]
    import pyarrow.parquet as pq  # type: ignore[import-untyped]

    if not path.is_file():
        raise InputError(f"{path}: no such file; expected Parquet")
    try:
        rows = pq.read_table(path).to_pylist()
    except (pa.ArrowException, OSError) as exc:
        raise InputError(f"{path}: is not a Parquet file, or a damaged one ({type(exc).__name__})") from exc
    return as_fields(((f"{path}: row {number}", row) for number, row in enumerate(rows, 1)), columns)


def as_fields(rows: Iterable[tuple[str, Mapping[str, Any]]], columns: Columns) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield place and fields of each row that has a value; an empty cell means the field's default."""
    for place, row in rows:
        cells = {name: value for name, cell in row.items() if (value := plain(cell)) is not None}
        if not cells:
            continue
        chosen = columns or {_name(name): name for name in row}
        if not columns and ("instruction" not in chosen or len(chosen) < len(row)):
            problem = "several columns have one name" if "instruction" in chosen else "no column 'instruction'"
            raise InputError(
                f"{place}: {problem}; columns: {', '.join(map(str, row))}; rename one in the file, or in Python pass"
                " columns={'instruction': NAME, ...}"
            )
        fields: dict[str, Any] = {}
        for field, column in chosen.items():
            if column not in row:
                raise InputError(f"{place}: no column {column!r} for {field!r}; columns: {', '.join(map(str, row))}")
            outer, _, argument = field.partition(".")
            value = cells.get(column)
            if value is not None and argument and outer == "env_args":
                fields.setdefault(outer, {})[argument] = value
            elif field == "env_args" and isinstance(value, str):
                try:
                    fields[field] = json.loads(value)
                except (ValueError, RecursionError):
                    raise InvalidTask(f"{place}: env_args: not JSON; expected an object as JSON text") from None
            elif value is not None:
                fields[field] = value
        yield place, fields


def task_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of ``Task``: missing values are left out, numbers become text (ids and templates often are),
    and ``answer``, ``answers`` and ``reveal`` become arguments of the environment ``question``.
    """
    given = {name: value for name, each in fields.items() if (value := plain(each)) is not None}
    task = {
        name: str(value) if name in FIELDS and isinstance(value, int | float) and not isinstance(value, bool) else value
        for name, value in given.items()
    }
    env_args = task.get("env_args", {})
    short = {name: value for name, value in task.items() if name in (*ANSWERS, REVEAL)}
    if not short or not isinstance(env_args, Mapping):
        return task
    return {name: value for name, value in task.items() if name not in short} | {"env_args": {**short, **env_args}}


def plain(cell: Any) -> Any:
    """A value of JSON, or None for a missing one: NaN of numbers, NaT of dates."""
    if isinstance(cell, float | Decimal | date) and cell != cell:
        return None
    if isinstance(cell, Decimal):
        return f"{cell:f}"
    return cell.isoformat() if isinstance(cell, date | time) else cell


def _name(column: str) -> str:
    """The field that a column is named after, whatever its case and the spaces around it; else the column."""
    name = str(column).strip()
    return name.casefold() if name.casefold() in NAMES else name


def _rows(path: Path, text: str, mark: str, header: list[str]) -> Iterator[tuple[str, dict[str, str | None]]]:
    records = _records(path, text, mark)
    next(records, None)
    for line, cells in records:
        if any(map(str.strip, cells[len(header) :])):
            raise InputError(
                f"{path}:{line}: has {len(cells)} cells, and the header has {len(header)}; put a text with {mark!r} in"
                " quotes"
            )
        row = zip_longest(header, cells[: len(header)], fillvalue="")
        yield f"{path}:{line}", {name: cell if cell.strip() else None for name, cell in row}


def _records(path: Path, text: str, mark: str, *, strict: bool = True) -> Iterator[tuple[int, list[str]]]:
    """Yield the records that are not empty with their first line."""
    line = 0
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=mark, skipinitialspace=True, strict=strict)
    try:
        for cells in reader:
            if any(map(str.strip, cells)):
                yield line + 1, cells
            line = reader.line_num
    except csv.Error as exc:
        raise InputError(
            f"{path}:{line + 1}: is not CSV: {exc}; put texts with quotes in quotes, and write their quotes twice"
        ) from None
