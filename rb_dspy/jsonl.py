"""JSON Lines: one object per line, read with a line number in every error, written so that it can be read again."""

from __future__ import annotations

import codecs
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from rb_dspy.errors import InputError, RBError, StorageError

MAX_LINE = 64_000_000
"""Maximum length of a line, in bytes, including its end."""


def read_objects(
    path: Path, expected: str = "a JSON object", *, error: type[RBError] = RBError
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the objects in a file with their line numbers (from 1); blank lines are skipped.

    Raises ``error`` if the file cannot be read, and ``InputError`` if it is missing or empty, or a line is too long or
    not a JSON object in UTF-8; ``expected`` is what the message says that each line should be.
    """
    if path.is_dir() or not path.exists():
        problem = "is a folder" if path.is_dir() else "no such file"
        raise InputError(f"{path}: {problem}; expected a file with {expected} in each line")
    empty = True
    try:
        with path.open("rb") as file:
            for number, line in enumerate(iter(lambda: file.readline(MAX_LINE + 1), b""), 1):
                if len(line) > MAX_LINE:
                    raise InputError(f"{path}:{number}: more than {MAX_LINE:,} bytes; split the line")
                text = (line.removeprefix(codecs.BOM_UTF8) if number == 1 else line).strip()
                if text:
                    empty = False
                    yield number, _parse(text, f"{path}:{number}", expected)
    except OSError as exc:
        raise error(f"{path}: cannot be read: {exc.strerror}") from exc
    if empty:
        raise InputError(f"{path}: the file is empty; expected {expected} in each line")


def encode(value: Mapping[str, Any]) -> bytes:
    """Encode ``value`` as one line of UTF-8. Raises ``InputError`` if ``read_objects`` could not read it."""
    try:
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError) as exc:
        raise InputError(f"cannot be written as JSON: {exc}; expected JSON values") from exc
    if not text.isascii():  # join surrogate pairs, which every reader joins
        text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
    line = text.encode("utf-8", "backslashreplace") + b"\n"  # a lone surrogate becomes its JSON escape
    if len(line) > MAX_LINE:
        raise InputError(f"takes {len(line):,} bytes as JSON; expected at most {MAX_LINE:,}")
    return line


def append(path: Path, value: Mapping[str, Any]) -> None:
    """Append a line; it is on disk when this returns. A new file is for its owner only.

    If an earlier process was killed while it wrote a line, the new line begins after the incomplete one. Raises
    ``StorageError`` if it cannot be written.
    """
    try:
        with open(path, "ab+", opener=partial(os.open, mode=0o600)) as file:
            if file.tell():
                file.seek(-1, os.SEEK_END)
                file.write(b"" if file.read(1) == b"\n" else b"\n")
            file.write(encode(value))
            file.flush()
            os.fsync(file.fileno())
    except OSError as exc:
        raise StorageError(f"{path}: cannot be written: {exc.strerror}; free space, or choose another folder") from exc


def read_appended(path: Path) -> list[dict[str, Any]]:
    """Return the objects in a file of ``append``, without incomplete lines. Raises ``StorageError``."""
    try:
        lines = path.read_bytes().splitlines()
    except OSError as exc:
        raise StorageError(f"{path}: cannot be read: {exc.strerror}") from exc
    objects: list[dict[str, Any]] = []
    for line in lines:
        try:
            objects.append(_parse(line, "", ""))
        except InputError:  # incomplete, because the process was killed
            continue
    return objects


def _parse(text: bytes, place: str, expected: str) -> dict[str, Any]:
    try:
        value = json.loads(text.decode("utf-8"))
    except (ValueError, RecursionError) as exc:  # not JSON, not UTF-8, too many digits or brackets
        problem = f"{exc.msg} at column {exc.colno}" if isinstance(exc, json.JSONDecodeError) else str(exc)
        raise InputError(f"{place}: cannot be parsed ({problem}); expected {expected}, in UTF-8") from None
    if not isinstance(value, dict):
        raise InputError(f"{place}: is {type(value).__name__}, not an object; expected {expected}")
    return value


def digest(value: object) -> str:
    """A digest of a JSON value: 20 hex digits."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()[:20]
