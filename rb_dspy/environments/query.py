"""One query to an SQLite database, in a process of its own: it ends in time and fills no memory, whatever it does.

SQLite's own means are not enough: an interrupt waits for the end of a function call (``instr`` of two long texts), and
does not stop the preparation of a statement (nested WITH clauses). This file is also the program of that process.
"""

from __future__ import annotations

import itertools
import marshal
import os
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing, suppress
from typing import Any

SECONDS: float = 2
BYTES = 5_000_000
"""Maximum time of a query, and maximum size of its result."""

_LENGTH, _MEMORY = 1_000_000, 500_000_000
"""Maximum bytes of one text, and of the process."""

_STOPPED = 3
"""Exit status of a process whose time is up."""

_ACTIONS = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE}
_DENIED = {"printf", "format", "randomblob", "zeroblob", "fts3_tokenizer", "load_extension"}

Row = tuple[Any, ...]


def run_query(database: str | bytes, query: str, limit: int) -> list[Row]:
    """Return at most ``limit`` rows of one SELECT statement; ``database`` is the content of an SQLite file, or its URI.

    Raises:
        ValueError: The query failed, took too long, or returned too much.
    """
    command, given = [sys.executable, "-I", "-S", __file__], marshal.dumps((SECONDS, database, query, limit))
    done = subprocess.run(command, input=given, capture_output=True, check=False)
    if done.returncode == _STOPPED:
        raise ValueError(f"the query took more than {SECONDS:g} seconds and was stopped; write a simpler one")
    if done.returncode:
        raise ValueError("the query ended SQLite, perhaps for want of memory; write a simpler one")
    result: str | list[Row] = marshal.loads(done.stdout)
    if isinstance(result, str):
        raise ValueError(result)
    return result


def _main() -> None:
    """Read the arguments of ``run_query`` and write the rows, or the error as a text."""
    seconds, *arguments = marshal.load(sys.stdin.buffer)
    threading.Timer(seconds, os._exit, [_STOPPED]).start()
    with suppress(ImportError, ValueError, OSError):  # Windows has no such limits, and other systems not all of them
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    try:
        result: str | list[Row] = _rows(*arguments)
    except MemoryError:
        result = "the query needs too much memory; write a simpler one"
    except (sqlite3.Error, ValueError) as exc:
        result = str(exc)
    marshal.dump(result, sys.stdout.buffer)
    sys.stdout.flush()
    os._exit(0)  # SQLite may be slow to free its memory, and the timer runs on


def _rows(database: str | bytes, query: str, limit: int) -> list[Row]:
    with closing(sqlite3.connect(":memory:" if isinstance(database, bytes) else database, uri=True)) as connection:
        if isinstance(database, bytes):
            connection.deserialize(database)
        connection.execute("PRAGMA temp_store = MEMORY")  # so that the limit of memory holds for large sorts
        connection.text_factory = lambda text: text.decode(errors="replace")  # old databases have Latin-1
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _LENGTH)
        connection.set_authorizer(_authorize)
        cursor = connection.execute(query)
        if cursor.description is None:  # empty, or only a comment
            raise ValueError("this is not a SELECT statement")
        rows: list[Row] = []
        size = 0
        for row in itertools.islice(cursor, limit):
            rows.append(row)
            size += sum(len(value) if isinstance(value, str | bytes) else 8 for value in row)
            if size > BYTES:
                raise ValueError(f"the result has more than {BYTES:,} bytes; select less")
        return rows


def _authorize(action: int, _: str | None, name: str | None, *__: str | None) -> int:
    denied = action not in _ACTIONS or (action == sqlite3.SQLITE_FUNCTION and str(name).lower() in _DENIED)
    return sqlite3.SQLITE_DENY if denied else sqlite3.SQLITE_OK


if __name__ == "__main__":
    _main()
