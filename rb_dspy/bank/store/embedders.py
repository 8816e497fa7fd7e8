"""The embedder of a bank, its vectors, and the bank's metadata."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from rb_dspy.bank.store.base import UNITS, Unit
from rb_dspy.bank.store.tables import TEXTS, Connection, embedded_text, insert, run
from rb_dspy.errors import EmbedderMismatch
from rb_dspy.protocols import Vectors


def meta(connection: Connection) -> dict[str, str]:
    """The bank's metadata: ``schema``, ``embedder``, ``dimension``, ``epoch``."""
    return dict(run(connection, "SELECT key, value FROM meta", {}))


def embedder_of(connection: Connection) -> tuple[str, int] | None:
    """Id and dimension of the embedder that the bank belongs to; None until vectors are stored."""
    values = meta(connection)
    return (values["embedder"], int(values["dimension"])) if "embedder" in values else None


def set_meta(connection: Connection, **values: object) -> None:
    """Store metadata."""
    run(connection, "DELETE FROM meta WHERE key = ANY(:keys)", {"keys": [*values]})
    insert(connection, "meta", [{"key": key, "value": str(value)} for key, value in values.items()])


def check_embedder(connection: Connection, embedder: tuple[str, int], location: str) -> None:
    """Bind a bank that has no vectors yet to ``embedder``. Raises ``EmbedderMismatch`` if it belongs to another."""
    current = embedder_of(connection)
    if current is None:
        set_meta(connection, embedder=embedder[0], dimension=embedder[1])
    elif current != embedder:
        raise EmbedderMismatch(
            f"{location}: belongs to the embedder {current[0]} ({current[1]} dimensions), but was opened with"
            f" {embedder[0]} ({embedder[1]}); open it again with the first, or move it to the second with reindex"
        )


class Text(NamedTuple):
    """The text behind a row that has no vector yet."""

    scope_id: int
    unit: Unit
    seq: int
    text: str


def unembedded(connection: Connection, embedder: str, limit: int | None) -> list[Text]:
    """Return texts of all scopes without a vector of ``embedder``, including ended rows; at most ``limit``."""
    found: list[Text] = []
    for unit in UNITS:
        columns = ", ".join(("'' AS kind" if unit == "experience" else "kind", *TEXTS[unit]))
        statement = (
            f"SELECT scope_id, seq, {columns} FROM {unit}s AS texts WHERE NOT EXISTS (SELECT 1 FROM"
            " vectors WHERE scope_id = texts.scope_id AND unit = :unit AND seq = texts.seq AND embedder = :embedder)"
            " ORDER BY scope_id, seq"
        )
        values: dict[str, Any] = {"unit": unit, "embedder": embedder}
        if limit is not None:
            statement += " LIMIT :limit"
            values["limit"] = limit - len(found)
        for scope_id, seq, kind, *texts in run(connection, statement, values):
            found.append(Text(scope_id, unit, seq, embedded_text(kind, *texts) if unit == "item" else texts[0]))
    return found


def add_vectors(connection: Connection, embedder: str, rows: Iterable[tuple[int, Unit, int, Vectors]]) -> int:
    """Store vectors, each with the scope, the unit and the number of its row; returns how many they are.

    They are packed in half precision, which changes a cosine by about 1e-5 and halves the space.
    """
    values = []
    for scope_id, unit, seq, vector in rows:
        half = vector.astype("<f2")
        if isinstance(connection, sqlite3.Connection):
            data: Any = half.tobytes()
        else:
            from pgvector import HalfVector  # in binary, because its text takes longer than all else of an append

            data = HalfVector(half)
        values.append({"scope_id": scope_id, "unit": unit, "seq": seq, "embedder": embedder, "data": data})
    insert(connection, "vectors", values)
    return len(values)


def change_over(connection: Connection, embedder: tuple[str, int], *, added: bool) -> None:
    """Move the bank to ``embedder``, and delete the vectors of others. ``added``: vectors were created."""
    values = meta(connection)
    moved = values.get("embedder") != embedder[0]
    if moved:
        run(connection, "DELETE FROM vectors WHERE embedder <> :embedder", {"embedder": embedder[0]})
    if moved or added:
        set_meta(connection, embedder=embedder[0], dimension=embedder[1], epoch=int(values.get("epoch", 0)) + 1)


def packed_bytes(data: Any) -> bytes:
    """A packed row: SQLite returns its bytes, PostgreSQL an object."""
    return data if isinstance(data, bytes) else bytes(data.to_numpy().astype("<f2").tobytes())


def unpacked(data: Iterable[bytes], dimension: int) -> Vectors:
    """Unpack unit float32 rows, shape ``(n, dimension)``."""
    rows: Vectors = np.frombuffer(b"".join(data), dtype="<f2").reshape(-1, dimension).astype(np.float32)
    rows /= np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-6)
    return rows
