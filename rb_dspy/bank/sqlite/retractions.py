"""Which texts were taken away as such: by an edit of the item that said it, or by its removal."""

from __future__ import annotations

import json
import logging
import sqlite3
from collections.abc import Iterable

from rb_dspy.bank.admission import item_id
from rb_dspy.bank.sqlite import rows
from rb_dspy.bank.sqlite.ids import listed
from rb_dspy.bank.sqlite.scoped import Row, State, live
from rb_dspy.schema import Change

_log = logging.getLogger("rb_dspy.bank")

_ROWS = (
    f"SELECT i.digest, i.id, i.ended, {live('i')} AS lives FROM {listed('items', 'i')} AND i.key <= :upto"
    f" UNION SELECT i.digest, i.id, i.ended, {live('i')} FROM json_each(:digests) AS given CROSS JOIN items AS i"
    " ON i.scope_id = :scope AND i.digest = given.value AND i.apart = 1 AND i.key <= :upto"
)
"""As ``items_with`` finds them: by the id that goes with a text, and of those with another id by the text's digest."""

_TAKEN = (
    "SELECT r.digest, r.id, r.ended, r.lives, j.kind, j.subject, j.note, j.created_at"
    f" FROM ({_ROWS}) AS r LEFT JOIN journal AS j ON j.key = :base + r.ended"
)


def retracted(connection: sqlite3.Connection, state: State, digests: Iterable[str]) -> dict[str, Change]:
    """See ``BankStore``. An entry that is damaged takes nothing away; a warning tells of it."""
    wanted = {digest: item_id(state.scope.name, digest) for digest in digests}
    given = state.listed(wanted.values(), digests=json.dumps(list(wanted)))
    said: dict[str, list[Row]] = {}
    for digest, *row in connection.execute(_TAKEN, given):
        if digest in wanted:
            said.setdefault(digest, []).append(row)
    made: dict[str, Change] = {}
    for digest, every in said.items():
        if any(lives for _, _, lives, *_ in every):
            continue
        last = max(ended for _, ended, *_ in every)
        for id, ended, _, kind, subject, note, created_at in every:
            if ended == last and subject == id:
                try:
                    made[digest] = Change(seq=last, kind=kind, id=id, note=note, created_at=created_at)
                except ValueError as exc:  # pydantic's errors are ValueErrors
                    what = f"scope {state.scope.name!r}: entry {last} of the journal"
                    _log.warning("%s", rows.damaged(state.scope.location, what, exc))
    return made
