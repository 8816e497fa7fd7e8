"""A scope as a file of JSON Lines, and back.

The first line is a header: ``format``, ``version``, ``scope``, ``embedder``, ``dimension``, and how many
``experiences`` follow, one a line, oldest first, each whole: ids, task, trajectories, verdicts, items as they are now,
provenance. Numbers and vectors are the bank's own affair and are made anew; so is the journal: the file holds what is
there, not how it came to be. Equal states give equal files, byte for byte.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from rb_dspy.bank.importing import FORMAT, VERSION, check_said, read
from rb_dspy.bank.interface import BankStore
from rb_dspy.errors import InputError, StorageError
from rb_dspy.files import atomic_write
from rb_dspy.jsonl import encode
from rb_dspy.schema import Experience

__all__ = ["experiences", "read", "write"]

_MOST = 10_000_000
"""Experiences that the header has room for."""

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
    with atomic_write(path, error=StorageError) as file:
        head = _head(store, scope)
        file.write(head(0))
        for experience in experiences(store, scope):
            file.write(_line(experience))
            written += 1
        file.seek(0)
        file.write(head(written))
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
        return encode(parts)
    except InputError as exc:
        raise InputError(f"experience {experience.id} could not be imported again: {exc}; delete it first") from None


def _head(store: BankStore, scope: str) -> Callable[[int], bytes]:
    """The header for a count of experiences, always of the same length: blanks before a line's end mean nothing."""
    stats = store.stats(scope)
    known = {"format": FORMAT, "version": VERSION, "scope": scope}
    known |= {"embedder": stats.embedder, "dimension": stats.dimension}
    room = len(encode(known | {"experiences": _MOST}))
    return lambda count: encode(known | {"experiences": count})[:-1].ljust(room - 1) + b"\n"
