"""What the writer performs: appends, many in few statements, and everything else one by one."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence

from rb_dspy.bank.sqlite.appends import Append, appended
from rb_dspy.errors import RBError

Body = Callable[[sqlite3.Connection], object]
"""Any write but an append; raises where nothing of it may be kept."""


def perform(connection: sqlite3.Connection, requests: Sequence[Append | Body]) -> list[object]:
    """The outcome of each request, in order: what it gave or the error of ours that it raised."""
    outcomes: list[object] = []
    appends: list[Append] = []
    for request in requests:
        if isinstance(request, Append):
            appends.append(request)
        else:
            outcomes += _appended(connection, appends)
            appends = []
            outcomes.append(_apart(connection, request))
    return outcomes + _appended(connection, appends)


def _appended(connection: sqlite3.Connection, appends: Sequence[Append]) -> list[object]:
    return appended(connection, appends) if appends else []


def _apart(connection: sqlite3.Connection, body: Body) -> object:
    """A body whose error undoes what it did and nothing else."""
    connection.execute("SAVEPOINT body")
    try:
        outcome = body(connection)
    except RBError as exc:
        connection.execute("ROLLBACK TO body")
        outcome = exc
    connection.execute("RELEASE body")
    return outcome
