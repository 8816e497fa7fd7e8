"""Reading what ``portability.write`` wrote, or what somebody says it wrote: nothing in the file is trusted."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import pydantic

from rb_dspy.bank.admission import admit, new_item
from rb_dspy.bank.interface import BankStore
from rb_dspy.bank.parts import NewExperience, NewItem
from rb_dspy.bank.renaming import ids_here
from rb_dspy.errors import InputError, StorageError
from rb_dspy.files import is_database
from rb_dspy.jsonl import read_objects
from rb_dspy.schema import ExperienceDraft, MemoryDraft, MemoryItem, Polarity, Task, Trajectory, Verdict
from rb_dspy.text import normalise

FORMAT = "rb_dspy-bank"
VERSION = 1

_ITEM = "m[0-9a-f]{20}"
_ITEM_ID = re.compile(_ITEM).fullmatch


class _Part(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(frozen=True, extra="forbid")


class _Header(_Part):
    format: Literal["rb_dspy-bank"]
    version: int = pydantic.Field(strict=True, ge=1)
    scope: str
    embedder: str
    dimension: int = pydantic.Field(strict=True, ge=1)
    experiences: int = pydantic.Field(strict=True, ge=0)


class _Item(_Part):
    id: str = pydantic.Field(pattern=rf"^{_ITEM}$")
    title: str
    description: str
    content: str
    polarity: Polarity
    distiller: str


class _Line(_Part):
    id: str = pydantic.Field(pattern=r"^e[0-9a-f]{20}$")
    task: Task
    trajectories: Annotated[tuple[Trajectory, ...], pydantic.FailFast()]
    verdicts: Annotated[tuple[Verdict, ...], pydantic.FailFast()]
    items: Annotated[tuple[_Item, ...], pydantic.FailFast()]
    run_id: str
    note: str
    origin: str
    shown: Annotated[tuple[Annotated[str, pydantic.Field(min_length=1, max_length=200)], ...], pydantic.FailFast()]
    created_at: str


def read(path: Path, scope: str, *, origin: str = "", store: BankStore | None = None) -> Iterator[NewExperience]:
    """What ``portability.write`` wrote, to be appended to ``scope``, without vectors.

    The whole file is checked before this returns. Then it is read again, as far as experiences are taken.

    Ids, texts, polarities and times are taken as they stand; ``origin``, where given, takes the place of the file's.
    An item that an agent was shown, and that cannot keep its id in ``store``, is named by the one that it has there, or
    gets: a rollback of it would else miss what was learned under its influence.
    Raises ``InputError`` naming the line: of what is no export, what was cut off or written by a newer rb_dspy, what
    does not fit together.
    """
    real = Path(os.path.realpath(path))
    if is_database(real) or (real.exists() and not real.is_file()):  # a pipe cannot be read twice
        raise InputError(f"{path}: is no file of text, perhaps a bank; expected an export of a bank")
    seen, shown = _Seen(), set[str]()
    for new in _read(path, scope, origin, seen, {}):
        shown.update(new.shown)
    ids: dict[str, str] = {}
    if store is not None:
        texts = seen.texts(shown)
        again = partial(_read, path, scope, origin, _Seen(), {})
        ids = ids_here(store, scope, texts, seen.givers(texts), again, seen)
    return _read(path, scope, origin, _Seen(), ids)


def _read(path: Path, scope: str, origin: str, seen: _Seen, ids: Mapping[str, str]) -> Iterator[NewExperience]:
    lines = read_objects(path, "a JSON object of an export of a bank", error=StorageError)
    number, first = next(lines)
    header = _header(first, f"{path}:{number}")
    for number, given in lines:
        place = f"{path}:{number}"
        try:
            line = _Line.model_validate(given)
            yield _admitted(line, scope, origin, seen, number, ids)
        except pydantic.ValidationError as exc:
            raise InputError(f"{place}: {_misfit(exc)}") from None
        except InputError as exc:
            raise InputError(f"{place}: {exc}") from None
    if len(seen.experiences) != header.experiences:
        raise InputError(
            f"{path}:{number}: the file ends after {len(seen.experiences):,} experiences; expected the"
            f" {header.experiences:,} that its first line tells of: part of it is missing"
        )


def _header(given: dict[str, Any], place: str) -> _Header:
    if given.get("format") != FORMAT:
        raise InputError(f'{place}: not an export of a bank; expected "format": "{FORMAT}" in the first line')
    version = given.get("version")
    if isinstance(version, int) and version > VERSION:
        raise InputError(
            f"{place}: version {str(version)[:20]} of the format, written by a newer rb_dspy; expected at most"
            f" {VERSION}: upgrade rb_dspy"
        )
    try:
        return _Header.model_validate(given)
    except pydantic.ValidationError as exc:
        raise InputError(f"{place}: {_misfit(exc)}") from None


@dataclass
class _Seen:
    """What the lines so far hold; ids as numbers, since there may be millions."""

    experiences: dict[int, int] = field(default_factory=dict)
    """Id -> line."""
    items: dict[int, tuple[int, int, Polarity]] = field(default_factory=dict)
    """Id -> line, digest of the text, polarity."""

    def is_new(self, new: NewItem, polarity: Polarity, line: int) -> bool:
        """Whether this is the first line with the item. Raises ``InputError`` where it stood with another text."""
        here = line, int(new.digest, 16), polarity
        before = self.items.setdefault(int(new.id[1:], 16), here)
        if before is here:
            return True
        if before[0] == line:
            raise InputError(f"item {new.id} stands twice in this experience; expected it once")
        if before[1:] != here[1:]:
            what = "text" if before[1] != here[1] else "polarity"
            raise InputError(f"item {new.id} has another {what} than in line {before[0]}; expected the same")
        return False

    def texts(self, shown: Iterable[str]) -> dict[str, str]:
        """Digests of the items that were ``shown``, and of those that say the same, by id."""
        numbers = [int(id[1:], 16) for id in shown if _ITEM_ID(id)]
        digests = {self.items[number][1] for number in numbers if number in self.items}
        return {f"m{id:020x}": f"{digest:020x}" for id, (_, digest, _) in self.items.items() if digest in digests}

    def givers(self, ids: Iterable[str]) -> dict[str, str]:
        """The first experience with each of these items, which are here, by the item's id."""
        first = {id: self.items[int(id[1:], 16)][0] for id in ids}
        lines = set(first.values())
        stand = {line: f"e{number:020x}" for number, line in self.experiences.items() if line in lines}
        return {id: stand[line] for id, line in first.items()}

    def __contains__(self, id: object) -> bool:
        """Whether an item of this id, which is one, was among them."""
        return int(str(id)[1:], 16) in self.items


def _admitted(line: _Line, scope: str, origin: str, seen: _Seen, number: int, ids: Mapping[str, str]) -> NewExperience:
    before = seen.experiences.setdefault(int(line.id[1:], 16), number)
    if before != number:
        raise InputError(f"experience {line.id} stands in line {before} already; expected each once")
    _check_time(line.created_at)
    distillers = {item.distiller for item in line.items}
    if len(distillers) > 1:
        raise InputError("items of several distillers; expected the same for all items of an experience")
    items = tuple(_item(given, scope) for given in line.items)
    # The polarity of an item is that of the experience that gave it first; one that came again tells nothing here.
    own = {
        given.polarity for given, new in zip(line.items, items, strict=True) if seen.is_new(new, given.polarity, number)
    }
    if len(own) > 1:
        raise InputError("new items from a success and from a failure; expected the same for all of an experience")
    draft = ExperienceDraft(
        task=line.task,
        trajectories=line.trajectories,
        verdicts=line.verdicts,
        run_id=line.run_id,
        polarity=min(own, default=None),
        distiller=min(distillers, default=""),
        note=line.note,
        origin=origin or line.origin,
        shown=tuple([ids.get(id, id) for id in map(normalise, line.shown)]),
    )
    items = tuple(
        [
            _item(given, scope, ids[given.id]) if given.id in ids else item
            for given, item in zip(line.items, items, strict=True)
        ]
    )
    once = {item.digest: item for item in reversed(items)}  # of two that say the same, as edits make them, the first
    own_items = tuple([item for item in items if once[item.digest] is item])
    return replace(admit(scope, draft, id=line.id), items=own_items, created_at=line.created_at)


def _item(given: _Item, scope: str, id: str = "") -> NewItem:
    texts = given.model_dump(include={"title", "description", "content"})
    draft = MemoryDraft(**texts)
    for name, text in texts.items():
        if len(kept := getattr(draft, name)) < len(text.strip()):
            raise InputError(f"item {given.id}: {name} of {len(text):,} characters; expected at most {len(kept):,}")
    check_said(given.id, draft)
    return new_item(scope, draft, id or given.id)


def check_said(id: str, texts: MemoryDraft | MemoryItem) -> None:
    """Raise ``InputError`` for an item that says nothing."""
    if not (texts.title.strip() and texts.content.strip()):
        raise InputError(f"item {id}: no {'content' if texts.title.strip() else 'title'}; expected some text")


def _check_time(created_at: str) -> None:
    try:
        if created_at:
            datetime.fromisoformat(created_at)
    except ValueError:
        raise InputError(f"created_at {created_at[:40]!r}; expected an ISO 8601 time, or nothing") from None


def _misfit(exc: pydantic.ValidationError) -> str:
    """The first error in one line; keys are a stranger's text."""
    error = exc.errors(include_url=False, include_context=False)[0]
    place = ".".join(ascii(part)[1:-1][:40] if isinstance(part, str) else str(part) for part in error["loc"])
    return f"{place}: {error['msg'].lower()}"
