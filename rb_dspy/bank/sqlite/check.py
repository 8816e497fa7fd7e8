"""What ``doctor`` reads of a file: every row, every digest, every link of the hash chains."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator

from rb_dspy.bank.interface import Finding
from rb_dspy.bank.sqlite.check_chain import chain
from rb_dspy.bank.sqlite.check_links import links
from rb_dspy.bank.sqlite.check_rows import damaged_rows
from rb_dspy.bank.sqlite.scoped import Scope

_RESTORE = "restore the file from a copy, or export what can be read and import it into a new bank"


def findings(connection: sqlite3.Connection, location: str) -> list[Finding]:
    """Everything that is wrong with a file, errors first; empty for a sound one."""
    found = list(_file(connection, location))
    try:
        for id, name in connection.execute("SELECT id, name FROM scopes ORDER BY name").fetchall():
            scope = Scope(id, name, location)
            damaged = list(damaged_rows(connection, scope))
            found += damaged
            found += chain(connection, scope, unreadable={finding.where for finding in damaged})
            found += links(connection, scope)
        if connection.execute("SELECT 1 FROM meta WHERE key = 'reindexing'").fetchone():
            found.append(
                Finding(
                    severity="warning",
                    kind="index",
                    where=location,
                    what="a reindex runs or was broken off; the bank is still that of the embedder before",
                    remedy="wait for it, or run rb-dspy bank reindex again",
                )
            )
    except sqlite3.DatabaseError as exc:
        found.append(_broken(location, f"reading it stopped: {exc}"))
    return sorted(found, key=lambda finding: finding.severity)


def _file(connection: sqlite3.Connection, location: str) -> Iterator[Finding]:
    try:
        for (said,) in connection.execute("PRAGMA integrity_check").fetchall():
            if said != "ok":
                yield _broken(location, f"SQLite says: {said}")
        for table, row, parent, _ in connection.execute("PRAGMA foreign_key_check").fetchall():
            yield Finding(
                severity="error",
                kind="orphan",
                where=f"{location}: table {table}, row {row}",
                what=f"belongs to a row of {parent} that is not there",
                remedy=_RESTORE,
            )
    except sqlite3.DatabaseError as exc:
        yield _broken(location, f"SQLite cannot read it: {exc}")


def _broken(location: str, what: str) -> Finding:
    return Finding(severity="error", kind="file", where=location, what=what, remedy=_RESTORE)
