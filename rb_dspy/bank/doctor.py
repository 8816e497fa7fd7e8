"""Count what a bank contains, check its integrity, and find lessons that say nearly the same."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from numbers import Real
from typing import Literal

import numpy as np

from rb_dspy.bank.admission import corrected_id, item_id, unpack_rollouts
from rb_dspy.bank.reading import experience_pages, grouped, items_of, levels_of, uses_of
from rb_dspy.bank.store.base import HELD, UNITS
from rb_dspy.bank.store.overlay import Reader, Scope
from rb_dspy.bank.store.sql import Database
from rb_dspy.bank.store.tables import SCHEMA
from rb_dspy.config import TrustConfig
from rb_dspy.errors import CorruptBank, InputError
from rb_dspy.schema import Frozen, Level, MemoryItem


class BankStats(Frozen):
    """Counts of one scope as it is now. ``bytes_on_disk`` and ``schema_version`` are those of the whole bank."""

    scope: str
    items: int
    experiences: int
    experiences_with_items: int
    by_polarity: dict[str, int]
    """Items from successes and from failures."""
    by_verdict: dict[str, int]
    """Experiences by verdict; one with several rollouts counts as a success if any of them was judged a success."""
    by_template: dict[str, int]
    """Experiences by their task's template; tasks without one are not counted."""
    exposures: int
    """How often an item was shown to an agent whose rollout was then appended."""
    pending: int
    """Rollouts that are not learned from yet."""
    removed: int
    """Experiences and items that were deleted, rolled back or retired; their history is still stored."""
    embedder: str
    dimension: int
    bytes_on_disk: int
    schema_version: int


class Finding(Frozen):
    """A problem found by ``doctor``."""

    kind: Literal["file", "row", "link", "vector", "pending"]
    where: str
    """Scope and id, or the location of the bank."""
    what: str
    remedy: str


_RESTORE = "restore a backup (MemoryBank.restore, rb-dspy bank restore)"
_REINDEX = "create the vectors again (MemoryBank.reindex, rb-dspy bank reindex)"


class Origin(Frozen):
    """Where lessons come from."""

    name: str
    level: Level
    """The level that its lessons get now; see ``TrustConfig``."""
    capped: bool
    """Whether its lessons share ``TrustConfig.cap`` places."""
    experiences: int
    lessons: int
    held: int
    """Of the lessons, those that are not shown."""
    shown: int
    """How often one of them was shown to an agent."""
    last: str
    """When the last experience was stored."""


class HeldItem(Frozen):
    """An item that is not shown, and the other origins that nearly say the same.

    ``corroborated``: they are as many as ``TrustConfig.corroborate``. It is for a person who decides: nothing is
    approved by itself.
    """

    item: MemoryItem
    also: tuple[str, ...]
    corroborated: bool


def stats(scope: Scope, reader: Reader, database: Database | None) -> BankStats:
    """Counts of one scope, which ``reader`` reads."""
    experiences = reader.tally("experiences", ["seq", "label", "template"])
    rows = reader.tally("items", ["id", "learned", "experience", "polarity"])
    items = {id: polarity for id, _, _, polarity in sorted(rows, key=lambda row: -row[1])}
    seqs = {seq for seq, *_ in experiences}
    every = {id for (id,) in reader.tally("experiences", ["id"], ended=True)}
    ended = {id for id in every if corrected_id(id) not in every}  # what was corrected was not removed
    removals = reader.journal(kinds=("delete", "rollback"))
    lost = {id for entry in removals for id in (entry.subject, *entry.items) if id.startswith("m")}
    lost |= {entry.subject for entry in reader.journal(kinds=["retire"])}
    embedder, dimension = scope.embedder() or ("", 0)
    return BankStats(
        scope=scope.name,
        items=len(items),
        experiences=len(experiences),
        experiences_with_items=len({experience for _, _, experience, _ in rows}),
        by_polarity=dict(Counter(items.values())),
        by_verdict=dict(Counter(label for _, label, _ in experiences)),
        by_template=dict(Counter(template for _, _, template in experiences if template is not None)),
        exposures=sum(use.experience in seqs for use in reader.uses()),
        pending=len(reader.pending(payload=False)),
        removed=len(ended) - len(experiences) + len(lost - items.keys()),
        embedder=embedder,
        dimension=dimension,
        bytes_on_disk=database.bytes_on_disk() if database else 0,
        schema_version=SCHEMA,
    )


def origins(reader: Reader, trust: TrustConfig) -> list[Origin]:
    """Where the lessons come from, those with most lessons first."""
    items = reader.tally("items", ["origin", "id"])
    held = _held_ids(reader)
    experiences = reader.tally("experiences", ["origin", "created_at"])
    shown = {id: len(uses) for id, uses in uses_of(reader, None).items()}
    found = []
    for name in {origin for origin, _ in (*items, *experiences)}:
        ids = [id for origin, id in items if origin == name]
        times = {time: count for (origin, time), count in experiences.items() if origin == name}
        found.append(
            Origin(
                name=name,
                level=trust.level(name),
                capped=trust.is_capped(name),
                experiences=sum(times.values()),
                lessons=len(ids),
                held=sum(id in held for id in ids),
                shown=sum(shown.get(id, 0) for id in ids),
                last=max(times, default=""),
            )
        )
    return sorted(found, key=lambda each: (-each.lessons, each.name))


def held_items(scope: Scope, reader: Reader, trust: TrustConfig) -> list[HeldItem]:
    """The items that are held, in the order in which they were learned."""
    items = items_of(reader, _held_ids(reader), scope.name)
    if not items:
        return []
    origin_of = {seq: (id, origin) for seq, id, origin in reader.tally("items", ["seq", "id", "origin"])}
    by_seq = scope.vectors("item", origin_of)
    vectors = np.stack([*by_seq.values()]) if by_seq else np.empty((0, 0))
    rows = [origin_of[seq] for seq in by_seq]
    places = {id: place for place, (id, _) in enumerate(rows)}
    found = []
    for id, item in items.items():
        own = {source.origin for source in item.provenances}
        near = vectors @ vectors[places[id]] >= trust.near - _TOLERANCE if id in places else np.zeros(0, np.bool_)
        also = sorted({rows[place][1] for place in np.flatnonzero(near)} - own)
        found.append(HeldItem(item=item, also=tuple(also), corroborated=len(also) >= trust.corroborate))
    return found


def _held_ids(reader: Reader) -> set[str]:
    ids = {id for id, level in reader.tally("items", ["id", "level"]) if level == HELD}
    return {id for id, level in levels_of(reader, ids).items() if level == HELD}


def findings(scope: Scope, reader: Reader, database: Database | None) -> list[Finding]:
    """Check the file and one scope, which ``reader`` reads, and return the problems."""
    problems = database.check() if database else ()
    found = [Finding(kind="file", where=scope.location, what=what, remedy=_RESTORE) for what in problems]
    return [*found, *_rows(scope, reader), *_vectors(scope, reader)]


def _rows(scope: Scope, reader: Reader) -> Iterator[Finding]:
    def finding(id: str, what: str, kind: Literal["row", "link", "pending"] = "row") -> Finding:
        return Finding(kind=kind, where=f"{scope.name}: {id}", what=what, remedy=_RESTORE)

    for each in itertools.chain.from_iterable(experience_pages(reader, ended=True)):
        try:
            unpack_rollouts(each.payload, each.id)
        except CorruptBank:
            yield finding(each.id, "its rollouts cannot be read")
    experiences = {row.seq for row in reader.experiences(ended=True)}
    for row in reader.items(ended=True):
        if item_id(row.title, row.description, row.content, row.kind, row.data) != row.id:
            yield finding(row.id, "its text does not match its id")
        if row.experience not in experiences:
            yield finding(row.id, "its experience is missing", "link")
    for pending in reader.pending():
        (id,) = grouped([pending.key])
        try:
            unpack_rollouts(pending.payload, "it")
        except CorruptBank as exc:
            yield finding(id, f"pending rollout of {pending.key.task_id}: {exc}", "pending")


def _vectors(scope: Scope, reader: Reader) -> Iterator[Finding]:
    embedder = scope.embedder()
    items = reader.items()
    expected = {"item": {row.seq for row in items}, "experience": {row.experience for row in items}}
    for unit in UNITS:
        missing, odd = set(expected[unit]), 0
        for row in scope.index_rows(unit, after=0, upto=reader.mark()):
            missing.discard(row.seq)
            vector = np.frombuffer(row.data, "<f2").astype(np.float32)
            odd += embedder is None or len(vector) != embedder[1] or not abs(float(np.linalg.norm(vector)) - 1) < 0.01
        problems = (len(missing), "rows have no vector", _REINDEX), (odd, "vectors are damaged", _RESTORE)
        for count, what, remedy in problems:
            if count:
                where = f"{scope.name}: {unit}s"
                yield Finding(kind="vector", where=where, what=f"{count} {what}", remedy=remedy)


MOST = 10_000
"""Maximum number of pairs returned; all pairs would grow with the square of the number of items."""

_BLOCK = 256
"""Rows compared with all others at once."""

_TOLERANCE = 1e-5
"""Vectors are stored in half precision, so equal texts may be this far from a cosine of 1."""


class NearDuplicate(Frozen):
    """Two items of a scope, and the cosine of their texts. ``first`` was learned first."""

    first: MemoryItem
    second: MemoryItem
    score: float


def near_duplicates(scope: Scope, reader: Reader, min_score: object) -> list[NearDuplicate]:
    """Pairs of live items of ``reader`` whose cosine is at least ``min_score``, nearest first, at most 10,000."""
    if not isinstance(min_score, Real) or not -1 <= float(min_score) <= 1:
        raise InputError(f"min_score {min_score!r:.40}: expected a cosine, -1 to 1")
    first: dict[str, int] = {}
    for item_row in reader.items():
        first.setdefault(item_row.id, item_row.seq)
    ids = {seq: id for id, seq in first.items()}
    by_seq = scope.vectors("item", ids)
    if not by_seq:
        return []
    seqs = sorted(by_seq)
    vectors = np.stack([by_seq[seq] for seq in seqs])
    scores, pairs = np.empty(0, np.float32), np.empty((0, 2), np.intp)
    for start in range(0, len(seqs), _BLOCK):
        block = np.clip(vectors[start : start + _BLOCK] @ vectors[start:].T, -1, 1)
        left, right = np.nonzero(block >= float(min_score) - _TOLERANCE)
        upper = left < right
        scores = np.concatenate([scores, block[left[upper], right[upper]]])
        pairs = np.concatenate([pairs, np.column_stack([left[upper], right[upper]]) + start])
        if len(scores) > MOST:
            order = np.argsort(-scores, kind="stable")[:MOST]
            scores, pairs = scores[order], pairs[order]
    order = np.argsort(-scores, kind="stable")
    items = items_of(reader, {ids[seqs[place]] for pair in pairs for place in pair}, scope.name)
    return [
        NearDuplicate(first=items[ids[seqs[left]]], second=items[ids[seqs[right]]], score=round(float(score), 5))
        for score, (left, right) in zip(scores[order], pairs[order], strict=True)
    ]
