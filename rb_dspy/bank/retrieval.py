"""Find the lessons for a query: filter, rank, and load the best."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from numbers import Integral, Real
from typing import Any, Literal, get_args

from rb_dspy.bank.reading import items_and_givers
from rb_dspy.bank.search.searchers import Searcher
from rb_dspy.bank.store.base import UNITS, Filter, Hit, Unit
from rb_dspy.bank.store.overlay import Reader, Scope
from rb_dspy.errors import InputError
from rb_dspy.protocols import Vectors
from rb_dspy.schema import MemoryItem, Polarity, Retrieved, Task
from rb_dspy.text import normalize

Mode = Literal["dense", "lexical", "hybrid"]
"""Rank by the embedder's cosine, by shared words (BM25), or by both (reciprocal rank fusion)."""

_DEPTH = 50
"""Rows read from each ranking before two are fused; 4 k if that is more."""

_SMOOTHING = 60
"""The constant of reciprocal rank fusion (Cormack et al., 2009)."""

Ranking = Callable[[int], list[Hit]]
"""Returns the best rows, at most the given number."""


def find(
    scope: Scope,
    searcher: Searcher,
    embed: Callable[[str], Vectors],
    query: str | Task,
    *,
    k: int,
    unit: Unit,
    mode: Mode,
    min_score: float | None,
    exclude_tasks: Collection[str],
    polarity: Polarity | None,
) -> list[Retrieved]:
    """See ``MemoryBank.retrieve``. ``embed`` is called at most once, and never if there are no rows to search."""
    _check(query=query, k=k, unit=unit, mode=mode, min_score=min_score, exclude_tasks=exclude_tasks, polarity=polarity)
    own_task = query.id if isinstance(query, Task) else None
    query = normalize((query.key or query.instruction) if isinstance(query, Task) else query)
    if k == 0 or searcher.is_empty(unit):
        return []
    excluded = frozenset(exclude_tasks) if own_task is None else frozenset({*exclude_tasks, own_task})
    only = Filter(exclude_tasks=excluded, polarity=polarity)
    rankings: list[Ranking] = []
    if mode != "lexical":
        vector = embed(query)
        rankings.append(lambda number: searcher.nearest(unit, vector, number, only))
    if mode != "dense":
        rankings.append(lambda number: searcher.matching(unit, query, number, only))

    def is_shown(item: MemoryItem) -> bool:
        """Searches filter rows; an item that several experiences gave has the polarity and the task of the earliest."""
        return polarity in (None, item.polarity) and item.provenance.task_id != own_task

    ranking = rankings[0] if len(rankings) == 1 else _fused(rankings)
    count = k
    while True:
        hits = ranking(count)  # outside the block below, because a searcher has its own lock
        passed = hits if min_score is None else [hit for hit in hits if hit.score >= min_score - 1e-5]
        with scope.reading() as reader:
            found = _load_results(reader, scope.name, unit, passed, k, is_shown)
        if len(found) >= k or len(passed) < count:
            return found[:k]
        count *= 4


_ARGUMENTS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "query": (lambda value: isinstance(value, str | Task), "a text, or a Task"),
    "k": (lambda value: isinstance(value, Integral) and int(value) >= 0, "a whole number, 0 or more"),
    "unit": (UNITS.__contains__, " or ".join(map(repr, UNITS))),
    "mode": (get_args(Mode).__contains__, ", ".join(map(repr, get_args(Mode)))),
    "polarity": ((None, *get_args(Polarity)).__contains__, "None, 'success' or 'failure'"),
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


def _check(**given: Any) -> None:
    for name, value in given.items():
        is_valid, expected = _ARGUMENTS[name]
        if not is_valid(value):
            raise InputError(f"{name} {value!r:.40}: expected {expected}")
    if given["min_score"] is not None and given["mode"] != "dense":
        raise InputError(f"min_score is a cosine and does not apply to mode {given['mode']!r}; remove it")


def _load_results(
    reader: Reader, scope: str, unit: Unit, hits: Sequence[Hit], k: int, is_shown: Callable[[MemoryItem], bool]
) -> list[Retrieved]:
    """Load the results. Several rows of one item become one result; experiences without items are skipped."""
    seqs = [hit.seq for hit in hits]
    ids: dict[int, tuple[str, ...]]
    if unit == "item":
        rows = {row.seq: row for row in reader.items(seqs=seqs)}
        ids = {seq: (row.id,) for seq, row in rows.items()}
    else:
        pairs_of: dict[int, list[tuple[int, str]]] = {}
        for each in reader.items(experiences=seqs):
            pairs_of.setdefault(each.experience, []).append((each.learned, each.id))
        ids = {seq: tuple(id for _, id in sorted(pairs)) for seq, pairs in pairs_of.items()}
    items, givers = items_and_givers(reader, {id for each in ids.values() for id in each}, scope)
    found: dict[object, Retrieved] = {}
    for hit in hits:
        giver = givers.get(rows[hit.seq].experience if unit == "item" and hit.seq in rows else hit.seq)
        shown = [item for id in ids.get(hit.seq, ()) if (item := items.get(id)) and is_shown(item)]
        key = shown[0].id if unit == "item" and shown else hit.seq
        if giver is None or not shown or key in found:
            continue
        found[key] = Retrieved(
            score=hit.score,
            experience_id=giver.id,
            task_id=giver.task_id,
            instruction=giver.instruction,
            items=tuple(shown),
        )
        if len(found) == k:
            break
    return list(found.values())


def _fused(rankings: Sequence[Ranking]) -> Ranking:
    """Reciprocal rank fusion; equal scores are ordered newest first."""

    def fused(count: int) -> list[Hit]:
        scores: dict[int, float] = {}
        for ranking in rankings:
            for place, hit in enumerate(ranking(max(_DEPTH, 4 * count)), 1):
                scores[hit.seq] = scores.get(hit.seq, 0.0) + 1 / (_SMOOTHING + place)
        hits = [Hit(seq, score) for seq, score in scores.items()]
        return sorted(hits, key=lambda hit: (-hit.score, -hit.seq))[:count]

    return fused
