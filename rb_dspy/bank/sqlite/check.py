"""What ``doctor`` reads of a file: every row, every digest, every link of the hash chains."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

from rb_dspy.bank.parts import Finding
from rb_dspy.bank.sqlite import hard_links
from rb_dspy.bank.sqlite.check_chain import chain
from rb_dspy.bank.sqlite.check_links import links
from rb_dspy.bank.sqlite.check_rows import damaged_rows
from rb_dspy.bank.sqlite.files import DAMAGE, short
from rb_dspy.bank.sqlite.scoped import Scope
from rb_dspy.commands import bank_options

_RESTORE = "restore the file from a copy, or export what can be read and import it into a new bank"


def findings(connection: sqlite3.Connection, location: str) -> list[Finding]:
    """Everything that is wrong with a file, errors first; empty for a sound one."""
    found = [*_names(connection, location), *_file(connection, location)]
    try:
        for id, name in connection.execute("SELECT id, name FROM scopes ORDER BY name").fetchall():
            scope = Scope(id, name, location)
            if not isinstance(name, str):
                found.append(_broken(f"scope number {id}", "its name is no text"))
            damaged = _read(scope, damaged_rows(connection, scope))
            found += damaged
            told = {finding.where for finding in damaged}
            found += _read(scope, chain(connection, scope, unreadable=told))
            found += _read(scope, links(connection, scope))
        if connection.execute("SELECT 1 FROM meta WHERE key = 'reindexing'").fetchone():
            found.append(
                Finding(
                    severity="warning",
                    kind="index",
                    where=location,
                    what="a reindex runs or was broken off; the bank is still that of the embedder before",
                    remedy=f"wait for it, or run rb-dspy bank reindex --embedder NAME{bank_options(location)} again",
                )
            )
    except sqlite3.DatabaseError as exc:
        found.append(_broken(location, f"reading it stopped: {short(exc)}"))
    return sorted(found, key=lambda finding: finding.severity)


def _read(scope: Scope, findings: Iterator[Finding]) -> list[Finding]:
    """What can be found, and a finding where a cell holds what nobody expected: the other checks go on."""
    found = []
    try:
        for finding in findings:
            found.append(finding)
    except DAMAGE as exc:
        found.append(_broken(f"scope {scope.name!r}", f"a check stopped at a damaged row: {short(exc)}"))
    return found


def _names(connection: sqlite3.Connection, location: str) -> Iterator[Finding]:
    """Hard links that were made since the file was opened, or of a file that is only read."""
    for _, name, path in connection.execute("PRAGMA database_list").fetchall():
        if name == "main" and (what := hard_links.several(Path(path))):
            yield Finding(severity="warning", kind="file", where=location, what=what, remedy=hard_links.REMEDY)


def _file(connection: sqlite3.Connection, location: str) -> Iterator[Finding]:
    try:
        for (said,) in connection.execute("PRAGMA integrity_check").fetchall():
            if said != "ok":
                yield _broken(location, f"SQLite says: {' '.join(str(said).split())}")
        for table, row, parent, _ in connection.execute("PRAGMA foreign_key_check").fetchall():
            yield Finding(
                severity="error",
                kind="orphan",
                where=f"{location}: table {table}, row {row}",
                what=f"belongs to a row of {parent} that is not there",
                remedy=_RESTORE,
            )
    except sqlite3.DatabaseError as exc:
        yield _broken(location, f"SQLite cannot read it: {short(exc)}")


def _broken(location: str, what: str) -> Finding:
    return Finding(severity="error", kind="file", where=location, what=what, remedy=_RESTORE)
