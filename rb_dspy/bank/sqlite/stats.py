"""The counts of a scope."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from rb_dspy.bank.parts import BankStats
from rb_dspy.bank.sqlite import embedders, tables
from rb_dspy.bank.sqlite.files import driver
from rb_dspy.bank.sqlite.migrations import MIGRATIONS
from rb_dspy.bank.sqlite.queries import SEVERAL, counted
from rb_dspy.bank.sqlite.scopes import number_of

_e, _i, _x = tables.experiences.c, tables.items.c, tables.exposures.c

# Rows of items that have an earlier one: an item counts once, as what the earliest of its rows is.
_LATER = sa.text(
    "SELECT e.polarity, count(*) FROM (SELECT i.key, i.experience, min(i.key) OVER (PARTITION BY i.id) AS first"
    f" FROM {SEVERAL} WHERE i.ended IS NULL) AS later CROSS JOIN experiences AS e ON e.key = later.experience"
    " WHERE later.key > later.first GROUP BY e.polarity"
)


def stats(connection: sa.Connection, scope: str, size: int, location: str) -> BankStats:
    """Counts of what lives in one scope."""
    scope_id = number_of(connection, scope, location)
    experience = [_e.scope_id == scope_id, _e.ended.is_(None)]
    given = (_i.experience == _e.key) & _i.ended.is_(None)
    polarities = _tally(
        connection, sa.select(_e.polarity, sa.func.count()).join(tables.items, given), _e.polarity, experience
    )
    for polarity, number in connection.execute(_LATER, {"scope": scope_id}):
        polarities[str(polarity)] = polarities.get(str(polarity), 0) - number
    shown = sa.select(sa.func.count()).select_from(tables.exposures).join(tables.experiences, _x.experience == _e.key)
    waiting = sa.select(sa.func.count()).where(tables.ingestions.c.scope_id == scope_id)
    ever = connection.scalar(sa.text(counted("true")), {"scope": scope_id}) or 0
    items = connection.scalar(sa.text(counted("i.ended IS NULL")), {"scope": scope_id}) or 0
    ended = sa.select(sa.func.count()).where(_e.scope_id == scope_id, _e.ended.is_not(None))
    name, dimension = embedders.stored(driver(connection)) or ("", 0)
    return BankStats(
        scope=scope,
        items=items,
        experiences=connection.scalar(sa.select(sa.func.count()).where(*experience)) or 0,
        experiences_with_items=connection.scalar(
            sa.select(sa.func.count()).where(*experience, sa.exists().where(given))
        )
        or 0,
        by_polarity={polarity: number for polarity, number in polarities.items() if number},
        by_verdict=_tally(connection, sa.select(_e.label, sa.func.count()), _e.label, experience),
        by_template=_tally(
            connection, sa.select(_e.template, sa.func.count()), _e.template, [*experience, _e.template.is_not(None)]
        ),
        exposures=connection.scalar(shown.where(*experience)) or 0,
        pending=connection.scalar(waiting) or 0,
        removed=(connection.scalar(ended) or 0) + ever - items,
        embedder=name,
        dimension=dimension,
        bytes_on_disk=size,
        schema_version=len(MIGRATIONS),
    )


def _tally(
    connection: sa.Connection, query: sa.Select[Any], column: sa.Column[Any], where: list[sa.ColumnElement[bool]]
) -> dict[str, int]:
    """Number of rows for each value of a column."""
    found = connection.execute(query.where(*where).group_by(column).order_by(column))
    return {str(value): int(number) for value, number in found}
