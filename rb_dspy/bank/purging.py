"""Permanently delete a source, or whatever contains a text: rows, notes, pending rollouts, and records of runs."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Collection, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

from filelock import FileLock, Timeout

from rb_dspy.bank.admission import corrected_id, is_handwritten, now, unpack_rollouts
from rb_dspy.bank.lineage import Listing, replacing
from rb_dspy.bank.reading import experience_pages, grouped, versions_of
from rb_dspy.bank.removal import source_of
from rb_dspy.bank.retiring import retired_by
from rb_dspy.bank.store.base import Entry, ExperienceRow, ItemRow, PendingKey
from rb_dspy.bank.store.sql import SqlWriter
from rb_dspy.bank.undeleting import bring_back
from rb_dspy.errors import InputError, StorageError
from rb_dspy.files import atomic_write
from rb_dspy.jsonl import encode, read_appended
from rb_dspy.schema import Removal

_SHORTEST = 4
"""A shorter text is part of ordinary words."""

_NESTED = 3
"""How often a text may be written as JSON within JSON."""

_PURGED = "purged"
"""The name of marks and snapshots whose names had to go."""

_KEPT = {"run_id", "task", "env", "template", "verdict", "stop_reason"}
"""Fields of a run's row that stay, also if its experience is purged."""


class Purged(NamedTuple):
    """What was deleted; which texts of the records of runs have to go; and the run and task of deleted experiences."""

    removal: Removal
    contains: Callable[[str], bool]
    attempts: Collection[tuple[str, str]]


def purge(writer: SqlWriter, name: str) -> Purged:
    """Delete ``name``: experiences with their item rows and corrected versions, or an item in all its versions.

    The experience of a handwritten lesson contains its text, so it is deleted, too. So are items of other experiences
    that were written from what is deleted, as they list its task. Other experiences lose a note that may quote a
    deleted item. What the experiences that lose items had retired comes back.
    """
    source = source_of(writer, name, ended=True, edits=False)
    every = {row.id: row for row in writer.experiences(ended=True)}
    items = {each for id in source.items for each in versions_of(writer, id)}
    rows = writer.items(ids=items, ended=True)
    lessons = {row.experience for row in rows if is_handwritten(row.task_id)}
    experiences = _with_versions(every, source.experiences | lessons)
    written = replacing(writer, rows) + writer.items(seqs=Listing(writer).rows(experiences), ended=True)
    holders = {row.experience for row in (*rows, *written)}
    rows = [*writer.items(experiences={row.seq for row in experiences}, ended=True), *rows, *written]
    pending = source.pending(writer, ids=[row.id for row in experiences])
    ids = [*(row.id for row in experiences), *sorted(items)] if rows or experiences else []
    losing = {row.seq for row in experiences} | {row.experience for row in written}
    back = [row.id for row in every.values() if row.seq in losing]
    removal = _delete(writer, experiences, rows, pending, [*ids, *purged_name(name)] if ids else [], back)
    gone = {text for row in rows if row.id in removal.items for text in (row.title, row.description, row.content)}
    quoted = [text for text in gone if len(text) >= _SHORTEST]
    notes = [row for row in every.values() if row.note]
    writer.blank_notes(row.seq for row in notes if row.seq in holders or any(text in row.note for text in quoted))
    by = [row.id for row in every.values() if row.seq in holders or row in experiences]
    reasons = [each for each in writer.journal(kinds=["retire"]) if any(text in each.note for text in quoted)]
    writer.blank([*retired_by(writer, by), *reasons])
    return Purged(removal, gone.__contains__, {(row.run_id, row.task_id) for row in experiences})


def purged_name(name: str) -> list[str]:
    """The subject of the journal under which it says that a run or an origin was purged: its name may be a secret."""
    return [f"purged:{sha256(name.encode()).hexdigest()[:20]}"] if name.startswith(("run:", "origin:")) else []


def purge_text(writer: SqlWriter, text: str) -> Purged:
    """Delete experiences and items that contain ``text``, in any version, and notes and pending rollouts.

    Raises ``CorruptBank`` if a rollout cannot be read, so it is unknown what it contains.
    """
    if len(text.strip()) < _SHORTEST:
        raise InputError(f"the text to purge has {len(text.strip())} characters; expected at least {_SHORTEST}")

    # As it is, and as JSON or Python writes it: an observation may be JSON.
    forms = {text, repr(text)[1:-1]}
    for _ in range(_NESTED):
        forms |= {json.dumps(form, ensure_ascii=each)[1:-1] for form in forms for each in (True, False)}

    def contains(value: object) -> bool:
        if isinstance(value, Mapping):
            return any(contains(each) for pair in value.items() for each in pair)
        if isinstance(value, list | tuple):
            return any(map(contains, value))
        return isinstance(value, str | int | float) and any(form in str(value) for form in forms)

    def has(payload: bytes | None, id: str) -> bool:
        return contains(unpack_rollouts(payload, f"the rollout of {id}").model_dump())

    experiences = [
        row
        for row in itertools.chain.from_iterable(experience_pages(writer, ended=True))
        if contains((row.run_id, row.origin, row.distiller, row.instruction)) or has(row.payload, row.id)
    ]
    rows = writer.items(experiences={row.seq for row in experiences}, ended=True)
    rows += [row for row in writer.items(ended=True) if contains((row.title, row.description, row.content, row.data))]
    waiting = [
        row
        for row in writer.pending()
        if contains((row.key, row.error, row.origin)) or has(row.payload, row.key.task_id)
    ]
    pending = grouped(row.key for row in waiting)
    writer.blank_notes(row.seq for row in writer.experiences(ended=True) if contains(row.note))
    ids = dict.fromkeys([*(row.id for row in experiences), *sorted(row.id for row in rows)])
    removal = _delete(writer, experiences, rows, pending, [*ids], [row.id for row in experiences])
    entries = [entry for entry in writer.journal() if contains((entry.note, entry.items))]
    writer.blank([entry for entry in entries if not contains(entry.items)])
    writer.blank([entry for entry in entries if contains(entry.items)], name=_PURGED)
    named = [row.name for row in writer.snapshots() if contains(row.name)]
    writer.rename_snapshots({name: f"{_PURGED}-{now()}-{number}" for number, name in enumerate(named, 1)})
    return Purged(removal, contains, {(row.run_id, row.task_id) for row in experiences})


def _with_versions(every: Mapping[str, ExperienceRow], seqs: Collection[int]) -> list[ExperienceRow]:
    """The experiences with these numbers, those that they correct, and those that corrected them."""
    before = {corrected_id(id): id for id in every}

    def first(id: str) -> str:
        while id in before:
            id = before[id]
        return id

    firsts = {first(row.id) for row in every.values() if row.seq in seqs}
    return [row for row in every.values() if first(row.id) in firsts]


def _delete(
    writer: SqlWriter,
    experiences: Collection[ExperienceRow],
    rows: Collection[ItemRow],
    pending: Mapping[str, list[PendingKey]],
    ids: Collection[str],
    back: Collection[str],
) -> Removal:
    """Delete rows and pending rollouts, and blank the notes and marks of what is deleted.

    What the experiences with the ids ``back`` had retired comes back.
    """
    writer.remove_pending([key for keys in pending.values() for key in keys])
    writer.delete({*(each.seq for each in experiences), *(row.seq for row in rows)})
    stays = {row.id for row in writer.items(ids={row.id for row in rows})}
    gone = [id for id in dict.fromkeys([*ids, *(row.id for row in rows)]) if id not in stays]
    writer.blank(writer.journal(subjects=gone))
    if ids:
        last = writer.allocate(1)
        writer.add(entries=[Entry(last, id, "purge", (), "", now()) for id in gone])
    bring_back(writer, back, gone, "what retired it was purged")
    return Removal(
        experiences=tuple(each.id for each in experiences),
        items=tuple(id for id in dict.fromkeys(row.id for row in rows) if id not in stays),
        pending=tuple(pending),
    )


def purge_records(folder: Path, purged: Purged) -> None:
    """Blank purged texts in the records of runs, and the texts of purged attempts. Other files are not changed.

    Raises ``StorageError`` if a run is active, or a file cannot be written.
    """

    def blanked(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: blanked(each) for key, each in value.items()}
        if isinstance(value, list):
            return [blanked(each) for each in value]
        return "[purged]" if isinstance(value, str) and purged.contains(value) else value

    def cleaned(path: Path) -> bytes:
        head, *rows = read_appended(path) or [{}]
        if head.get("format") != "rb_dspy-run":
            return path.read_bytes()
        for row in rows:
            if (row.get("run_id"), row.get("task")) in purged.attempts:
                row.update({name: row[name][:0] for name in row.keys() - _KEPT if isinstance(row[name], str | list)})
        return b"".join(encode(blanked(line)) for line in (head, *rows))

    for path in sorted(folder.glob("*.jsonl")):
        if cleaned(path) == path.read_bytes():
            continue
        lock = FileLock(path.with_suffix(".lock"), timeout=0)
        try:
            with lock:
                text = cleaned(path)
                with atomic_write(path, error=StorageError) as file:
                    file.write(text)
        except Timeout:
            raise StorageError(f"{path}: the run is active, so nothing is purged; purge when it has ended") from None
