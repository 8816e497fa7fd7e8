"""A scope as a file of JSON Lines, and back.

The first line is a header: ``format``, ``version``, ``scope``, ``embedder``, ``dimension``, and how many
``experiences`` follow, one a line, oldest first, each whole: ids, task, trajectories, verdicts, items as they are now,
provenance. Numbers and vectors are the bank's own affair and are made anew; so is the journal: the file holds what is
there, not how it came to be. Equal states give equal files, byte for byte.
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from rb_dspy.bank.importing import FORMAT, VERSION, check_said, read
from rb_dspy.bank.interface import BankStore
from rb_dspy.bank.jsonlines import MAX_LINES, encoded, of_database
from rb_dspy.errors import InputError, StorageError
from rb_dspy.schema import Experience

__all__ = ["experiences", "read", "write"]

_PAGE = 500
"""Experiences of one read, so that no transaction stays open for long."""


_TEXTS = {"id", "title", "description", "content"}


def experiences(store: BankStore, scope: str) -> Iterator[Experience]:
    """All experiences of a scope as they are at the first one, oldest first, read in pages."""
    mark, after = store.mark(scope), 0
    while page := store.experiences(scope, after=after, limit=_PAGE, at=mark):
        yield from page
        after = page[-1].seq


def write(store: BankStore, scope: str, path: Path) -> int:
    """Write all experiences of a scope to ``path``; returns how many.

    A file that is there is replaced when the new one is whole and on disk, and stays as it is before that. Raises
    ``InputError`` for a place that cannot hold it and for an experience that ``read`` would refuse, ``StorageError``
    where the disk does.
    """
    written = 0
    try:
        target = _target(path)
        aside = target.with_name(f".rb-dspy-export-{secrets.token_hex(8)}")
        try:
            with aside.open("xb") as file:
                if target.exists():
                    shutil.copymode(target, aside)  # what was private stays so
                head = _head(store, scope)
                file.write(head(0))
                for experience in experiences(store, scope):
                    file.write(_line(experience))
                    written += 1
                if written >= MAX_LINES:
                    raise InputError(f"{path}: {written:,} experiences; expected fewer than {MAX_LINES:,} in one file")
                file.seek(0)
                file.write(head(written))
                file.flush()
                os.fsync(file.fileno())
            aside.replace(target)
        finally:
            aside.unlink(missing_ok=True)
        _sync_folder(target.parent)
    except OSError as exc:
        raise StorageError(f"{path}: cannot be written: {exc.strerror}; what was there is as before") from exc
    return written


def _line(experience: Experience) -> bytes:
    # Where its row of this experience is damaged, an item that others gave too stands here without this provenance.
    items = [
        item.model_dump(include=_TEXTS) | {"polarity": item.polarity, "distiller": source.distiller}
        for item in experience.items
        for source in item.provenances
        if source.experience_id == experience.id
    ]
    parts = {
        "id": experience.id,
        "task": experience.task.model_dump(),
        "trajectories": [trajectory.model_dump() for trajectory in experience.trajectories],
        "verdicts": [verdict.model_dump() for verdict in experience.verdicts],
        "items": items,
        "run_id": experience.run_id,
        "note": experience.note,
        "origin": experience.origin,
        "shown": experience.shown,
        "created_at": experience.created_at,
    }
    try:
        for item in experience.items:
            check_said(item.id, item)
        return encoded(parts)
    except InputError as exc:
        raise InputError(f"experience {experience.id} could not be imported again: {exc}; delete it first") from None


def _head(store: BankStore, scope: str) -> Callable[[int], bytes]:
    """The header for a count of experiences, always of the same length: blanks before a line's end mean nothing."""
    stats = store.stats(scope)
    known = {"format": FORMAT, "version": VERSION, "scope": scope}
    known |= {"embedder": stats.embedder, "dimension": stats.dimension}
    room = len(encoded(known | {"experiences": MAX_LINES}))
    return lambda count: encoded(known | {"experiences": count})[:-1].ljust(room - 1) + b"\n"


def _target(path: Path) -> Path:
    """Where the file goes: the path itself, or what it links to."""
    if "\0" in str(path):
        raise InputError(f"{str(path)!r}: a path holds no NUL; expected the name of a file")
    if path.is_dir() or (path.exists() and not path.is_file()):
        raise InputError(f"{path}: {'a folder' if path.is_dir() else 'no file'}; expected the name of a file")
    if not path.parent.is_dir():
        raise InputError(f"{path.parent}: no such folder; make it, or give another path")
    target = Path(os.path.realpath(path))  # ``resolve`` raises what is no error of ours for links in a circle
    if target.is_symlink():
        raise InputError(f"{path}: a link that leads back to itself; expected the name of a file")
    if of_database(target):
        raise InputError(f"{path}: a database, perhaps a bank, or a file of one; expected the name of another file")
    return target


def _sync_folder(folder: Path) -> None:
    """Make a rename durable, where folders can be synced."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
