"""JSON Lines, read in one way wherever they come from; from a stranger with caps, so that no file can crash or stall.

Values are those of Python's ``json``: NaN and the infinities are kept, a lone surrogate is an escape. A byte-order
mark, blank lines, CRLF and a last line without an end are accepted. Whatever else is wrong is told by file and line.
"""

from __future__ import annotations

import codecs
import json
import os
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rb_dspy.errors import InputError, RBError
from rb_dspy.files import of_database

MAX_LINES = 10_000_000
MAX_LINE = 64_000_000
"""Bytes of a line, its end included."""
MAX_DEPTH = 64
"""Objects and lists inside each other."""
MAX_VALUES = 1_000_000
"""Commas of a line, those in texts not counted: a line of empty lists would take fifty times its size in memory."""

_STRINGS = re.compile(rb'"[^"]*(?:"|\Z)')
_BUT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))


def objects(
    path: Path, each: str = "", *, error: type[RBError] = RBError, stranger: bool = False
) -> Iterator[tuple[int, dict[str, Any]]]:
    """The objects of a file, at least one, with the numbers of their lines, from 1.

    ``each``: what is expected of a line besides being a JSON object, for messages. ``stranger``: what is too long, too
    deep or too large is refused, also a key that stands twice in one object, since readers differ on which one counts,
    and what is no file, such as a pipe, which cannot be read again.

    Raises ``InputError`` that names the line, ``error`` where the disk refuses.
    """
    expected = f"a JSON object{each}"
    none = True
    try:
        if path.is_dir() or (stranger and not path.is_file()) or not path.exists():
            what = "not a file" if path.exists() else "no such file"
            raise InputError(f"{path}: {what}; expected JSON Lines, {expected} in each")
        if of_database(Path(os.path.realpath(path))):
            raise InputError(
                f"{path}: a database, perhaps a bank, or a file of one; expected JSON Lines, {expected} in each"
            )
        with path.open("rb") as file:
            number = 0
            while data := file.readline(MAX_LINE + 1 if stranger else -1):
                number += 1
                place = f"{path}:{number}"
                if stranger and number > MAX_LINES:
                    raise InputError(f"{place}: more than {MAX_LINES:,} lines; expected at most that: split the file")
                if stranger and len(data) > MAX_LINE:
                    raise InputError(f"{place}: more than {MAX_LINE:,} bytes; expected at most that in one line")
                line = (data.removeprefix(codecs.BOM_UTF8) if number == 1 else data).rstrip(b"\r\n\t ")
                if line:
                    none = False
                    yield number, _object(line, place, expected, stranger, whole=data.endswith(b"\n"))
    except OSError as exc:
        raise error(f"{path}: cannot be read: {exc.strerror}") from exc
    if none:
        raise InputError(f"{path}:1: the file is empty; expected {expected} in each line")


def encoded(value: dict[str, Any]) -> bytes:
    """``value`` as a line, UTF-8, with its end. Raises ``InputError`` for what ``objects`` refuses of a stranger."""
    try:
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    except (ValueError, RecursionError) as exc:
        raise InputError(f"no JSON can be made of it ({type(exc).__name__})") from exc
    try:
        line = text.encode("utf-8")
    except UnicodeEncodeError:
        # Two surrogates that make a pair are a character to every reader; lone ones become escapes.
        joined = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
        line = joined.encode("utf-8", "backslashreplace")
    if len(line) >= MAX_LINE - 1:  # another program may give it the longer line end
        raise InputError(f"it takes {len(line):,} bytes; expected fewer than {MAX_LINE - 1:,}")
    _check_shape(line)
    return line + b"\n"


def _object(line: bytes, place: str, expected: str, stranger: bool, *, whole: bool) -> dict[str, Any]:
    try:
        if stranger:
            _check_shape(line)
        value = json.loads(line.decode("utf-8"), object_pairs_hook=_unique if stranger else None)
    except InputError as exc:
        raise InputError(f"{place}: {exc}") from None
    except UnicodeDecodeError as exc:
        raise InputError(f"{place}: byte {exc.start + 1} is not UTF-8; expected {expected} in UTF-8") from None
    except RecursionError:
        raise InputError(
            f"{place}: more objects and lists inside each other than can be read; expected {expected} with fewer"
        ) from None
    except ValueError as exc:
        what = f"not JSON ({exc.msg} at column {exc.colno})" if isinstance(exc, json.JSONDecodeError) else _plain(exc)
        cut = "" if whole else ", and it has no end: the file was cut off"
        raise InputError(f"{place}: {what}{cut}; expected {expected}") from None
    if not isinstance(value, dict):
        raise InputError(f"{place}: {type(value).__name__} instead of an object; expected {expected}")
    return value


def _check_shape(line: bytes) -> None:
    """Refuse what takes too much depth or memory to parse. Without recursion, in time proportional to the line."""
    # Escaped backslashes go first: what is then left before a quote escapes it.
    bare = line.replace(b"\\\\", b"").replace(b'\\"', b"")
    many = bare.count(b'"') > 4 * MAX_VALUES  # a text has two quotes, and its key two more
    bare = b"" if many else _STRINGS.sub(b"", bare)
    if many or bare.count(b",") >= MAX_VALUES:
        raise InputError(f"more than {MAX_VALUES:,} values; expected at most that in one line")
    depth = 0
    for byte in bare.translate(None, _BUT_BRACKETS):
        depth += 1 if byte in b"[{" else -1
        if depth > MAX_DEPTH:
            raise InputError(f"more than {MAX_DEPTH} objects and lists inside each other; expected at most that")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        counted = Counter(key for key, _ in pairs)
        raise InputError(f"the key {counted.most_common(1)[0][0][:40]!a} stands twice in one object; expected it once")
    return found


def _plain(exc: ValueError) -> str:
    """A number of more digits than Python reads."""
    return " ".join(str(exc).split(";")[0].split())
