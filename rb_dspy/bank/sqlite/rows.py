"""Records to rows and back, and how a damaged row is known."""

from __future__ import annotations

import json
import logging
import zlib
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple, overload

from rb_dspy.bank import journal, refusals, vectors
from rb_dspy.bank.admission import text_digest
from rb_dspy.bank.commands import bank_options
from rb_dspy.bank.parts import Match, NewExperience, Unit, task_key
from rb_dspy.bank.records import whole
from rb_dspy.bank.sqlite import ids
from rb_dspy.bank.sqlite.compression import compressed, decompressed
from rb_dspy.errors import CorruptBank
from rb_dspy.schema import MemoryItem, Polarity, Provenance
from rb_dspy.text import normalise

_log = logging.getLogger("rb_dspy.bank")

_encode = json.JSONEncoder(separators=(",", ":")).encode

Vector = tuple[int, bytes]
"""What is stored of a vector: checksum and data."""


# Named tuples: there is one of each for every experience, and a frozen dataclass takes three times as long to make.
class Prepared(NamedTuple):
    """An experience with all of its row that needs no number: made before the turn to write has come."""

    new: NewExperience
    told: bytes
    """The payload before it was compressed."""
    payload: bytes
    content: bytes
    """What the journal says of it, where its items get the ids that they have now."""
    task: int
    template: str | None
    vector: Vector | None
    item_vectors: tuple[Vector, ...]
    hash: int
    """Of its id; see ``ids.hashed``."""
    item_hashes: tuple[int, ...]


def all_prepared(batch: Sequence[NewExperience]) -> tuple[list[Prepared], set[int]]:
    """Them, and the lengths in bytes that their vectors have.

    Raises ``InputError`` where vectors and items are not aligned.
    """
    for new in batch:
        if len(new.items) != len(new.item_vectors):
            raise refusals.uneven(new)
    given = [vector for new in batch for vector in (new.vector, *new.item_vectors) if vector is not None]
    rows = vectors.all_packed(given)
    packed = iter([checked(data) for data in rows])
    return [_prepared(new, packed) for new in batch], set(map(len, rows))


def _prepared(new: NewExperience, packed: Iterator[Vector]) -> Prepared:
    """``packed``: its vectors come next."""
    told = journal.payload_json(new)
    return Prepared(
        new,
        told,
        compressed(told, new.task.id, new.task.instruction),
        journal.content_of_append(new, [item.id for item in new.items], told),
        task_key(new.task.id),
        None if new.task.template is None else normalise(new.task.template),
        None if new.vector is None else next(packed),
        tuple(islice(packed, len(new.items))),
        ids.hashed(new.id),
        tuple([ids.hashed(item.id) for item in new.items]),
    )


class Ready(Sequence[NewExperience]):
    """Experiences, prepared: a long trajectory takes a while, and so do many."""

    def __init__(self, batches: Iterable[Sequence[NewExperience]]) -> None:
        self._batch: list[NewExperience] = []
        self.prepared: list[Prepared] = []
        self.lengths: set[int] = set()
        """In bytes, those that the vectors have."""
        for batch in batches:
            self._batch += batch
            prepared, lengths = (batch.prepared, batch.lengths) if isinstance(batch, Ready) else all_prepared(batch)
            self.prepared += prepared
            self.lengths |= lengths

    @overload
    def __getitem__(self, place: int) -> NewExperience: ...

    @overload
    def __getitem__(self, place: slice) -> Sequence[NewExperience]: ...

    def __getitem__(self, place: int | slice) -> NewExperience | Sequence[NewExperience]:
        return self._batch[place]

    def __len__(self) -> int:
        return len(self._batch)


def checked(data: bytes) -> Vector:
    """A packed vector with its checksum."""
    return zlib.crc32(data), data


def vector_row(key: int, task: int, success: bool, data: bytes) -> tuple[int, int, bool, int, bytes]:
    """The row of a vector that lives."""
    return (key, task, success, *checked(data))


def checksum(data: bytes) -> int:
    """What a vector's data is checked by."""
    return zlib.crc32(data)


def text_is_sound(digest: str, title: str, description: str, content: str) -> bool:
    """Whether these are the texts that the digest was made of."""
    return text_digest(title, description, content) == digest


def check_task(task_id: str, template: str | None, instruction: str, payload: bytes) -> None:
    """Raises ``ValueError``, ``TypeError`` or ``zlib.error`` where an experience's task is not what was stored."""
    task = journal.payload(decompressed(payload, task_id, instruction)).task
    if (task.id, None if task.template is None else normalise(task.template), task.instruction) != (
        task_id,
        template,
        instruction,
    ):
        raise ValueError("the columns and the payload name another task")


def item(
    id: str,
    scope: str,
    seq: int,
    texts: Sequence[str],
    polarity: Polarity,
    provenances: tuple[Provenance, ...],
) -> MemoryItem:
    """An item of a row. Raises ``ValueError`` for a polarity that is none, and for what is no text."""
    title, description, content = texts
    values: dict[str, object] = {
        "id": id,
        "scope": scope,
        "seq": seq,
        "title": title,
        "description": description,
        "content": content,
        "polarity": polarity,
        "provenances": provenances,
    }
    if _texts(id, title, description, content) and polarity in ("success", "failure") and provenances:
        return whole(MemoryItem, values)
    return MemoryItem.model_validate(values)


def provenance(experience_id: str, task_id: str, run_id: str, distiller: str, origin: str) -> Provenance:
    """Where an item's row comes from. Raises ``ValueError`` for what is no text."""
    values: dict[str, object] = {
        "experience_id": experience_id,
        "task_id": task_id,
        "run_id": run_id,
        "distiller": distiller,
        "origin": origin,
    }
    if _texts(experience_id, task_id, run_id, distiller, origin):
        return whole(Provenance, values)
    return Provenance.model_validate(values)


def _texts(*cells: object) -> bool:
    """Whether all are texts, as they were stored: then there is nothing else to check, and no need to pay for it."""
    return {type(cell) for cell in cells} == {str}


def sound(matches: dict[int, Match], location: str) -> dict[int, Match]:
    """Those whose texts are texts; for each other one a warning."""
    whole = {}
    for seq, match in matches.items():
        if all(isinstance(text, str) for text in (match.experience_id, match.task_id, match.instruction)):
            whole[seq] = match
        else:
            _log.warning("%s", damaged(location, f"experience {match.experience_id}"))
    return whole


def damaged(location: str, what: str, exc: Exception | None = None) -> CorruptBank:
    """The error that names a damaged row."""
    why = f" ({type(exc).__name__})" if exc else ""
    return CorruptBank(
        f"{location}: {what} is damaged and cannot be read{why}; the others can."
        f" rb-dspy bank doctor{bank_options(location)} says more"
    )


def vectors_table(unit: Unit) -> str:
    """The table that holds the vectors of a unit."""
    if unit not in ("experience", "item"):
        raise ValueError(f"unit {unit!r}: expected 'experience' or 'item'")
    return f"{unit}_vectors"
