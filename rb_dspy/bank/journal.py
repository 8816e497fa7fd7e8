"""The journal's hash chain: what is hashed, byte for byte, so that equal histories have equal digests in every store.

An entry is made of a number, a kind, a subject, a note, a time, and a digest of what was stored:

========================  ==================  =====================  ========================  ===================
kind                      subject             note                   created_at                content
========================  ==================  =====================  ========================  ===================
``append``                experience id       the experience's       the experience's          content_of_append
``edit``                  item id             as given               ``admission.now()``         content_of_edit
``delete``, ``rollback``  ``source.name``     as given               ``admission.now()``         content_of_removal
========================  ==================  =====================  ========================  ===================

A call that changes nothing makes no entry: an append of a known id, a removal that ends no row. Vectors are no part of
the chain, since a re-index replaces them and what was learned stays the same.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Sequence
from hashlib import sha256
from typing import Any

import pydantic
from pydantic_core import PydanticSerializationError

from rb_dspy.bank.ascii_json import ascii_json
from rb_dspy.bank.parts import NewExperience
from rb_dspy.bank.records import whole
from rb_dspy.schema import ChangeKind, Task, Trajectory, Verdict

_PAYLOAD = 1
"""Version of the payload's layout."""

_json = json.JSONEncoder(separators=(",", ":")).encode  # ASCII: a lone surrogate has no UTF-8


class Payload(pydantic.BaseModel):
    """What happened in an experience. Not-a-number and infinity, which a task's arguments may hold, are kept."""

    model_config = pydantic.ConfigDict(frozen=True, ser_json_inf_nan="constants")

    v: int
    task: Task
    trajectories: tuple[Trajectory, ...]
    verdicts: tuple[Verdict, ...]


def payload_json(new: NewExperience) -> bytes:
    """Task, trajectories and verdicts as JSON; equal values give equal bytes. ``payload`` reads it."""
    values = {"v": _PAYLOAD, "task": new.task, "trajectories": new.trajectories, "verdicts": new.verdicts}
    given = whole(Payload, values)
    try:
        return Payload.__pydantic_serializer__.to_json(given)
    except PydanticSerializationError:  # a lone surrogate
        return _json(given.model_dump()).encode("ascii")


def payload(data: bytes) -> Payload:
    """What ``payload_json`` wrote. Raises ``ValueError`` for anything else."""
    try:
        return Payload.model_validate_json(data)
    except pydantic.ValidationError:  # lone surrogates and deep nesting are no JSON to pydantic
        return Payload.model_validate(mended(json.loads(data)))


def mended(told: Any) -> Any:
    """``told``, where a rollout's usage is zero instead of what ``RoleUsage`` refuses: no rollout is lost over that.

    Earlier versions stored such numbers, infinity as null, and ``model_copy`` checks none.
    """
    with contextlib.suppress(AttributeError, KeyError, TypeError):  # it is something else altogether: that shows later
        for rollout in told["trajectories"]:
            for used in rollout["usage"].values():
                for name, number in used.items():
                    if number is None or not 0 <= number < math.inf:
                        used[name] = 0
    return told


def content_of_append(new: NewExperience, item_ids: Sequence[str], payload: bytes) -> bytes:
    """Digest of an experience; ``item_ids``, aligned with ``new.items``, are those that the items were stored under."""
    items = [(id, item.digest) for id, item in zip(item_ids, new.items, strict=True)]
    return append_content(
        new.id, new.run_id, new.distiller, new.origin, new.label, new.polarity, new.shown, items, payload
    )


def append_content(
    id: str,
    run_id: str,
    distiller: str,
    origin: str,
    label: str,
    polarity: str,
    shown: Sequence[str],
    items: Sequence[tuple[str, str]],
    payload: bytes,
) -> bytes:
    """``content_of_append`` from what is stored. ``items``: id and digest of each item as it was born, in order."""
    said = ascii_json((id, run_id, distiller, origin, label, polarity, shown, items))
    return sha256(said + b"\n" + payload).digest()


def content_of_edit(id: str, digest: str, ended: Sequence[int]) -> bytes:
    """Digest of an edit: the new text's digest, and the numbers of the rows that it ended, ascending.

    The new rows have the numbers that follow the entry's, in the order of the rows they stand for.
    """
    return sha256(ascii_json((id, digest, ended))).digest()


def content_of_removal(experiences: Sequence[int], items: Sequence[int]) -> bytes:
    """Digest of a delete or a rollback: the numbers of the experience rows and item rows that it ended, ascending."""
    return sha256(ascii_json((experiences, items))).digest()


def entry_hash(
    previous: bytes, seq: int, kind: ChangeKind, subject: str, note: str, created_at: str, content: bytes
) -> bytes:
    """Hash of an entry after ``previous``, which is empty for the first: 32 bytes. ``BankStore.digest`` is its hex."""
    return sha256(previous + ascii_json((seq, kind, subject, note, created_at, content.hex()))).digest()
