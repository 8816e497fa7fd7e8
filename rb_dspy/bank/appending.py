"""From experiences that were admitted to experiences that are stored, one or many."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from rb_dspy.bank.ahead import Ahead
from rb_dspy.bank.collecting import uncollected
from rb_dspy.bank.current import Current
from rb_dspy.bank.embedding import with_vectors
from rb_dspy.bank.interface import BankStore
from rb_dspy.bank.parts import NewExperience
from rb_dspy.protocols import Embedder
from rb_dspy.schema import Experience

_PAGE = 1_024
"""Experiences of one write: long lists go in pages, so that no transaction stays open for long."""


@dataclass(frozen=True, slots=True)
class _Page:
    plain: list[NewExperience]
    embedder: Embedder
    ready: Sequence[NewExperience]
    """With this embedder's vectors, and ready to be written."""


def append(store: BankStore, scope: str, current: Current, new: NewExperience) -> Experience:
    """See ``MemoryBank.append``."""
    try:  # whether it is known is not asked before: the writer finds out anyway, and most are new
        return _stored(store, scope, current, _made(store, [new], current.embedder), refuse_removed=True)[0]
    except Exception:  # what an embedder raises can be anything, and what is known needs none
        if new.id not in store.have(scope, [new.id]):
            raise
        known = _made(store, [replace(new, items=())], current.embedder)
        return _stored(store, scope, current, known, refuse_removed=True)[0]


def append_all(store: BankStore, scope: str, current: Current, admitted: Iterable[NewExperience]) -> list[Experience]:
    """See ``MemoryBank.append_many``."""
    pages, stored = Ahead(_pages(store, scope, current, iter(admitted))), list[Experience]()
    while True:
        with uncollected():
            page = pages.next()
            if page is None:
                return stored
            stored += _stored(store, scope, current, page, meanwhile=pages.look)
            del page  # before what was put off: it would be looked through


def _pages(store: BankStore, scope: str, current: Current, admitted: Iterator[NewExperience]) -> Iterator[_Page]:
    before: list[str] = []
    while page := list(islice(admitted, _PAGE)):
        ids = [new.id for new in page]
        # The page before is stored by the time that this one is, and need not be so now.
        known = {*store.have(scope, ids), *before}
        before = ids
        # What is stored already stays as it is, so nothing is embedded for it.
        page = [replace(new, items=()) if new.id in known else new for new in page]
        yield _made(store, page, current.embedder)


def _made(store: BankStore, page: list[NewExperience], embedder: Embedder) -> _Page:
    return _Page(page, embedder, store.ready(with_vectors(page, embedder)))


def _stored(
    store: BankStore,
    scope: str,
    current: Current,
    page: _Page,
    *,
    refuse_removed: bool = False,
    meanwhile: Callable[[], None] | None = None,
) -> list[Experience]:
    def done(embedder: Embedder) -> list[Experience]:
        made = page if embedder is page.embedder else _made(store, page.plain, embedder)
        whose = embedder.id, embedder.dimension
        return store.append(scope, made.ready, embedder=whose, refuse_removed=refuse_removed, meanwhile=meanwhile)

    return current.settled(done)
