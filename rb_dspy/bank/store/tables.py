"""The tables of a bank, shared by SQLite and PostgreSQL.

Each scope has one sequence: every experience and every item row has its own number, and a removed row is not deleted
but ``ended`` by a later number. The state at number ``n`` is the rows with ``seq <= n`` and ``ended`` either null or
above ``n``; snapshots, forks, history and rollback use this.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from sqlalchemy import (
    BigInteger,
    Column,
    Dialect,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    TypeDecorator,
    UniqueConstraint,
    text,
)
from sqlalchemy.types import TypeEngine

SCHEMA = 1
"""Version of these tables, in ``meta``."""

metadata = MetaData()


class Halfvec(TypeDecorator[bytes]):
    """pgvector's ``halfvec``, of any dimension, for packed little-endian half precision."""

    impl = LargeBinary
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        from pgvector.sqlalchemy import HALFVEC

        return dialect.type_descriptor(HALFVEC())

    def process_bind_param(self, value: bytes | None, dialect: Dialect) -> Any:
        return None if value is None else np.frombuffer(value, "<f2")

    def process_result_value(self, value: Any, dialect: Dialect) -> bytes | None:
        return None if value is None else np.asarray(value, "<f2").tobytes()


def _key(name: str, kind: type[Integer] | type[BigInteger] | type[Text]) -> Column[object]:
    return Column(name, kind, primary_key=True, autoincrement=False)


def _text(name: str) -> Column[str]:
    return Column(name, Text, nullable=False, default="")


def _ended(table: str) -> Index:
    """A partial index, because SQLite would otherwise prefer it for reads of live rows."""
    where = text("ended IS NOT NULL")
    return Index(f"{table}_ended", "scope_id", "ended", sqlite_where=where, postgresql_where=where)


meta = Table("meta", metadata, _key("key", Text), _text("value"))
"""``schema``, ``embedder``, ``dimension``, and ``epoch``, which counts moves to another embedder and purges."""

scopes = Table(
    "scopes",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("name", Text, nullable=False, unique=True),
    Column("seq", BigInteger, nullable=False, default=0),
)
"""``seq`` is the highest number used. The row is locked while numbers are reserved, so they are in commit order."""

experiences = Table(
    "experiences",
    metadata,
    _key("scope_id", Integer),
    _key("seq", BigInteger),
    _text("id"),
    Column("ended", BigInteger),
    _text("task_id"),
    Column("template", Text),
    _text("run_id"),
    _text("origin"),
    _text("distiller"),
    _text("note"),
    _text("label"),
    _text("polarity"),
    _text("instruction"),
    _text("created_at"),
    Column("payload", LargeBinary, nullable=False),
    UniqueConstraint("scope_id", "id"),
    Index("experiences_task", "scope_id", "task_id", "seq"),
    Index("experiences_run", "scope_id", "run_id", "seq"),
    _ended("experiences"),
)
"""``payload``: task, trajectories and verdicts as compressed JSON."""

items = Table(
    "items",
    metadata,
    _key("scope_id", Integer),
    _key("seq", BigInteger),
    _text("id"),
    Column("ended", BigInteger),
    Column("learned", BigInteger, nullable=False),
    Column("experience", BigInteger, nullable=False),
    _text("task_id"),
    _text("polarity"),
    _text("title"),
    _text("description"),
    _text("content"),
    Index("items_id", "scope_id", "id"),
    Index("items_experience", "scope_id", "experience"),
    _ended("items"),
)
"""One row for each item of each experience. ``learned`` is the row's own number, or, for the row of an edited text, the
``learned`` of the row that it replaced; ``experience`` is the number of the experience."""

vectors = Table(
    "vectors",
    metadata,
    _key("scope_id", Integer),
    _key("unit", Text),
    _key("seq", BigInteger),
    _key("embedder", Text),
    Column("data", LargeBinary().with_variant(Halfvec(), "postgresql"), nullable=False),
)
"""Unit rows in half precision, of experiences (their instruction) and item rows, by the embedder that made them."""

exposures = Table(
    "exposures",
    metadata,
    _key("scope_id", Integer),
    _key("experience", BigInteger),
    _key("item_id", Text),
    Column("place", Integer, nullable=False),
    Index("exposures_item", "scope_id", "item_id"),
)
"""Items that an agent was shown before the experience was made, in the order of ``place``."""

journal = Table(
    "journal",
    metadata,
    _key("scope_id", Integer),
    _key("seq", BigInteger),
    _key("subject", Text),
    _text("kind"),
    _text("item_ids"),
    _text("note"),
    _text("created_at"),
    Index("journal_subject", "scope_id", "subject"),
)
"""``seq`` is the last number of the write, ``subject`` the changed experience or item, ``item_ids`` (JSON) the ids of
the experience's items, or of the item that replaced an edited one."""

snapshots = Table(
    "snapshots",
    metadata,
    _key("scope_id", Integer),
    _key("name", Text),
    Column("seq", BigInteger, nullable=False),
    _text("created_at"),
)

pending = Table(
    "pending",
    metadata,
    Column("number", Integer, primary_key=True),
    Column("scope_id", Integer, nullable=False),
    _text("run_id"),
    _text("task_id"),
    _text("rollout_id"),
    _text("content"),
    Column("tries", Integer, nullable=False, default=0),
    _text("error"),
    _text("shown"),
    _text("created_at"),
    Column("payload", LargeBinary, nullable=False),
    UniqueConstraint("scope_id", "run_id", "task_id", "rollout_id", "content"),
)
"""Rollouts that were recorded and not learned from yet. ``content`` is empty in a run; without a run it is the id of
the experience that the rollout becomes."""


def rows_of(unit: Literal["experience", "item"]) -> Table:
    """The table with the rows of a unit."""
    return experiences if unit == "experience" else items


def texts_of(table: Table) -> list[Column[Any]]:
    """The columns whose texts are embedded and searched by words, one per line."""
    names = ("instruction",) if table is experiences else ("title", "description", "content")
    return [table.c[name] for name in names]
