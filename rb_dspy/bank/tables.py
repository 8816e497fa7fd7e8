"""The tables as queries see them. ``migrations`` makes them; a test holds the two together."""

from __future__ import annotations

import sqlalchemy as sa

metadata = sa.MetaData()

meta = sa.Table("meta", metadata, sa.Column("key", sa.Text), sa.Column("value", sa.Text))

scopes = sa.Table(
    "scopes", metadata, sa.Column("id", sa.Integer), sa.Column("name", sa.Text), sa.Column("seq", sa.Integer)
)

experiences = sa.Table(
    "experiences",
    metadata,
    sa.Column("scope_id", sa.Integer),
    sa.Column("seq", sa.Integer),
    sa.Column("id", sa.Text),
    sa.Column("task_id", sa.Text),
    sa.Column("template", sa.Text),
    sa.Column("instruction", sa.Text),
    sa.Column("label", sa.Text),
    sa.Column("run_id", sa.Text),
    sa.Column("state", sa.Text),
    sa.Column("note", sa.Text),
    sa.Column("created_at", sa.Text),
    sa.Column("payload", sa.LargeBinary),
)

items = sa.Table(
    "items",
    metadata,
    sa.Column("scope_id", sa.Integer),
    sa.Column("seq", sa.Integer),
    sa.Column("experience_seq", sa.Integer),
    sa.Column("id", sa.Text),
    sa.Column("digest", sa.Text),
    sa.Column("title", sa.Text),
    sa.Column("description", sa.Text),
    sa.Column("content", sa.Text),
    sa.Column("polarity", sa.Text),
    sa.Column("distiller", sa.Text),
)

vectors = sa.Table(
    "vectors",
    metadata,
    sa.Column("scope_id", sa.Integer),
    sa.Column("unit", sa.Text),
    sa.Column("seq", sa.Integer),
    sa.Column("experience_seq", sa.Integer),
    sa.Column("data", sa.LargeBinary),
)

exposures = sa.Table(
    "exposures",
    metadata,
    sa.Column("scope_id", sa.Integer),
    sa.Column("item_id", sa.Text),
    sa.Column("experience_seq", sa.Integer),
    sa.Column("task_id", sa.Text),
    sa.Column("run_id", sa.Text),
    sa.Column("label", sa.Text),
    sa.Column("created_at", sa.Text),
)
