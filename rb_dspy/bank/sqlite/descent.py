"""Who gave what and who was shown what, in one state of a scope and before it: what ``closure`` asks."""

from __future__ import annotations

import sqlite3

from rb_dspy.bank.lineage import GivenRow, Member
from rb_dspy.bank.parts import Source
from rb_dspy.bank.sqlite import keys
from rb_dspy.bank.sqlite.ids import named
from rb_dspy.bank.sqlite.scoped import State, live

_OF = {
    "experience": f"experiences AS e WHERE {named('e')}",
    "run": "experiences AS e WHERE e.scope_id = :scope AND e.run_id = :id",
    "origin": "experiences AS e WHERE e.scope_id = :scope AND e.origin = :id",
    "item": (
        "exposures AS x CROSS JOIN experiences AS e ON e.key = x.experience"
        " WHERE x.item_id = :id AND x.experience > :base AND x.experience <= :upto"
    ),
}


def members(connection: sqlite3.Connection, state: State, source: Source) -> list[Member]:
    """See ``BankStore``."""
    found = connection.execute(
        f"SELECT e.key, e.id, {live('e')} FROM {_OF[source.kind]} AND e.key <= :upto ORDER BY e.key",
        state.named(source.name),
    )
    return [Member(keys.number(key), id, bool(lives)) for key, id, lives in found]


def rows(connection: sqlite3.Connection, state: State, of: str | int) -> list[GivenRow]:
    """See ``BankStore``. Damaged rows are among them: they end with the others."""
    if isinstance(of, str):
        where, given = named("i"), state.named(of)
    else:
        where, given = "i.experience = :experience", state.having(experience=state.scope.base + of)
    # A row whose experience is missing counts as one of an experience that stays.
    found = connection.execute(
        f"SELECT i.key, i.id, {live('i')}, i.experience, e.id, ifnull({live('e')}, 1) FROM items AS i"
        f" LEFT JOIN experiences AS e ON e.key = i.experience WHERE {where} AND i.key <= :upto ORDER BY i.key",
        given,
    )
    return [
        GivenRow(keys.number(key), item, bool(lives), Member(keys.number(experience), id, bool(stands)))
        for key, item, lives, experience, id, stands in found
    ]
