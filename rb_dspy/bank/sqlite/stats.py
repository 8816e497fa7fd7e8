"""The counts of a scope."""

from __future__ import annotations

import sqlite3

from rb_dspy.bank.parts import BankStats
from rb_dspy.bank.sqlite import embedders
from rb_dspy.bank.sqlite.migrations import MIGRATIONS
from rb_dspy.bank.sqlite.queries import SEVERAL, counted
from rb_dspy.bank.sqlite.scoped import Scope

_LIVE = "FROM experiences AS e WHERE e.scope_id = :scope AND e.ended IS NULL"
_GIVEN = "SELECT 1 FROM items AS i WHERE i.experience = e.key AND i.ended IS NULL"

_COUNTS = (
    f"SELECT count(*) {_LIVE}",
    f"SELECT count(*) {_LIVE} AND EXISTS ({_GIVEN})",
    "SELECT count(*) FROM experiences AS e WHERE e.scope_id = :scope AND e.ended IS NOT NULL",
    counted("i.ended IS NULL"),
    counted("true"),
    "SELECT count(*) FROM exposures AS x JOIN experiences AS e ON e.key = x.experience"
    " WHERE e.scope_id = :scope AND e.ended IS NULL",
    "SELECT count(*) FROM pending_rollouts WHERE scope_id = :scope",
)

_ROWS = (
    "SELECT e.polarity, count(*) FROM experiences AS e JOIN items AS i ON i.experience = e.key AND i.ended IS NULL"
    " WHERE e.scope_id = :scope AND e.ended IS NULL GROUP BY e.polarity ORDER BY e.polarity"
)
# Rows of items that have an earlier one: an item counts once, as what the earliest of its rows is.
_LATER = (
    "SELECT e.polarity, count(*) FROM (SELECT i.key, i.experience, min(i.key) OVER (PARTITION BY i.id) AS first"
    f" FROM {SEVERAL} WHERE i.ended IS NULL) AS later CROSS JOIN experiences AS e ON e.key = later.experience"
    " WHERE later.key > later.first GROUP BY e.polarity"
)
_VERDICTS = f"SELECT e.label, count(*) {_LIVE} GROUP BY e.label ORDER BY e.label"
_TEMPLATES = f"SELECT e.template, count(*) {_LIVE} AND e.template IS NOT NULL GROUP BY e.template ORDER BY e.template"


def stats(connection: sqlite3.Connection, scope: Scope, size: int) -> BankStats:
    """Counts of what lives in one scope; ``size``: that of the file."""
    experiences, with_items, ended, items, ever, exposures, waiting = (
        int(connection.execute(query, {"scope": scope.id}).fetchone()[0]) for query in _COUNTS
    )
    polarities = _tally(connection, scope, _ROWS)
    for polarity, number in _tally(connection, scope, _LATER).items():
        polarities[polarity] = polarities.get(polarity, 0) - number
    name, dimension = embedders.stored(connection) or ("", 0)
    return BankStats(
        scope=scope.name,
        items=items,
        experiences=experiences,
        experiences_with_items=with_items,
        by_polarity={polarity: number for polarity, number in polarities.items() if number},
        by_verdict=_tally(connection, scope, _VERDICTS),
        by_template=_tally(connection, scope, _TEMPLATES),
        exposures=exposures,
        pending=waiting,
        removed=ended + ever - items,
        embedder=name,
        dimension=dimension,
        bytes_on_disk=size,
        schema_version=len(MIGRATIONS),
    )


def _tally(connection: sqlite3.Connection, scope: Scope, query: str) -> dict[str, int]:
    """Number of rows for each value of a column."""
    return {str(value): int(number) for value, number in connection.execute(query, {"scope": scope.id})}
