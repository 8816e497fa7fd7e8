"""The tables as SQLAlchemy sees them, for what is asked seldom. ``migrations`` makes them; a test holds both together.

What is hot (``queries``, ``writes``) speaks SQL to the same tables itself: SQLAlchemy's share of a small query is many
times SQLite's.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

metadata = sa.MetaData()


def _table(name: str, /, **columns: type[sa.types.TypeEngine[Any]]) -> sa.Table:
    return sa.Table(name, metadata, *(sa.Column(column, kind) for column, kind in columns.items()))


meta = _table("meta", key=sa.Text, value=sa.Text)

scopes = _table("scopes", id=sa.Integer, name=sa.Text, seq=sa.Integer, chain=sa.LargeBinary)

experiences = _table(
    "experiences",
    key=sa.Integer,
    scope_id=sa.Integer,
    id=sa.Text,
    ended=sa.Integer,
    task_id=sa.Text,
    template=sa.Text,
    instruction=sa.Text,
    label=sa.Text,
    polarity=sa.Text,
    run_id=sa.Text,
    origin=sa.Text,
    distiller=sa.Text,
    note=sa.Text,
    created_at=sa.Text,
    payload=sa.LargeBinary,
)

items = _table(
    "items",
    key=sa.Integer,
    scope_id=sa.Integer,
    id=sa.Text,
    ended=sa.Integer,
    experience=sa.Integer,
    digest=sa.Text,
    title=sa.Text,
    description=sa.Text,
    content=sa.Text,
    apart=sa.Integer,
    again=sa.Integer,
)

ids = _table("ids", id_key=sa.Integer, key=sa.Integer)
recent_ids = _table("recent_ids", id_key=sa.Integer, key=sa.Integer)

_VECTORS = {
    "key": sa.Integer,
    "ended": sa.Integer,
    "task": sa.Integer,
    "success": sa.Integer,
    "crc": sa.Integer,
    "data": sa.LargeBinary,
}
experience_vectors = _table("experience_vectors", **_VECTORS)
item_vectors = _table("item_vectors", **_VECTORS)

exposures = _table("exposures", experience=sa.Integer, position=sa.Integer, item_id=sa.Text)

journal = _table(
    "journal", key=sa.Integer, kind=sa.Text, subject=sa.Text, note=sa.Text, created_at=sa.Text, hash=sa.LargeBinary
)

snapshots = _table("snapshots", scope_id=sa.Integer, name=sa.Text, seq=sa.Integer, digest=sa.Text, created_at=sa.Text)

ingestions = _table(
    "ingestions",
    position=sa.Integer,
    scope_id=sa.Integer,
    id=sa.Text,
    run_id=sa.Text,
    origin=sa.Text,
    stage=sa.Integer,
    payload=sa.LargeBinary,
)
