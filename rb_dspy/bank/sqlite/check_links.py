"""Rows that belong together: items and their experiences, vectors and what they stand for, counters, snapshots."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator

from rb_dspy.bank.parts import Finding, Severity
from rb_dspy.bank.sqlite import keys
from rb_dspy.bank.sqlite.remedies import FROM_A_COPY, OR_WHAT_IS_LEFT, REINDEX
from rb_dspy.bank.sqlite.scoped import Scope

_INDEX = f"run {REINDEX}, which makes anew what ids are found by"

_Query = tuple[Severity, str, str, str, str]

# Severity, kind, what, remedy, and a query that gives what is wrong, by id.
_QUERIES: tuple[_Query, ...] = (
    (
        *("error", "orphan", "belongs to an experience that is not there", OR_WHAT_IS_LEFT),
        "SELECT 'item ' || i.id FROM items AS i LEFT JOIN experiences AS e ON e.key = i.experience"
        " AND e.scope_id = i.scope_id WHERE i.key > :base AND i.key <= :last AND e.key IS NULL",
    ),
    (
        *("error", "orphan", "carries another scope in its key", OR_WHAT_IS_LEFT),
        "SELECT 'item ' || id FROM items WHERE key > :base AND key <= :last AND scope_id <> :scope"
        " UNION ALL SELECT 'experience ' || id FROM experiences WHERE key > :base AND key <= :last"
        " AND scope_id <> :scope",
    ),
    (
        *("error", "row", "stands there twice: under one id there is one experience", OR_WHAT_IS_LEFT),
        "SELECT DISTINCT 'experience ' || id FROM experiences WHERE key > :base AND key <= :last"
        " GROUP BY id HAVING count(*) > 1",
    ),
    (
        *("error", "row", "has two rows that both are its first: it may be counted twice", _INDEX),
        "SELECT 'item ' || id FROM items WHERE key > :base AND key <= :last AND again IS NULL"
        " GROUP BY id HAVING count(*) > 1",
    ),
    (
        *("error", "orphan", "is found by an id, and is not there", _INDEX),
        f"SELECT 'number ' || (f.key & {keys.LAST}) FROM (SELECT key FROM ids UNION ALL SELECT key FROM recent_ids)"
        " AS f WHERE f.key > :base AND f.key <= :last AND NOT EXISTS (SELECT 1 FROM items AS i WHERE i.key = f.key)"
        " AND NOT EXISTS (SELECT 1 FROM experiences AS e WHERE e.key = f.key)",
    ),
    (
        *("error", "orphan", "is a vector of nothing", OR_WHAT_IS_LEFT),
        f"SELECT 'item number ' || (v.key & {keys.LAST}) FROM item_vectors AS v LEFT JOIN items AS o ON o.key = v.key"
        " WHERE v.key > :base AND v.key <= :last AND o.key IS NULL"
        f" UNION ALL SELECT 'experience number ' || (v.key & {keys.LAST}) FROM experience_vectors AS v"
        " LEFT JOIN experiences AS o ON o.key = v.key WHERE v.key > :base AND v.key <= :last AND o.key IS NULL",
    ),
    (
        *("error", "vector", "has ended at another number than its vector", OR_WHAT_IS_LEFT),
        "SELECT DISTINCT 'item ' || i.id FROM items AS i JOIN item_vectors AS v ON v.key = i.key"
        " WHERE i.key > :base AND i.key <= :last AND i.ended IS NOT v.ended",
    ),
    (
        *("error", "vector", "has nothing to show, and its vector is still searched", OR_WHAT_IS_LEFT),
        "SELECT 'experience ' || e.id FROM experience_vectors AS v JOIN experiences AS e ON e.key = v.key"
        " WHERE v.key > :base AND v.key <= :last AND v.ended IS NULL AND (e.ended IS NOT NULL"
        " OR EXISTS (SELECT 1 FROM items AS i WHERE i.experience = e.key)"
        " AND NOT EXISTS (SELECT 1 FROM items AS i WHERE i.experience = e.key AND i.ended IS NULL))",
    ),
    (
        *("warning", "orphan", "was shown to an agent, and this scope never had it", "nothing needs to be done"),
        "SELECT DISTINCT 'item ' || x.item_id FROM exposures AS x WHERE x.experience > :base AND x.experience <= :last"
        " AND x.item_id NOT IN (SELECT id FROM items WHERE key > :base AND key <= :last AND id IS NOT NULL)",
    ),
    (
        *("warning", "pending", "was learned from, and waits to be learned from", "it goes when it is learned again"),
        "SELECT 'pending rollout ' || p.rollout_id || ' of task ' || p.task_id FROM pending_rollouts AS p"
        " JOIN experiences AS e ON e.scope_id = p.scope_id AND e.task_id = p.task_id AND e.run_id = p.run_id"
        " AND e.ended IS NULL AND (p.run_id <> '' OR e.id = p.content) WHERE p.scope_id = :scope",
    ),
    (
        *("error", "row", "stands below numbers that were given out: the next append would fail", OR_WHAT_IS_LEFT),
        "SELECT 'its counter' FROM scopes AS s WHERE s.id = :scope AND s.seq < max("
        + ", ".join(
            f"(SELECT coalesce(max(key), 0) & {keys.LAST} FROM {table} WHERE key > :base AND key <= :last)"
            for table in ("experiences", "items", "journal")
        )
        + ")",
    ),
    (
        *("error", "row", "is no number that the next append can go on from", OR_WHAT_IS_LEFT),
        f"SELECT 'its counter' FROM scopes AS s WHERE s.id = :scope AND (typeof(s.seq) <> 'integer' OR s.seq < 0"
        f" OR s.seq > {keys.LAST})",
    ),
    (  # an append's entry has none of its own: its history would tell them instead of those that are in the chain
        *("error", "chain", "has a subject, a note or a time that the store did not write", "see its experience's"),
        f"SELECT 'entry ' || (key & {keys.LAST}) || ' of the journal' FROM journal WHERE key > :base AND key <= :last"
        " AND kind = 'append' AND coalesce(subject, note, created_at) IS NOT NULL",
    ),
    (
        *(
            "error",
            "snapshot",
            "is damaged and cannot be opened",
            f"{FROM_A_COPY}, or name it anew",
        ),
        "SELECT 'snapshot ' || name FROM snapshots WHERE scope_id = :scope AND (typeof(name) <> 'text'"
        " OR typeof(seq) <> 'integer' OR typeof(digest) <> 'text' OR typeof(created_at) <> 'text')",
    ),
    (
        *("error", "snapshot", "names a state whose history is another one now", "see what the journal's entries say"),
        "SELECT 'snapshot ' || p.name FROM snapshots AS p WHERE p.scope_id = :scope AND p.digest <> coalesce("
        "(SELECT lower(hex(j.hash)) FROM journal AS j WHERE j.key > :base AND j.key <= :base + p.seq"
        " ORDER BY j.key DESC LIMIT 1), '')",
    ),
)


def links(connection: sqlite3.Connection, scope: Scope) -> Iterator[Finding]:
    """One finding for each thing that is wrong."""
    given = {"scope": scope.id, "base": scope.base, "last": scope.base + keys.LAST}
    for severity, kind, what, remedy, query in _QUERIES:
        for (name,) in connection.execute(query, given).fetchall():
            where = f"scope {scope.name!r}: {name}"
            yield Finding.model_validate(
                {"severity": severity, "kind": kind, "where": where, "what": what, "remedy": remedy}
            )
