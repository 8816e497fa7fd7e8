"""Find the lessons for a query: filter, rank, and load the best."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from numbers import Integral, Real
from typing import Any, Literal, Self, get_args

from rb_dspy.bank.lineage import has_learned, lists
from rb_dspy.bank.reading import APPROVED, as_items, marked
from rb_dspy.bank.search.searchers import Searcher
from rb_dspy.bank.store.base import UNITS, ExperienceRow, Filter, Hit, ItemRow, Unit
from rb_dspy.bank.store.overlay import Reader, Scope
from rb_dspy.config import TrustConfig, origin_class
from rb_dspy.errors import InputError
from rb_dspy.protocols import Vectors
from rb_dspy.schema import LEVELS, MemoryItem, Polarity, Retrieved, Task
from rb_dspy.text import normalize

Mode = Literal["dense", "lexical", "hybrid"]
"""Rank by the embedder's cosine, by shared words (BM25), or by both (reciprocal rank fusion)."""

_DEPTH = 50
"""Rows read from each ranking before two are fused; 4 k if that is more."""

_SMOOTHING = 60
"""The constant of reciprocal rank fusion (Cormack et al., 2009)."""

_WIDEST = 64
"""Candidates per result, among which one is sought that does not repeat the others."""

_OWNER = LEVELS.index("owner")

_FLOOD = 3
"""As many others that say the same make a result one that does not outrank others."""

Ranking = Callable[[int, Filter], list[Hit]]
"""Returns the best rows that pass the filter, at most the given number."""


_ARGUMENTS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "text": (lambda value: isinstance(value, str | Task), "a text, or a Task"),
    "k": (lambda value: isinstance(value, Integral) and int(value) >= 0, "a whole number, 0 or more"),
    "unit": (UNITS.__contains__, " or ".join(map(repr, UNITS))),
    "mode": (get_args(Mode).__contains__, ", ".join(map(repr, get_args(Mode)))),
    "polarity": ((None, *get_args(Polarity)).__contains__, "None, 'success' or 'failure'"),
    "kinds": (
        lambda value: (
            value is None
            or (
                isinstance(value, Collection)
                and not isinstance(value, str)
                and all(isinstance(each, str) for each in value)
            )
        ),
        "a list, or a set, of kinds of items, or None",
    ),
    "empty": (lambda value: isinstance(value, bool), "True or False"),
    "marks": (
        lambda value: (
            isinstance(value, Mapping)
            and all(isinstance(name, str) and isinstance(each, str | None) for name, each in value.items())
        ),
        "a dict: name of a mark -> its value, or None for what has no such mark",
    ),
    "exclude_tasks": (  # a str is a collection, too
        lambda value: isinstance(value, Collection) and not isinstance(value, str),
        "a list, or a set, of task ids",
    ),
    "min_score": (
        lambda value: value is None or (isinstance(value, Real) and -1 <= float(value) <= 1),
        "a cosine, -1 to 1, or None",
    ),
}
"""What each argument must be: a test, and how an error describes it."""


def check(name: str, value: object) -> None:
    """Raise ``InputError`` if an argument is not valid."""
    is_valid, expected = _ARGUMENTS[name]
    if not is_valid(value):
        raise InputError(f"{'query' if name == 'text' else name} {value!r:.40}: expected {expected}")


@dataclass(frozen=True)
class Query:
    """What is sought; see ``MemoryBank.retrieve``."""

    text: str | Task
    k: int
    unit: Unit
    mode: Mode
    min_score: float | None
    exclude_tasks: Collection[str]
    polarity: Polarity | None
    marks: Mapping[str, str | None]
    empty: bool
    kinds: Collection[str] | None

    def __post_init__(self) -> None:
        for name in _ARGUMENTS:
            check(name, getattr(self, name))
        if self.min_score is not None and self.mode != "dense":
            raise InputError(f"min_score is a cosine and does not apply to mode {self.mode!r}; remove it")

    @property
    def own_task(self) -> str | None:
        """The task whose own lessons are not shown."""
        return self.text.id if isinstance(self.text, Task) else None

    def is_shown(self, item: MemoryItem, known: bool) -> bool:
        """Searches filter rows; an item that several experiences gave has the polarity and the task of the earliest.

        ``known``: whether the bank has learned from the own task; see ``ItemDraft.data``.
        """
        own = self.own_task is not None and (
            item.provenance.task_id == self.own_task or lists(item, self.own_task, known=known)
        )
        is_sought = self.polarity in (None, item.polarity) and (self.kinds is None or item.kind in self.kinds)
        return is_sought and item.level != "held" and not own


def find(
    scope: Scope, searcher: Searcher, embed: Callable[[str], Vectors], trust: TrustConfig, query: Query
) -> list[Retrieved]:
    """See ``MemoryBank.retrieve``. ``embed`` is called at most once, and never if there are no rows to search."""
    text = query.text if isinstance(query.text, str) else query.text.key or query.text.instruction
    text = normalize(text)
    if query.k == 0 or searcher.is_empty(query.unit):
        return []
    approved = marked(scope.now(), query.unit, APPROVED)
    only = _filter(scope.now(), query, approved)
    rankings: list[Ranking] = []
    if query.mode != "lexical":
        vector = embed(text)
        rankings.append(lambda number, only: searcher.nearest(query.unit, vector, number, only))
    if query.mode != "dense":
        rankings.append(lambda number, only: searcher.matching(query.unit, text, number, only))
    ranking = rankings[0] if len(rankings) == 1 else _fused(rankings)
    count = query.k
    full = set[str]()
    while True:
        hits = ranking(count, only)  # outside the block below, because a searcher has its own lock
        least = query.min_score
        passed = hits if least is None else [hit for hit in hits if hit.score >= least - 1e-5]
        is_all = len(passed) < count
        # what is read of items is one statement
        with nullcontext(scope.now()) if query.unit == "item" else scope.reading() as reader:
            found = _Results(reader, scope, trust, query, approved).load(passed)
        if is_all or len(found.first) >= query.k or (count >= _WIDEST * query.k and len(found) >= query.k):
            return found.best(query.k)
        if new := found.full - full:  # what is left of an origin that has its places is not read again
            full |= new
            kept = {*approved, *(each.seq for each in (*found.first, *found.later))}
            only = replace(only, hidden={*only.hidden, *(_rows_of(scope.now(), query.unit, new) - kept)})
        count *= 4


def _rows_of(reader: Reader, unit: Unit, origins: Collection[str]) -> set[int]:
    """The rows of ``origins``, without those that the owner edited."""
    every = (row for origin in origins for row in reader.tally(f"{unit}s", ["seq", "level"], origin=origin))
    return {seq for seq, level in every if level < _OWNER}


def _filter(reader: Reader, query: Query, approved: Mapping[int, str]) -> Filter:
    """The rows that a search may return."""
    hidden = set[int]()
    within: set[int] | None = None
    for name, value in query.marks.items():
        rows = marked(reader, query.unit, name)
        if value is None:
            hidden |= rows.keys()
        else:
            having = {seq for seq, each in rows.items() if each == value}
            within = having if within is None else within & having
    kinds = None if query.kinds is None else frozenset(query.kinds)
    if kinds is not None and query.unit == "experience":
        giving = {experience for experience, kind in reader.tally("items", ["experience", "kind"]) if kind in kinds}
        within = giving if within is None else within & giving
    excluded = {*query.exclude_tasks} | ({query.own_task} if query.own_task is not None else set())
    return Filter(
        exclude_tasks=frozenset(excluded),
        polarity=query.polarity,
        hidden=hidden,
        within=within,
        released=approved.keys(),
        kinds=kinds if query.unit == "item" else None,
    )


@dataclass
class _Found:
    """A result with its vector, how far it is trusted, and how many say the same."""

    seq: int
    result: Retrieved
    vector: Vectors | None
    standing: tuple[int, bool]
    better: _Found | None = None
    """A better result that says the same."""
    repeats: int = 0

    @property
    def ranked(self) -> Retrieved:
        """The result, which outranks others if its origin is trusted and it is no flood."""
        outranks = self.standing[1] and self.better is None and self.repeats < _FLOOD
        return self.result if outranks else self.result.model_copy(update={"outranks": False})


@dataclass
class _Results:
    """Chooses from hits, best first. ``first``: the results; ``later``: what is only shown if there are not enough.

    Several rows of one item become one result. Results that say the same get all places but one. An origin that is not
    trusted by name gets ``TrustConfig.cap`` places.
    """

    reader: Reader
    scope: Scope
    trust: TrustConfig
    query: Query
    approved: Collection[int]
    first: list[_Found] = field(default_factory=list)
    later: list[_Found] = field(default_factory=list)
    full: set[str] = field(default_factory=set)
    """Origins that have got all of their places."""

    def __len__(self) -> int:
        return len(self.first) + len(self.later)

    def best(self, k: int) -> list[Retrieved]:
        """The first results, filled up with the later ones, by score."""
        return sorted((each.ranked for each in (self.first + self.later)[:k]), key=lambda each: -each.score)

    def load(self, hits: Sequence[Hit]) -> Self:
        seqs = [hit.seq for hit in hits]
        by_item = self.query.unit == "item"
        vectors = self.scope.vectors("item", seqs) if by_item and len(hits) > 1 and self.trust.near <= 1 else {}
        places, seen = Counter[str](), set[str]()
        most = max(1, self.query.k - 1)
        for hit, row, result in self._lessons(hits):
            if row.id in seen:
                continue
            found = _Found(hit.seq, result, vectors.get(hit.seq), self._standing(row))
            better = self._better(found)
            if better is not None:
                better.repeats += 1
            kind, is_capped = origin_class(row.origin), not found.standing[1]
            if is_capped and places[kind] == self.trust.cap:
                self.full.add(row.origin)
                continue
            places[kind] += is_capped
            seen.add(row.id)
            found.better = better
            if better is not None and better.repeats >= most and better.standing >= found.standing:
                self.later.append(found)
                continue
            self.first.append(found)
            if len(self.first) == self.query.k:
                break
        return self

    def _standing(self, row: ItemRow | ExperienceRow) -> tuple[int, bool]:
        """Its level, and whether it is one that is not capped."""
        level = _OWNER if row.seq in self.approved else row.level
        return level, level >= _OWNER or not self.trust.is_capped(row.origin)

    def _lessons(self, hits: Sequence[Hit]) -> Iterator[tuple[Hit, ItemRow | ExperienceRow, Retrieved]]:
        """The hits that may be shown, with their rows."""
        seqs = [hit.seq for hit in hits]
        by_item = self.query.unit == "item"
        rows: dict[int, tuple[ItemRow | ExperienceRow, ExperienceRow, Sequence[str]]]
        if by_item:
            given = self.reader.items_with_experiences(seqs=seqs)
            best: dict[str, ItemRow] = {}
            for each, _ in given:  # what strangers repeat is as trusted as what they repeat
                best[each.id] = max(best.get(each.id, each), each, key=self._standing)
            rows = {row.seq: (best[row.id], giver, [row.id]) for row, giver in given}
        else:
            ids: dict[int, list[str]] = {}
            for each in sorted(self.reader.items(experiences=seqs), key=lambda row: row.learned):
                ids.setdefault(each.experience, []).append(each.id)
            given = self.reader.items_with_experiences({id for every in ids.values() for id in every})
            rows = {row.seq: (row, row, ids.get(row.seq, ())) for row in self.reader.experiences(seqs=seqs)}
        items = as_items(self.reader, given, self.scope.name, self.approved if by_item else None)
        known = self.query.own_task is not None and has_learned(self.reader, self.query.own_task)
        for hit in hits:
            if hit.seq not in rows:
                continue
            row, giver, lessons = rows[hit.seq]
            mine = tuple(items[id] for id in lessons if id in items and self.query.is_shown(items[id], known))
            if mine or (self.query.empty and not by_item):
                result = Retrieved(
                    score=hit.score,
                    experience_id=giver.id,
                    task_id=giver.task_id,
                    instruction=giver.instruction,
                    items=mine,
                )
                yield hit, row, result

    def _better(self, found: _Found) -> _Found | None:
        """The result that says the same."""
        if found.vector is None:
            return None
        least = self.trust.near - 1e-5
        near = (each for each in self.first if each.vector is not None and float(each.vector @ found.vector) >= least)
        return next(near, None)


def _fused(rankings: Sequence[Ranking]) -> Ranking:
    """Reciprocal rank fusion; equal scores are ordered newest first."""

    def fused(count: int, only: Filter) -> list[Hit]:
        scores: dict[int, float] = {}
        for ranking in rankings:
            for place, hit in enumerate(ranking(max(_DEPTH, 4 * count), only), 1):
                scores[hit.seq] = scores.get(hit.seq, 0.0) + 1 / (_SMOOTHING + place)
        hits = [Hit(seq, score) for seq, score in scores.items()]
        return sorted(hits, key=lambda hit: (-hit.score, -hit.seq))[:count]

    return fused
