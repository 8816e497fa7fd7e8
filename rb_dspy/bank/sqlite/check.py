"""What ``doctor`` reads of a file: every row, every digest, every link of the hash chains."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

from rb_dspy.bank.parts import Finding
from rb_dspy.bank.sqlite import embedders, hard_links, indexes, keys
from rb_dspy.bank.sqlite.check_chain import chain
from rb_dspy.bank.sqlite.check_links import links
from rb_dspy.bank.sqlite.check_rows import damaged_rows
from rb_dspy.bank.sqlite.files import DAMAGE, short
from rb_dspy.bank.sqlite.remedies import FROM_A_COPY, OR_WHAT_IS_LEFT, REINDEX, REINDEX_AS, of_bank
from rb_dspy.bank.sqlite.scoped import Scope

_KEYED = ("experiences", "items", "journal")
"""Tables whose rows carry their scope in their key."""


def findings(connection: sqlite3.Connection, location: str) -> list[Finding]:
    """Everything that is wrong with a file, errors first; empty for a sound one."""
    found = [*_names(connection, location), *_file(connection, location), *_indexes(connection, location)]
    try:
        found += [*_embedder(connection, location), *_unknown_scopes(connection, location)]
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
                    remedy=f"wait for it, or run {REINDEX_AS} again",
                )
            )
    except sqlite3.DatabaseError as exc:
        found.append(_broken(location, f"reading it stopped: {short(exc)}"))
    found = [finding.model_copy(update={"remedy": of_bank(finding.remedy, location)}) for finding in found]
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
            if parent == "scopes":
                continue  # see ``_unknown_scopes``
            yield Finding(
                severity="error",
                kind="orphan",
                where=f"{location}: table {table}, row {row}",
                what=f"belongs to a row of {parent} that is not there",
                remedy=OR_WHAT_IS_LEFT,
            )
    except sqlite3.DatabaseError as exc:
        yield _broken(location, f"SQLite cannot read it: {short(exc)}")


def _indexes(connection: sqlite3.Connection, location: str) -> Iterator[Finding]:
    """Those that a new bank has: without them all is found as with them, but not in time."""
    try:
        for name in indexes.lacking(connection):
            yield Finding(
                severity="error",
                kind="index",
                where=f"{location}: index {name}",
                what="is not there, which makes reading and writing slow",
                remedy=f"run {REINDEX}, which makes it again",
            )
    except sqlite3.DatabaseError as exc:
        yield _broken(location, f"SQLite cannot read what indexes there are: {short(exc)}")


def _embedder(connection: sqlite3.Connection, location: str) -> Iterator[Finding]:
    """Rows of ``meta`` that a bank has from the first time on that it was opened."""
    told = embedders.told(connection)
    used = told.id or told.dimension or connection.execute("SELECT 1 FROM experiences").fetchone()
    if told.whole or not used:
        return
    id, dimension = embedders.rows_of(connection)
    lost = [name for name, value in (("embedder", id), ("dimension", dimension)) if value is None]
    knows = [f"its embedder was {told.id}"] if told.id else []
    knows += [f"its vectors have {told.dimension} dimensions"] if told.dimension else []
    yield Finding(
        severity="error",
        kind="file",
        where=location,
        what=f"of its table meta, {' and '.join(lost)} are lost or damaged; {' and '.join(knows) or 'nothing tells'}",
        remedy=f"run {REINDEX_AS}, with the name of its embedder, or of another",
    )


def _unknown_scopes(connection: sqlite3.Connection, location: str) -> Iterator[Finding]:
    """Rows that carry a scope that there is no row of."""
    asked = [
        *(f"SELECT key >> {keys.BITS} AS id, '{table}' AS rows FROM {table}" for table in _KEYED),
        *(f"SELECT scope_id, '{table}' FROM {table}" for table in ("pending_rollouts", "snapshots")),
    ]
    of: dict[object, list[str]] = {}
    for id, table, number in connection.execute(
        f"SELECT id, rows, count(*) FROM ({' UNION ALL '.join(asked)}) WHERE id NOT IN (SELECT id FROM scopes)"
        " GROUP BY id, rows ORDER BY id, rows"
    ).fetchall():
        of.setdefault(id, []).append(f"{table}: {number}")
    for id, numbers in of.items():
        yield Finding(
            severity="error",
            kind="orphan",
            where=f"{location}: scope number {id}",
            what=f"its name is lost, and nothing finds what it holds ({', '.join(numbers)})",
            remedy=FROM_A_COPY,
        )


def _broken(location: str, what: str) -> Finding:
    return Finding(severity="error", kind="file", where=location, what=what, remedy=OR_WHAT_IS_LEFT)
