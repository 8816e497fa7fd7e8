"""From a query to what is shown: rank, and put the winners into words."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Literal, get_args

import numpy as np

from rb_dspy.bank.commands import bank_options
from rb_dspy.bank.embedding import embed
from rb_dspy.bank.followers import Follower, LexicalFollower
from rb_dspy.bank.given import whole_number
from rb_dspy.bank.index.fusion import fused
from rb_dspy.bank.index.layered import LayeredIndex
from rb_dspy.bank.index.layered_lexical import LayeredLexicalIndex
from rb_dspy.bank.index.lexical import LexicalIndex
from rb_dspy.bank.index.sidecar import Sidecar
from rb_dspy.bank.index.vector import VectorIndex
from rb_dspy.bank.index.view import Filter, Hit, View, search
from rb_dspy.bank.index.word_view import WordView, search as search_words
from rb_dspy.bank.interface import BankStore
from rb_dspy.bank.parts import UNITS, Finding, Match, Unit, task_key
from rb_dspy.bank.records import whole
from rb_dspy.errors import BankError, EmbedderMismatch, InputError
from rb_dspy.protocols import Embedder
from rb_dspy.schema import Polarity, Retrieved
from rb_dspy.text import normalise

Mode = Literal["dense", "lexical", "hybrid"]
"""What decides: the embedder's cosine, the words that are shared (BM25), or both by reciprocal rank."""

_DEPTH = 50
"""How far down each ranking is read before two are fused; 4 k where that is more."""

_PAGE = 500
"""Winners that are looked up at once: databases take only so many parameters."""

_ROWS = 20_000

Ranking = Callable[[int, Collection[int]], list[Hit]]
"""The best rows: how many, and which row numbers to leave out."""


class Finder:
    """Finds in one scope of a store. Safe to use from threads."""

    def __init__(
        self,
        store: BankStore,
        scope: str,
        embedder: Embedder,
        *,
        folder: Path | None = None,
        over: Finder | None = None,
    ) -> None:
        """``folder``: where indexes are saved; None, nowhere. ``over``: the finder of what ``store`` is a fork of."""
        self._store = store
        self._scope = scope
        self._embedder = embedder
        self._folder = folder
        self._over = over
        self._born = store.mark(scope) if over else 0
        self._followers: dict[Unit, Follower] = {}
        self._words: dict[Unit, LexicalFollower] = {}
        self._making = threading.Lock()
        self._why: BankError | None = None

    def view(self, unit: Unit) -> View:
        """The vectors of everything that was committed before this call."""
        return (self._followers.get(unit) or self._made(unit)).view()

    def words(self, unit: Unit, mark: int) -> WordView:
        """The words of everything that was born up to ``mark``."""
        return (self._words.get(unit) or self._made_words(unit)).view(mark)

    def build(self) -> None:
        """Make the indexes new, as fast as they get, and save them."""
        for unit in UNITS:
            if sidecar := self._sidecar(unit):
                sidecar.discard()
            self._made(unit).build()

    def forget(self, scopes: Iterable[str]) -> None:
        """Discard what is saved of the indexes of these scopes of the store: it lacks what was mended."""
        for scope in scopes:
            for unit in UNITS:
                if sidecar := self._sidecar(unit, scope):
                    sidecar.discard()

    def anew(self, embedder: Embedder) -> Finder:
        """A finder that takes the place of this one, which retires where the embedder is another one."""
        if embedder is not self._embedder:
            moved = f"{self._store.location}: re-indexed for the embedder {embedder.id} meanwhile"
            self.retire(EmbedderMismatch(f"{moved}; open it, or fork it, again"))
        return Finder(self._store, self._scope, embedder, folder=self._folder)

    def check(self) -> list[Finding]:
        """Whether the indexes hold what the store does."""
        return [finding for unit in UNITS for finding in self._differences(unit)]

    def retire(self, why: BankError) -> None:
        """Find nothing more: ``why`` is raised. Its forks find nothing more that they had not looked for already."""
        with self._making:
            self._why = self._why or why
            followers = [*self._followers.values()]
        with contextlib.ExitStack() as ending:  # all of them, also where Ctrl-C comes while one is waited for
            for follower in followers:
                ending.callback(follower.retire, why)

    def find(
        self,
        query: str,
        k: int,
        unit: Unit,
        min_score: float | None,
        exclude_tasks: Collection[str],
        polarity: Polarity | None,
        mode: Mode,
    ) -> list[Retrieved]:
        """See ``MemoryBank.retrieve``."""
        _check(query, k, unit, min_score, exclude_tasks, polarity, mode)
        k = int(k)  # numpy has whole numbers of its own
        if k == 0:
            return []
        view = self.view(unit)
        if not len(view):
            return []
        text = normalise(query)
        excluded = [task_key(task) for task in exclude_tasks]
        rankings: list[Ranking] = []
        if mode != "lexical":
            (vector,) = embed(self._embedder, [text], self._embedder.dimension)

            def dense(number: int, hidden: Collection[int]) -> list[Hit]:
                return search(view, vector, number, Filter(excluded, polarity, hidden), min_score)

            rankings.append(dense)
        if mode != "dense":
            words = self.words(unit, view.mark)

            def lexical(number: int, hidden: Collection[int]) -> list[Hit]:
                allowed = partial(view.allowed, chosen=Filter(excluded, polarity, hidden))
                return search_words(words, text, number, allowed)

            rankings.append(lexical)
        return self._shown(k, unit, view.mark, rankings[0] if len(rankings) == 1 else _both(rankings))

    def _shown(self, k: int, unit: Unit, mark: int, ranking: Ranking) -> list[Retrieved]:
        """The ``k`` best in words. Damaged rows give way to the next best; an item's several rows are one winner."""
        matches: dict[int, Match] = {}
        named: dict[int, str] = {}
        """What rows are of that need not be looked up: all rows of the items in ``complete``."""
        complete: set[str] = set()
        damaged: set[int] = set()
        wanted = k
        while True:
            hits = ranking(wanted, damaged)
            found: dict[str, Retrieved] = {}
            before = len(damaged)
            for start in range(0, len(hits), _PAGE):
                page = hits[start : start + _PAGE]
                if named:
                    page = _once(page, named, set(found))
                new = [hit.seq for hit in page if hit.seq not in matches]
                matches |= self._store.matches(self._scope, unit, new, mark) if new else {}
                for hit in page:
                    match = matches.get(hit.seq)
                    if match is None:
                        damaged.add(hit.seq)
                        continue
                    key = match.items[0].id if unit == "item" else match.experience_id
                    if key not in found:
                        found[key] = whole(
                            Retrieved,
                            {
                                "score": hit.score,
                                "experience_id": match.experience_id,
                                "task_id": match.task_id,
                                "instruction": match.instruction,
                                "items": match.items,
                            },
                        )
                if len(found) >= k:
                    return list(found.values())[:k]
                for key in found.keys() - complete if unit == "item" else ():
                    complete.add(key)  # looked up once: with each of n rows that tie, n provenances are read
                    if len(found[key].items[0].provenances) > 1:
                        rows = self._store.item_rows(self._scope, "item", key, mark)
                        named |= {row.seq: key for row in rows}
            if len(hits) < wanted and len(damaged) == before:
                return list(found.values())
            if len(damaged) == before:
                wanted *= 2

    def _made(self, unit: Unit) -> Follower:
        with self._making:
            if self._why is not None:
                raise self._why
            if unit not in self._followers:
                dimension = self._embedder.dimension
                # Made when somebody looks: most forks are never read in more than one unit.
                layered = self._over and LayeredIndex(self._over.view(unit).at(self._born), dimension)
                index = layered or VectorIndex(dimension)
                self._followers[unit] = Follower(self._store, self._scope, unit, index, self._sidecar(unit))
            return self._followers[unit]

    def _made_words(self, unit: Unit) -> LexicalFollower:
        with self._making:
            if unit not in self._words:
                # Stems: experiments/bank/retrieval.py. Made when somebody looks, as the vectors are.
                layered = self._over and LayeredLexicalIndex(self._over.words(unit, self._born), stemmed=True)
                index = layered or LexicalIndex(stemmed=True)
                self._words[unit] = LexicalFollower(self._store, self._scope, unit, index, self._born)
            return self._words[unit]

    def _sidecar(self, unit: Unit, scope: str | None = None) -> Sidecar | None:
        if self._folder is None:
            return None
        embedder = self._embedder
        return Sidecar(self._folder, scope or self._scope, unit, embedder_id=embedder.id, dimension=embedder.dimension)

    def _differences(self, unit: Unit) -> Iterator[Finding]:
        """Rows that only the index has, or only the store."""
        if self._over is not None:
            return
        mark, more = 0, True
        born, ended = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        while more:
            changes = self._store.changes(self._scope, unit, after=mark, limit=_ROWS)
            born.append(changes.added.seqs)
            ended.append(changes.ended[:, 0])
            mark, more = changes.mark, changes.more
        view = self.view(unit).at(mark)
        alive = np.setdiff1d(np.concatenate(born), np.concatenate(ended))
        missing = alive[~view.allowed(alive.tolist())]
        surplus = len(view) - (len(alive) - len(missing))
        for number, what in ((len(missing), "rows of the store are missing"), (surplus, "rows are not in the store")):
            if number:
                yield Finding(
                    severity="error",
                    kind="index",
                    where=f"{self._scope}: {unit} index",
                    what=f"{number} {what}",
                    remedy=f"rb-dspy bank reindex{bank_options(self._store.location, self._scope)} makes it new",
                )


def _once(page: list[Hit], named: dict[int, str], seen: set[str]) -> list[Hit]:
    """The first row of each item in ``named`` that is not in ``seen``, and all rows that are not in ``named``."""
    kept = []
    for hit in page:
        key = named.get(hit.seq)
        if key not in seen:
            kept.append(hit)
            if key is not None:
                seen.add(key)
    return kept


def _both(rankings: list[Ranking]) -> Ranking:
    def hybrid(number: int, hidden: Collection[int]) -> list[Hit]:
        depth = max(_DEPTH, 4 * number)
        return fused([ranking(depth, hidden) for ranking in rankings], number)

    return hybrid


def _check(
    query: str,
    k: int,
    unit: Unit,
    min_score: float | None,
    exclude_tasks: Collection[str],
    polarity: Polarity | None,
    mode: Mode,
) -> None:
    if unit not in UNITS:
        raise InputError(f"unit {unit!r}: expected 'experience' or 'item'")
    if mode not in get_args(Mode):
        raise InputError(f"mode {mode!r}: expected 'dense', 'lexical' or 'hybrid'")
    if polarity not in (None, "success", "failure"):
        raise InputError(f"polarity {polarity!r}: expected 'success', 'failure' or None")
    if not isinstance(query, str):
        raise InputError(f"query of type {type(query).__name__}: expected text, or a Task")
    if (whole_number(k) or 0) < 0 or whole_number(k) is None:
        raise InputError(f"k {_short(k)}: expected a whole number, 0 or more")
    tasks = isinstance(exclude_tasks, Collection) and not isinstance(exclude_tasks, str)
    if not tasks or not all(isinstance(task, str) for task in exclude_tasks):
        raise InputError(f"exclude_tasks {_short(exclude_tasks)}: expected a list, or a set, of task ids")
    number = isinstance(min_score, int | float | np.floating) and not isinstance(min_score, bool)
    if min_score is not None and not (number and -1 <= min_score <= 1):
        raise InputError(f"min_score {_short(min_score)}: expected a cosine, -1 to 1, or None")
    if min_score is not None and mode != "dense":
        raise InputError(f"min_score is a cosine, and mode {mode!r} ranks by something else; leave it out")


def _short(given: object) -> str:
    """What was given, in few characters: numbers of thousands of digits cannot even be written."""
    try:
        return repr(given)[:40]
    except ValueError:
        return f"of type {type(given).__name__}"
