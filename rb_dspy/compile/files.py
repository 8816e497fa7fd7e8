"""JSON files that are there whole or not at all, and are read only as what they say they are."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rb_dspy.errors import InputError, RBError
from rb_dspy.files import atomic_write, is_database


def write_json(path: str | Path, data: Mapping[str, Any]) -> None:
    """Write ``data`` to ``path``; it is durable when this returns, and nothing of it is there where this fails."""
    try:
        text = json.dumps(data, indent=1, ensure_ascii=True, allow_nan=False)
    except (TypeError, ValueError) as exc:
        raise InputError(f"{path}: holds a value that JSON has no word for ({exc}); nothing was written") from None
    with atomic_write(path) as file:
        file.write(f"{text}\n".encode())


def read_json(path: str | Path, kind: str, version: int) -> dict[str, Any]:
    """What ``write_json`` was given: an object whose ``format`` is ``kind``, and ``version`` not above this one.

    Raises ``InputError`` for anything else, a pickle among it: reading one can run whatever its writer wanted.
    """
    return read_one_of(path, {kind: version})


def read_one_of(path: str | Path, kinds: Mapping[str, int]) -> dict[str, Any]:
    """``read_json`` where there are several ``kinds``, each with its newest version."""
    path = Path(path)
    kind = " or ".join(kinds)
    try:
        if is_database(Path(os.path.realpath(path))):  # closing an open one here would drop the locks that it holds
            raise InputError(f"{path}: a database, perhaps a bank, or a file of one; expected a {kind}")
        raw = path.read_bytes()
    except FileNotFoundError:
        raise InputError(f"{path}: no such file; expected a {kind}") from None
    except OSError as exc:
        raise RBError(f"{path}: cannot be read: {exc.strerror}") from None
    if raw[:1] == b"\x80" or raw[:2] == b"PK":
        raise InputError(f"{path}: pickled, and a pickle can run code; expected a {kind} in JSON: save it as one")
    try:
        data = json.loads(raw)
    except (UnicodeDecodeError, json.JSONDecodeError) as exc:
        raise InputError(f"{path}: not JSON ({exc}); expected a {kind}") from None
    except (ValueError, RecursionError) as exc:  # a number of too many digits, brackets inside brackets
        raise InputError(f"{path}: JSON that cannot be read ({type(exc).__name__}); expected a {kind}") from None
    return of_kind(data, kinds, str(path))


def of_kind(data: Any, kinds: Mapping[str, int], source: str) -> dict[str, Any]:
    """``data``, where it is of one of ``kinds`` and not of a newer version. Raises ``InputError`` else."""
    if not isinstance(data, dict) or data.get("format") not in list(kinds):  # what cannot be hashed is none either
        raise InputError(f"{source}: not a {' or '.join(kinds)}; expected a file that rb_dspy saved as one")
    found, newest = data.get("version"), kinds[data["format"]]
    if not isinstance(found, int) or found > newest:
        raise InputError(
            f"{source}: version {found} of the format, and this rb_dspy reads up to {newest}; install a newer rb_dspy"
        )
    return data
