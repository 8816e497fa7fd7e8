"""Export a scope to a JSON Lines file, and import it.

The first line is a header: ``format``, ``version``, ``scope``, ``embedder``, ``dimension``, and the number of
``experiences``. Each following line is one complete experience, oldest first: task, trajectories, verdicts, current
items, provenance. The file has the current state without vectors and journal. The import computes ids from the texts;
those in the file only say which items an agent was shown. Equal states give equal files.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import pydantic

from rb_dspy.bank.admission import NewExperience, admit, checked_draft, new_item, refused
from rb_dspy.bank.reading import all_experiences
from rb_dspy.bank.removal import current_ids
from rb_dspy.bank.store.overlay import Scope
from rb_dspy.errors import InputError, StorageError
from rb_dspy.files import atomic_write, is_database
from rb_dspy.jsonl import encode, read_objects
from rb_dspy.schema import Experience, ExperienceDraft, Frozen, Polarity, Task, Trajectory, Verdict

FORMAT: Final = "rb_dspy-bank"
VERSION = 1


class _Header(Frozen):
    format: Literal["rb_dspy-bank"]
    version: int = pydantic.Field(strict=True, ge=1)
    scope: str
    embedder: str
    dimension: int = pydantic.Field(strict=True, ge=0)
    experiences: int = pydantic.Field(strict=True, ge=0)


class _Item(Frozen):
    id: str = pydantic.Field(min_length=1, max_length=200)
    title: str
    description: str
    content: str
    polarity: Polarity
    distiller: str


class _Line(Frozen):
    id: str = pydantic.Field(min_length=1, max_length=200)
    task: Task
    trajectories: Annotated[tuple[Trajectory, ...], pydantic.FailFast()]
    verdicts: Annotated[tuple[Verdict, ...], pydantic.FailFast()]
    items: Annotated[tuple[_Item, ...], pydantic.FailFast()]
    run_id: str
    note: str
    origin: str
    shown: Annotated[tuple[Annotated[str, pydantic.Field(min_length=1, max_length=200)], ...], pydantic.FailFast()]
    created_at: str


def write(path: Path, scope: Scope) -> int:
    """Write all experiences to ``path``, which is replaced when they are on disk. Returns their number.

    One transaction reads all of it, so that a purge by others does not make the file incomplete.

    Raises:
        InputError: ``path`` is not the name of a file.
        StorageError: The file cannot be written.
    """
    with atomic_write(path, error=StorageError) as file, scope.reading() as reader:
        current = current_ids(reader)  # an import does not know the edits
        count, (name, dimension) = len(reader.experiences()), scope.embedder() or ("", 0)
        head = {"scope": scope.name, "embedder": name, "dimension": dimension, "experiences": count}
        file.write(encode({"format": FORMAT, "version": VERSION, **head}))
        file.writelines(_line(experience, current) for experience in all_experiences(reader, scope.name))
    return count


def read(path: Path, origin: str = "") -> Iterator[NewExperience]:
    """Read a file of ``write``. The file is untrusted input.

    Args:
        path: The file.
        origin: Replaces the origins in the file; empty: they stay.

    Raises:
        InputError: A line is not valid; the message gives its number.
    """
    real = Path(os.path.realpath(path))
    if is_database(real) or (real.exists() and not real.is_file()):  # a pipe cannot be read twice
        raise InputError(f"{path}: is not a text file, perhaps a bank; expected an export of a bank")
    lines = read_objects(path, "a JSON object of an export of a bank", error=StorageError)
    number, first = next(lines)
    header = _header(first, f"{path}:{number}")
    ids: dict[str, str] = {}
    seen: dict[str, int] = {}
    for number, value in lines:
        place = f"{path}:{number}"
        try:
            line = _Line.model_validate(value)
            new = _admitted(line, origin, ids)
        except pydantic.ValidationError as exc:
            raise InputError(f"{place}: {refused(exc)}") from None
        except InputError as exc:
            raise InputError(f"{place}: {exc}") from None
        if seen.setdefault(line.id, number) != number:
            raise InputError(f"{place}: experience {line.id} is also in line {seen[line.id]}; expected it once")
        yield new
    if len(seen) != header.experiences:
        raise InputError(
            f"{path}:{number}: the file ends after {len(seen):,} experiences; expected {header.experiences:,} according"
            " to its first line: part of it is missing"
        )


def _admitted(line: _Line, origin: str, ids: dict[str, str]) -> NewExperience:
    distillers, polarities = ({getattr(item, name) for item in line.items} for name in ("distiller", "polarity"))
    if len(distillers) > 1:
        raise InputError("items of several distillers; expected the same for all items of an experience")
    try:
        if line.created_at:
            datetime.fromisoformat(line.created_at)
    except ValueError:
        raise InputError(f"created_at {line.created_at[:40]!r}; expected an ISO 8601 time, or nothing") from None
    drafts = [checked_draft(item.model_dump(include={"title", "description", "content"})) for item in line.items]
    new_ids = [new_item(draft).id for draft in drafts]
    ids.update(zip((item.id for item in line.items), new_ids, strict=True))
    draft = ExperienceDraft(
        task=line.task,
        trajectories=line.trajectories,
        verdicts=line.verdicts,
        drafts=tuple(drafts),
        run_id=line.run_id,
        polarity=next(iter(polarities)) if len(polarities) == 1 else None,
        distiller=min(distillers, default=""),
        note=line.note,
        origin=origin or line.origin,
        shown=tuple(ids.get(id, id) for id in line.shown),
    )
    return admit(draft, created_at=line.created_at)


def _line(experience: Experience, current: Mapping[str, Sequence[str]]) -> bytes:
    items = [
        item.model_dump(include={"id", "title", "description", "content"})
        | {"polarity": item.polarity, "distiller": source.distiller}
        for item in experience.items
        for source in item.provenances
        if source.experience_id == experience.id
    ]
    parts = experience.model_dump(exclude={"scope", "seq", "items"}) | {"items": items}
    parts["shown"] = list(dict.fromkeys(new for id in experience.shown for new in current.get(id, [id])))
    try:
        return encode({name: parts[name] for name in _Line.model_fields})
    except InputError as exc:
        raise InputError(f"experience {experience.id} {exc}; delete it first") from None


def _header(value: dict[str, Any], place: str) -> _Header:
    if value.get("format") != FORMAT:
        raise InputError(f'{place}: not an export of a bank; expected "format": "{FORMAT}" in the first line')
    version = value.get("version")
    if isinstance(version, int) and version > VERSION:
        raise InputError(
            f"{place}: version {str(version)[:20]} of the format was written by a newer rb_dspy; expected at most"
            f" {VERSION}: upgrade rb_dspy"
        )
    try:
        return _Header.model_validate(value)
    except pydantic.ValidationError as exc:
        raise InputError(f"{place}: {refused(exc)}") from None
