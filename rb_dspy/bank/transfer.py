"""Copy a scope with its history to another bank; export its state to a JSON Lines file, and import it.

The first line is a header: ``format``, ``version``, ``scope``, ``embedder``, ``dimension``, and the number of
``experiences``. Each following line is one complete experience, oldest first: task, trajectories, verdicts, current
items, provenance, marks. The file has the current state without vectors and journal. The import computes ids from the
texts; those in the file only say what an agent was shown. Equal states give equal files.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import pydantic

from rb_dspy.bank.admission import NewExperience, admit, checked_draft, new_item, refused
from rb_dspy.bank.reading import all_experiences, current_ids, experience_pages, kept_marks
from rb_dspy.bank.store.base import ExperienceRow, ItemRow, Unit
from rb_dspy.bank.store.overlay import Reader, Scope
from rb_dspy.bank.store.sql import SqlScope
from rb_dspy.config import TrustConfig
from rb_dspy.errors import InputError, StorageError
from rb_dspy.files import atomic_write, is_database
from rb_dspy.jsonl import encode, read_objects
from rb_dspy.schema import (
    LEVELS,
    Experience,
    ExperienceDraft,
    Frozen,
    Level,
    Mark,
    Polarity,
    Task,
    Trajectory,
    Verdict,
)

FORMAT: Final = "rb_dspy-bank"
VERSION = 2
_WHOLE = 256 << 20
"""Bytes of a file that is kept in memory while it is checked; a larger one is read twice."""


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
    kind: str = "lesson"
    data: dict[str, pydantic.JsonValue] = pydantic.Field(default_factory=dict)
    level: Level = "learned"
    marks: dict[str, str] = pydantic.Field(default_factory=dict)
    polarity: Polarity
    distiller: str


_Ids = Annotated[tuple[Annotated[str, pydantic.Field(min_length=1, max_length=200)], ...], pydantic.FailFast()]


class _Line(Frozen):
    id: str = pydantic.Field(min_length=1, max_length=200)
    task: Task
    trajectories: Annotated[tuple[Trajectory, ...], pydantic.FailFast()]
    verdicts: Annotated[tuple[Verdict, ...], pydantic.FailFast()]
    items: Annotated[tuple[_Item, ...], pydantic.FailFast()]
    run_id: str
    note: str
    origin: str
    shown: _Ids
    cited: _Ids = ()
    level: Level = "learned"
    reward: float | None = pydantic.Field(default=None, ge=0, le=1)
    submitted: int | None = pydantic.Field(default=None, ge=0)
    marks: dict[str, str] = pydantic.Field(default_factory=dict)
    helped: dict[str, Mark] = pydantic.Field(default_factory=dict)
    """Written only if there is one: an older rb_dspy does not know it."""
    created_at: str


def copy(source: SqlScope, target: SqlScope) -> int | None:
    """Copy all rows of a scope to an empty one, in one transaction; returns the number of experiences.

    None: the target already has the same rows, as after a copy that was interrupted between scopes.
    """
    embedder = source.embedder()
    with source.reading() as reader, target.write(embedder=embedder) as writer:
        if writer.mark() or writer.pending(payload=False):
            if _equal(reader, writer):
                return None
            raise InputError(
                f"{target.location}: scope {target.name!r} is not empty, and differs from the one to copy; copy into a"
                " bank without it, or name another scope"
            )
        writer.allocate(reader.mark())
        for page in experience_pages(reader, ended=True):
            items = reader.items(experiences=[row.seq for row in page], ended=True)
            rows: dict[Unit, Sequence[ExperienceRow | ItemRow]] = {"experience": page, "item": items}
            vectors = [
                (unit, seq, vector)
                for unit, each in rows.items()
                for seq, vector in source.vectors(unit, [row.seq for row in each]).items()
            ]
            uses = reader.uses(experiences=[row.seq for row in page])
            writer.add(experiences=page, items=items, vectors=vectors, uses=uses)
        writer.add(entries=reader.journal())
        for snapshot in reader.snapshots():
            writer.add_snapshot(snapshot)
        for row in reader.pending():
            writer.add_pending(row)
        return len(reader.tally("experiences", ["seq"]))


def _equal(one: Reader, other: Reader) -> bool:
    """Whether two scopes have the same rows; their vectors follow from these and the embedder."""
    if one.mark() != other.mark() or one.snapshots() != other.snapshots() or one.pending() != other.pending():
        return False
    if sorted(one.journal()) != sorted(other.journal()):
        return False
    for page, same in zip_longest(experience_pages(one, ended=True), experience_pages(other, ended=True)):
        if page != same:
            return False
        seqs = [row.seq for row in page]
        if one.items(experiences=seqs, ended=True) != other.items(experiences=seqs, ended=True):
            return False
        if one.uses(experiences=seqs) != other.uses(experiences=seqs):
            return False
    return True


def write(path: Path, scope: Scope) -> int:
    """Write all experiences to ``path``, which is replaced when they are on disk. Returns their number.

    One transaction reads all of it, so that a purge by others does not make the file incomplete.
    """
    with atomic_write(path, error=StorageError) as file, scope.reading() as reader:
        current = current_ids(reader)  # an import does not know the edits
        marks = {id: kept_marks(reader, id) for id in {entry.subject for entry in reader.journal(kinds=["mark"])}}
        count, (name, dimension) = len(reader.tally("experiences", ["seq"])), scope.embedder() or ("", 0)
        head = {"scope": scope.name, "embedder": name, "dimension": dimension, "experiences": count}
        file.write(encode({"format": FORMAT, "version": VERSION, **head}))
        cited: dict[int, list[str]] = {}
        for use in reader.uses():
            if use.cited:
                cited.setdefault(use.experience, []).append(use.subject)
        said: dict[str, dict[str, str]] = {}
        for entry in reader.journal(kinds=["mark"]):
            for id in entry.items[1:]:
                said.setdefault(id, {})[entry.subject] = entry.note
        for experience in all_experiences(reader, scope.name):
            helped = said.get(experience.id, {})
            file.write(_line(experience, cited.get(experience.seq, ()), helped, current, marks))
    return count


def read(path: Path, trust: TrustConfig, origin: str = "", *, own: bool = False) -> Iterable[NewExperience]:
    """Read and check all of a file of ``write``, which is untrusted input. See ``MemoryBank.import_jsonl``."""
    real = Path(os.path.realpath(path))
    if is_database(real) or (real.exists() and not real.is_file()):  # a pipe cannot be read twice
        raise InputError(f"{path}: is not a text file, perhaps a bank; expected an export of a bank")
    lines = partial(_read, path, lambda line, ids: _admitted(line, ids, trust, origin, own=own))
    if not real.exists():
        list(lines())  # raises the error
    if not (origin or own):
        with real.open("rb") as file:
            origin = f"import:{hashlib.file_digest(file, 'sha256').hexdigest()[:8]}"
    if real.stat().st_size <= _WHOLE:
        return [*lines()]
    for _ in lines():
        pass
    return lines()


def _read(path: Path, admitted: Callable[[_Line, dict[str, str]], NewExperience]) -> Iterator[NewExperience]:
    lines = read_objects(path, "a JSON object of an export of a bank", error=StorageError)
    number, first = next(lines)
    header = _header(first, f"{path}:{number}")
    ids: dict[str, str] = {}
    seen: dict[str, int] = {}
    for number, value in lines:
        place = f"{path}:{number}"
        try:
            line = _Line.model_validate(value)
            new = admitted(line, ids)
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


def _admitted(line: _Line, ids: dict[str, str], trust: TrustConfig, origin: str, *, own: bool) -> NewExperience:
    distillers, polarities = ({getattr(item, name) for item in line.items} for name in ("distiller", "polarity"))
    if len(distillers) > 1:
        raise InputError("items of several distillers; expected the same for all items of an experience")
    try:
        if line.created_at:
            datetime.fromisoformat(line.created_at)
            line.created_at.encode("ascii")
    except ValueError:
        raise InputError(f"created_at {line.created_at[:40]!r}; expected an ISO 8601 time, or nothing") from None
    texts = {"title", "description", "content"}
    drafts = [checked_draft(item.model_dump(include=texts), item.kind, item.data) for item in line.items]
    rows = [new_item(draft) for draft in drafts]
    ids.update({item.id: row.id for item, row in zip(line.items, rows, strict=True)})
    stated = f"the file names the origin {line.origin!r}" if line.origin and not own else ""
    draft = ExperienceDraft(
        task=line.task,
        trajectories=line.trajectories,
        verdicts=line.verdicts,
        drafts=tuple(drafts),
        run_id=line.run_id,
        polarity=next(iter(polarities)) if len(polarities) == 1 else None,
        distiller=min(distillers, default=""),
        note="; ".join(filter(None, [line.note, stated])),
        origin=line.origin if own else origin,
        shown=tuple(ids.get(id, id) for id in line.shown) if own else (),
        cited=tuple(ids.get(id, id) for id in line.cited) if own else (),
        marks={ids.get(id, id): value for id, value in line.helped.items()} if own else {},
        reward=line.reward if own else None,
        submitted=line.submitted,
    )
    new = admit(draft, line.level if own else trust.level(origin), created_at=line.created_at, items=rows)
    ids[line.id] = new.id
    if not own:
        return replace(new, imported=True)
    stored = {row.id: item for row, item in zip(rows, line.items, strict=True)}
    marks = {new.id: line.marks, **{id: item.marks for id, item in stored.items()}}
    return replace(
        new,
        items=tuple(item._replace(level=LEVELS.index(stored[item.id].level)) for item in new.items),
        held=frozenset(id for id, item in stored.items() if item.level == "held"),
        stated=True,
        marks=tuple((id, name, value) for id, each in marks.items() for name, value in each.items()),
    )


def _line(
    experience: Experience,
    cited: Collection[str],
    helped: Mapping[str, str],
    current: Mapping[str, Sequence[str]],
    marks: Mapping[str, Mapping[str, str]],
) -> bytes:
    items = [
        item.model_dump(include={"id", "title", "description", "content", "kind", "data", "level"})
        | {"marks": marks.get(item.id, {}), "polarity": source.polarity, "distiller": source.distiller}
        for item in experience.items
        for source in item.provenances
        if source.experience_id == experience.id
    ]
    parts = experience.model_dump(exclude={"scope", "seq", "items"}) | {"items": items}
    parts["marks"] = marks.get(experience.id, {})
    for name, ids in (("shown", experience.shown), ("cited", cited)):
        parts[name] = list(dict.fromkeys(new for id in ids for new in current.get(id, [id])))
    parts["helped"] = {new: value for id, value in helped.items() if value for new in current.get(id, [id])}
    try:
        return encode({name: parts[name] for name in _Line.model_fields if name != "helped" or parts[name]})
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
