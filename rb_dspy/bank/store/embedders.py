"""The embedder of a bank, its vectors, and the bank's metadata."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from sqlalchemy import Connection, delete, exists, insert, select

from rb_dspy.bank.store import tables
from rb_dspy.bank.store.base import UNITS, Unit
from rb_dspy.bank.store.tables import rows_of, texts_of
from rb_dspy.errors import EmbedderMismatch
from rb_dspy.protocols import Vectors

_META = select(tables.meta)


def meta(connection: Connection) -> dict[str, str]:
    """The bank's metadata: ``schema``, ``embedder``, ``dimension``, ``epoch``."""
    return {row.key: row.value for row in connection.execute(_META)}


def meta_value(key: str) -> Any:
    """One value of the metadata, as part of a statement."""
    return select(tables.meta.c.value).where(tables.meta.c.key == key).scalar_subquery()


def embedder_of(connection: Connection) -> tuple[str, int] | None:
    """Id and dimension of the embedder that the bank belongs to; None until vectors are stored."""
    values = meta(connection)
    return (values["embedder"], int(values["dimension"])) if "embedder" in values else None


def set_meta(connection: Connection, **values: object) -> None:
    """Store metadata."""
    connection.execute(delete(tables.meta).where(tables.meta.c.key.in_(values)))
    connection.execute(insert(tables.meta), [{"key": key, "value": str(value)} for key, value in values.items()])


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
        table, vectors = rows_of(unit), tables.vectors
        same = (vectors.c.scope_id == table.c.scope_id) & (vectors.c.seq == table.c.seq)
        query = select(table.c.scope_id, table.c.seq, *texts_of(table)).where(
            ~exists().where(same, vectors.c.unit == unit, vectors.c.embedder == embedder)
        )
        if unit == "experience":  # an experience without items is never retrieved
            items = tables.items
            gave = (items.c.scope_id == table.c.scope_id) & (items.c.experience == table.c.seq)
            query = query.where(exists().where(gave))
        query = query.order_by(table.c.scope_id, table.c.seq)
        rows = connection.execute(query if limit is None else query.limit(limit - len(found)))
        found += [Text(row[0], unit, row[1], "\n".join(row[2:])) for row in rows]
    return found


def add_vectors(connection: Connection, embedder: str, texts: Sequence[Text], rows: Iterable[Vectors]) -> int:
    """Store the vectors of ``texts``; returns their number."""
    values = [
        {"scope_id": text.scope_id, "unit": text.unit, "seq": text.seq, "embedder": embedder, "data": packed(row)}
        for text, row in zip(texts, rows, strict=True)
    ]
    if values:
        connection.execute(insert(tables.vectors), values)
    return len(values)


def change_over(connection: Connection, embedder: tuple[str, int], *, added: bool) -> None:
    """Move the bank to ``embedder``, and delete the vectors of others. ``added``: vectors were created."""
    values = meta(connection)
    moved = values.get("embedder") != embedder[0]
    if moved:
        connection.execute(delete(tables.vectors).where(tables.vectors.c.embedder != embedder[0]))
    if moved or added:
        set_meta(connection, embedder=embedder[0], dimension=embedder[1], epoch=int(values.get("epoch", 0)) + 1)


def packed(vector: Vectors) -> bytes:
    """Pack a unit row in half precision, which changes a cosine by about 1e-5 and halves the space."""
    return vector.astype("<f2").tobytes()


def unpacked(data: Iterable[bytes], dimension: int) -> Vectors:
    """Unpack unit float32 rows, shape ``(n, dimension)``."""
    rows: Vectors = np.frombuffer(b"".join(data), dtype="<f2").reshape(-1, dimension).astype(np.float32)
    rows /= np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-6)
    return rows
