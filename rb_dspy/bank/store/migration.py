"""Bring the tables of schema 1 to schema 2, in the transaction of the caller.

What was learned before keeps being shown: its level is ``learned``, or ``owner`` if a person wrote it.
"""

from __future__ import annotations

from rb_dspy.bank.store import embedders, tables
from rb_dspy.bank.store.tables import Connection, run

_STATEMENTS = """
ALTER TABLE experiences ADD COLUMN level INTEGER NOT NULL DEFAULT 1;
ALTER TABLE experiences ADD COLUMN reward {real};
ALTER TABLE items ADD COLUMN kind TEXT NOT NULL DEFAULT 'lesson';
ALTER TABLE items ADD COLUMN data TEXT NOT NULL DEFAULT '{{}}';
ALTER TABLE items ADD COLUMN origin TEXT NOT NULL DEFAULT '';
ALTER TABLE items ADD COLUMN level INTEGER NOT NULL DEFAULT 1;
ALTER TABLE pending ADD COLUMN origin TEXT NOT NULL DEFAULT '';
UPDATE experiences SET level = 2 WHERE origin = 'user';
UPDATE items SET origin = coalesce((SELECT origin FROM experiences
    WHERE experiences.scope_id = items.scope_id AND experiences.seq = items.experience), '');
UPDATE items SET level = 2 WHERE origin = 'user';
INSERT INTO uses (scope_id, experience, subject, place, cited)
    SELECT scope_id, experience, item_id, place, 0 FROM exposures;
DROP TABLE exposures
"""


def migrate(connection: Connection, **types: str) -> None:
    """Migrate tables of schema 1. ``types``: see ``tables.definitions``."""
    added = [each for each in tables.definitions(**types) if "uses" in each or "journal_changes" in each]
    for statement in [*added, *_STATEMENTS.format(**types).split(";\n")]:
        run(connection, statement, {})
    embedders.set_meta(connection, schema=tables.SCHEMA)
