"""Records to rows and back. A row that cannot be read raises ``CorruptBank`` and says which one it is."""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import pydantic
import sqlalchemy as sa

from rb_dspy.bank.interface import NewExperience
from rb_dspy.errors import CorruptBank
from rb_dspy.protocols import Vectors
from rb_dspy.schema import Experience, MemoryItem, Provenance, Task, Trajectory, Verdict, visible

_PAYLOAD = 1
"""Version of the payload's layout."""

Row = sa.RowMapping


def pack(new: NewExperience) -> bytes:
    """Task, trajectories and verdicts: JSON, ASCII (a lone surrogate has no UTF-8), compressed with zlib.

    Zlib, since its checksum finds a flipped bit and Python always has it.
    """
    payload = {
        "v": _PAYLOAD,
        "task": new.task.model_dump(),
        "trajectories": [trajectory.model_dump() for trajectory in new.trajectories],
        "verdicts": [verdict.model_dump() for verdict in new.verdicts],
    }
    return zlib.compress(json.dumps(payload, separators=(",", ":")).encode("ascii"))


def experience(row: Row, items: Sequence[MemoryItem], scope: str, location: str) -> Experience:
    """The experience of a row of ``experiences``."""
    try:
        payload: dict[str, Any] = json.loads(zlib.decompress(row["payload"]))
        return Experience(
            id=row["id"],
            scope=scope,
            seq=row["seq"],
            task=Task.model_validate(payload["task"]),
            trajectories=tuple(Trajectory.model_validate(trajectory) for trajectory in payload["trajectories"]),
            verdicts=tuple(Verdict.model_validate(verdict) for verdict in payload["verdicts"]),
            items=tuple(items),
            run_id=row["run_id"],
            state=row["state"],
            note=row["note"],
            created_at=row["created_at"],
        )
    except (zlib.error, ValueError, KeyError, TypeError) as exc:  # pydantic's errors are ValueErrors
        raise _damaged(location, f"experience {row['id']}", exc) from exc


def item(row: Row, scope: str, location: str) -> MemoryItem:
    """The item of a row of ``items`` joined with the id, task and run of its experience."""
    try:
        return MemoryItem(
            id=row["id"],
            scope=scope,
            seq=row["seq"],
            title=row["title"],
            description=row["description"],
            content=row["content"],
            polarity=row["polarity"],
            provenance=Provenance(
                experience_id=row["of_experience"],
                task_id=row["of_task"],
                run_id=row["of_run"],
                distiller=row["distiller"],
            ),
        )
    except pydantic.ValidationError as exc:
        raise _damaged(location, f"item {row['id']}", exc) from exc


def of_experience(new: NewExperience, scope_id: int, seq: int, payload: bytes) -> dict[str, Any]:
    """The row of ``experiences``."""
    return {
        "scope_id": scope_id,
        "seq": seq,
        "id": new.id,
        "task_id": new.task.id,
        "template": None if new.task.template is None else visible(new.task.template),
        "instruction": new.task.instruction,
        "label": new.label,
        "run_id": new.run_id,
        "state": new.state,
        "note": new.note,
        "created_at": new.created_at,
        "payload": payload,
    }


def of_items(new: NewExperience, scope_id: int, seq: int) -> list[dict[str, Any]]:
    """The rows of ``items``, numbered after their experience."""
    owned = {"scope_id": scope_id, "experience_seq": seq, "polarity": new.polarity, "distiller": new.distiller}
    return [owned | {"seq": seq + number} | asdict(item) for number, item in enumerate(new.items, 1)]


def of_vectors(
    scope_id: int, seq: int, vector: Vectors | None, item_vectors: Sequence[Vectors]
) -> list[dict[str, Any]]:
    """The rows of ``vectors``: little-endian float32, on every machine."""
    of = [] if vector is None else [("experience", seq, vector)]
    of += [("item", seq + number, row) for number, row in enumerate(item_vectors, 1)]
    owned = {"scope_id": scope_id, "experience_seq": seq}
    return [owned | {"unit": unit, "seq": at, "data": row.astype("<f4").tobytes()} for unit, at, row in of]


def of_exposures(new: NewExperience, scope_id: int, seq: int) -> list[dict[str, Any]]:
    """The rows of ``exposures``: what this experience's agent had been shown, and how it was judged."""
    owned = {"scope_id": scope_id, "experience_seq": seq, "task_id": new.task.id, "run_id": new.run_id}
    judged = {"label": new.label, "created_at": new.created_at}
    return [owned | judged | {"item_id": item_id} for item_id in new.shown]


def stored(new: NewExperience, scope: str, seq: int) -> Experience:
    """``new`` as the store would now read it, without reading it."""
    return Experience(
        id=new.id,
        scope=scope,
        seq=seq,
        task=new.task,
        trajectories=new.trajectories,
        verdicts=new.verdicts,
        items=tuple(
            MemoryItem(
                id=item.id,
                scope=scope,
                seq=seq + number,
                title=item.title,
                description=item.description,
                content=item.content,
                polarity=new.polarity,
                provenance=Provenance(
                    experience_id=new.id, task_id=new.task.id, run_id=new.run_id, distiller=new.distiller
                ),
            )
            for number, item in enumerate(new.items, 1)
        ),
        run_id=new.run_id,
        state=new.state,
        note=new.note,
        created_at=new.created_at,
    )


def vectors(blobs: Sequence[bytes], dimension: int, location: str) -> Vectors:
    """Shape ``(len(blobs), dimension)``."""
    size = 4 * dimension
    wrong = next((blob for blob in blobs if len(blob) != size), None)
    if wrong is not None:
        raise CorruptBank(f"{location}: a vector of {len(wrong)} bytes; expected {size}; restore the file from a copy")
    return np.frombuffer(b"".join(blobs), dtype="<f4").astype(np.float32, copy=False).reshape(len(blobs), dimension)


def _damaged(location: str, what: str, exc: Exception) -> CorruptBank:
    return CorruptBank(f"{location}: {what} is damaged and cannot be read ({type(exc).__name__}); the others can")
