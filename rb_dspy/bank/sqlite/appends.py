"""Experiences of many callers, stored together in few statements."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence, Set
from dataclasses import dataclass, field
from functools import partial

from rb_dspy.bank import journal, refusals
from rb_dspy.bank.admission import free_item_id, item_id
from rb_dspy.bank.ascii_json import ascii_json
from rb_dspy.bank.parts import NewExperience, Placed
from rb_dspy.bank.pending import alone
from rb_dspy.bank.sqlite import failpoints, ids, keys, pending, queries
from rb_dspy.bank.sqlite.embedders import StoredEmbedder, bound_by_writing
from rb_dspy.bank.sqlite.inserts import Rows
from rb_dspy.bank.sqlite.rows import Prepared
from rb_dspy.bank.sqlite.scoped import Scope, State
from rb_dspy.bank.sqlite.state import scope_state
from rb_dspy.errors import RBError
from rb_dspy.schema import Experience


@dataclass(frozen=True, slots=True)
class Append:
    """Experiences for a scope, from a caller that has this embedder. The outcome: for each, where it was placed.

    Or what is stored, where that has to be read: of one that was there before, and of one that shares an item.
    """

    location: str
    scope: str
    batch: Sequence[Prepared]
    lengths: Set[int]
    """In bytes, those of the vectors."""
    embedder: StoredEmbedder
    refuse_removed: bool


@dataclass(slots=True)
class _Writing:
    """A scope while it is written to."""

    scope: Scope
    embedder: StoredEmbedder
    seq: int
    head: bytes
    waiting: bool
    """Whether rollouts wait to be learned from."""
    before: int
    """``seq`` before anything was written."""
    known: set[str] = field(default_factory=set)
    """Ids of experiences that were there before."""
    added: set[str] = field(default_factory=set)
    """Ids of those that come now."""
    attempts: dict[tuple[str, str], str] = field(default_factory=dict)
    """What a run learns from a task now: ids by both."""
    same: dict[str, str] = field(default_factory=dict)
    """Ids that are not stored, since their run has learned from their task already, and those of what it learned."""
    covered: list[NewExperience] = field(default_factory=list)
    """Whose rollouts are pending no more."""
    live: dict[str, str] = field(default_factory=dict)
    """Id and digest of items that live."""
    texts: dict[str, str] = field(default_factory=dict)
    """Digest and id of items that live; of several with one text, the earliest."""
    met: set[str] = field(default_factory=set)
    """Ids of items that have, or had, a row."""
    shared: set[str] = field(default_factory=set)
    """Ids of items that get another provenance now."""


_KNOWN = (
    "SELECT f.key FROM json_each(:id_keys) AS given CROSS JOIN ids AS f ON f.id_key = given.value"
    " UNION ALL SELECT f.key FROM json_each(:id_keys) AS given CROSS JOIN recent_ids AS f ON f.id_key = given.value"
    " UNION ALL SELECT i.key FROM json_each(:digests) AS given CROSS JOIN items AS i"
    " ON i.scope_id = :scope AND i.digest = given.value AND i.apart = 1 AND i.ended IS NULL"
    " WHERE EXISTS (SELECT 1 FROM items WHERE scope_id = :scope AND apart = 1)"  # most banks have none such
)
"""Keys of rows that may be those of the same experiences and items: by the ids that go with the texts, and by texts."""

_OF_THESE = (
    "SELECT e.key, e.id, NULL, NULL FROM json_each(:keys) AS given CROSS JOIN experiences AS e ON e.key = given.value"
    " WHERE e.scope_id = :scope UNION ALL SELECT i.key, i.id, i.digest, i.ended FROM json_each(:keys) AS given"
    " CROSS JOIN items AS i ON i.key = given.value WHERE i.scope_id = :scope"
)


def appended(connection: sqlite3.Connection, appends: Sequence[Append]) -> list[object]:
    """The outcome of each, or the error of ours that it raised; of such a one nothing is stored."""
    scopes: dict[str, _Writing] = {}
    outcomes: list[object] = []
    into = Rows()
    for append in appends:
        try:
            if append.scope not in scopes:
                scopes[append.scope] = _looked_up(connection, append, appends)
            writing = scopes[append.scope]
            writing.embedder = bound_by_writing(
                connection, writing.embedder, append.embedder, append.lengths, append.location
            )
            before = _before(connection, writing, append) if writing.known or append.refuse_removed else {}
        except RBError as exc:
            outcomes.append(exc)
        else:
            writing.covered += [each.new for each in append.batch] if writing.waiting else []
            outcomes.append(
                [before.get(each.new.id) or _placed(connection, writing, each, into) for each in append.batch]
            )
    into.insert(connection)
    failpoints.reached("after-insert")
    for writing in scopes.values():
        _finish(connection, writing)
    for append, outcome in zip(appends, outcomes, strict=True):
        if isinstance(outcome, list):
            _read_shared(connection, scopes[append.scope], append.batch, outcome)
    return outcomes


def _looked_up(connection: sqlite3.Connection, append: Append, appends: Sequence[Append]) -> _Writing:
    """A scope, and what it has of all that is to be written to it."""
    found = scope_state(connection, append.scope, append.location)
    batch = [each for other in appends if other.scope == append.scope for each in other.batch]
    items = [item for each in batch for item in each.new.items]
    named = {ids.of_hash(found.id, hash) for each in batch for hash in (each.hash, *each.item_hashes)}
    named.update([ids.of_id(found.id, item_id(append.scope, item.digest)) for item in items if item.apart])
    # In order, so that one is found near the other.
    given = {"id_keys": str(sorted(named)), "digests": ascii_json([item.digest for item in items]).decode("ascii")}
    scope = Scope(found.id, append.scope, append.location)
    writing = _Writing(scope, found.embedder, found.seq, found.head, found.waiting, found.seq)
    known = connection.execute(_KNOWN, {"scope": found.id, **given}).fetchall()
    if known:  # or what has the same hash
        own = {each.new.id for each in batch}
        these = connection.execute(_OF_THESE, {"scope": found.id, "keys": str([key for (key,) in known])}).fetchall()
        # Of several items with one text the earliest comes last, and stays.
        for _, id, digest, ended in sorted(these, key=lambda row: row[0], reverse=True):
            if digest is None:
                writing.known |= own & {id}
                continue
            writing.met.add(id)
            if ended is None:
                writing.live[id] = digest
                writing.texts[digest] = id
    return writing


def _before(connection: sqlite3.Connection, writing: _Writing, append: Append) -> dict[str, Experience]:
    """What is stored already, by id. Read before anything is placed: an error must not leave half a batch behind."""
    stored = {each.new.id: each.new.id for each in append.batch if each.new.id in writing.known}
    for each in append.batch if append.refuse_removed else ():
        new, named = each.new, (each.new.run_id, each.new.task.id)
        if new.id in stored and queries.ended(connection, writing.scope, new.id):
            raise refusals.removed_since(append.location, new.task.id, new.id)
        if not new.run_id or new.id in stored:
            continue
        if named in writing.attempts:  # of somebody who shares this transaction: it can be read at its end
            writing.same[new.id] = writing.attempts[named]
        elif found := pending.attempt(connection, writing.scope, *named):
            if not found[1]:
                raise refusals.removed_since(append.location, new.task.id, found[0])
            stored[new.id] = found[0]
    return {id: queries.ever(connection, writing.scope, known) for id, known in stored.items()}


def _placed(connection: sqlite3.Connection, writing: _Writing, each: Prepared, into: Rows) -> Placed | None:
    """Where a new experience is placed; None for one that the same transaction has placed already."""
    new, base = each.new, writing.scope.base
    if new.id in writing.added or new.id in writing.same:
        return None
    writing.added.add(new.id)
    if new.run_id:
        writing.attempts.setdefault((new.run_id, new.task.id), new.id)
    seq, scope_id = writing.seq + 1, writing.scope.id
    key = base + seq
    success = int(new.polarity == "success")
    into.experiences += (key, scope_id, new.id, new.task.id, each.template, new.task.instruction, new.label)
    into.experiences += (new.polarity, new.run_id, new.origin, new.distiller, new.note, new.created_at, each.payload)
    into.recent_ids += (ids.of_hash(scope_id, each.hash), key)
    if each.vector is not None:
        into.experience_vectors += (key, each.task, success, *each.vector)
    item_ids: list[str] = []
    usual = True
    items, vectors, live, texts, met = into.items, into.item_vectors, writing.live, writing.texts, writing.met
    given = zip(new.items, each.item_vectors, each.item_hashes, strict=True)
    for row, (item, vector, hash) in enumerate(given, key + 1):
        digest = item.digest
        id = texts.get(digest)
        if id is not None:
            writing.shared.add(id)
        else:  # the id of its text may be that of an item that was edited
            id = item.id
            if id in live:
                id = free_item_id(new.id, digest, partial(_is_taken, connection, writing))
            live[id] = digest
            texts[digest] = id
        item_ids.append(id)
        if id != item.id:
            usual, hash = False, ids.hashed(id)
        id_key = ids.of_hash(scope_id, hash)
        again = id_key if id in met else 0
        met.add(id)
        apart = 0 if id == item.id and not item.apart else 1
        items += (row, scope_id, id, key, digest, item.title, item.description, item.content, apart, again)
        vectors += (row, each.task, success, *vector)
        into.recent_ids += (id_key, row)
    writing.seq = seq + len(item_ids)
    for position, shown in enumerate(new.shown):
        into.exposures += (key, position, shown)
    content = each.content if usual else journal.content_of_append(new, item_ids, each.told)
    writing.head = journal.entry_hash(writing.head, seq, "append", new.id, new.note, new.created_at, content)
    into.journal += (key, "append", writing.head)
    return Placed(seq, item_ids)


def _is_taken(connection: sqlite3.Connection, writing: _Writing, id: str) -> bool:
    """By an item that lives; one that has ended is noted as met."""
    query = f"SELECT i.ended FROM items AS i WHERE {ids.named('i')}"
    had = connection.execute(query, State(writing.scope, keys.LAST).named(id)).fetchall()
    if had:
        writing.met.add(id)
    return id in writing.live or (None,) in had


def _finish(connection: sqlite3.Connection, writing: _Writing) -> None:
    """The scope's counter and head; what was learned from is pending no more."""
    id = writing.scope.id
    if writing.added:
        connection.execute("UPDATE scopes SET seq = ?, chain = ? WHERE id = ?", (writing.seq, writing.head, id))
        ids.go_on(connection, id, writing.before, writing.seq)
    named = {(new.run_id, new.task.id) for new in writing.covered if new.run_id}
    pending.forget_attempts(connection, id, named)
    pending.forget(connection, id, alone(writing.scope.name, [new for new in writing.covered if not new.run_id]))


def _read_shared(
    connection: sqlite3.Connection,
    writing: _Writing,
    batch: Sequence[Prepared],
    outcome: list[Experience | Placed | None],
) -> None:
    """Put what is stored in the place of what was placed, where an item has other provenances as well."""
    for place, (each, found) in enumerate(zip(batch, outcome, strict=True)):
        ids = () if found is None else found.item_ids if isinstance(found, Placed) else [i.id for i in found.items]
        if found is None or not writing.shared.isdisjoint(ids):
            id = writing.same.get(each.new.id, each.new.id)
            outcome[place] = queries.ever(connection, writing.scope, id)
