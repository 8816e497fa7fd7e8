"""A file of tasks is written whole or not at all, and only what can be read again."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Sequence
from pathlib import Path

from rb_dspy.bank.jsonlines import of_database
from rb_dspy.errors import InputError, RBError
from rb_dspy.schema import Task
from rb_dspy.stream.records import check_ids


def check_writable(tasks: Sequence[Task], path: Path) -> None:
    """Refuse what could not be read again."""
    if not tasks:
        raise InputError(f"{path}: a stream without tasks; expected at least one to write")
    check_ids(tasks, str(path))


def replace(path: Path, write: Callable[[Path], object]) -> None:
    """Write a file whole or not at all; one that was there is replaced."""
    aside = path.with_name(f".rb-dspy-tasks-{secrets.token_hex(8)}")
    try:
        if path.is_dir():
            raise InputError(f"{path}: a folder; expected the name of a file")
        if of_database(Path(os.path.realpath(path))):
            raise InputError(f"{path}: a database, perhaps a bank, or a file of one; expected the name of another file")
        if not path.parent.is_dir():
            raise InputError(f"{path.parent}: no such folder; make it, or give another path")
        try:
            write(aside)
            aside.replace(path)
        finally:
            aside.unlink(missing_ok=True)
    except OSError as exc:
        raise RBError(f"{path}: cannot be written: {exc.strerror}; what was there is as before") from None
