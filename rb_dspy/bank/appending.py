"""From experiences that were admitted to experiences that are stored, one or many."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from rb_dspy.bank.ahead import Ahead
from rb_dspy.bank.collecting import uncollected
from rb_dspy.bank.current import Current
from rb_dspy.bank.embedding import with_vectors
from rb_dspy.bank.interface import BankStore, Stored
from rb_dspy.bank.parts import NewExperience
from rb_dspy.protocols import Embedder
from rb_dspy.schema import Experience

_PAGE = 2_048
"""Experiences of one write: long lists go in pages, so that no transaction stays open for long."""

_PART = 256
"""Experiences that are made ready at once: the next write waits for no more."""

_AHEAD = 2
"""Pages that are made ready before they can be written: while the log is copied, which takes as long as two writes."""


@dataclass(frozen=True, slots=True)
class _Part:
    plain: list[NewExperience]
    embedder: Embedder
    ready: Sequence[NewExperience]
    """With this embedder's vectors, and ready to be written."""


def append(store: BankStore, scope: str, current: Current, new: NewExperience) -> Experience:
    """See ``MemoryBank.append``."""
    try:  # whether it is known is not asked before: the writer finds out anyway, and most are new
        return _stored(store, scope, current, [_made(store, [new], current.embedder)], refuse_removed=True)()[0]
    except Exception:  # what an embedder raises can be anything, and what is known needs none
        if new.id not in store.have(scope, [new.id]):
            raise
        known = _made(store, [replace(new, items=())], current.embedder)
        return _stored(store, scope, current, [known], refuse_removed=True)()[0]


def append_all(store: BankStore, scope: str, current: Current, admitted: Iterable[NewExperience]) -> list[Experience]:
    """See ``MemoryBank.append_many``."""
    size = _PAGE // _PART
    pages, stored = Ahead(_parts(store, scope, current, iter(admitted)), size, _AHEAD * size), list[Experience]()
    last: Stored = list
    tidied = False

    def gather() -> None:
        nonlocal last
        stored.extend(last())
        last = list

    with uncollected() as look_through:

        def tidy() -> None:
            nonlocal tidied
            gather()
            look_through()
            tidied = True

        def meanwhile(enough: Callable[[], bool]) -> None:
            tidy()
            pages.look(enough)

        while page := pages.next():
            # What the page before gave is put together while this one is being stored.
            tidied = False
            now = _stored(store, scope, current, page, meanwhile=meanwhile)
            if not tidied:  # as where nothing is done meanwhile
                tidy()
            last = now
            del page, now  # before it is looked for garbage
        gather()
    return stored


def _parts(store: BankStore, scope: str, current: Current, admitted: Iterator[NewExperience]) -> Iterator[_Part]:
    # What is not stored yet when a part is made, but will be when it is written.
    before = deque[list[str]](maxlen=(_AHEAD + 1) * _PAGE // _PART)
    while part := list(islice(admitted, _PART)):
        ids = [new.id for new in part]
        known = store.have(scope, ids).union(*before)
        before.append(ids)
        # What is stored already stays as it is, so nothing is embedded for it.
        part = [replace(new, items=()) if new.id in known else new for new in part]
        yield _made(store, part, current.embedder)


def _made(store: BankStore, part: list[NewExperience], embedder: Embedder) -> _Part:
    return _Part(part, embedder, store.ready(with_vectors(part, embedder)))


def _stored(
    store: BankStore,
    scope: str,
    current: Current,
    page: list[_Part],
    *,
    refuse_removed: bool = False,
    meanwhile: Callable[[Callable[[], bool]], None] | None = None,
) -> Stored:
    def done(embedder: Embedder) -> Stored:
        made = [part if part.embedder is embedder else _made(store, part.plain, embedder) for part in page]
        ready = store.ready(*[part.ready for part in made])
        whose = embedder.id, embedder.dimension
        return store.place(scope, ready, embedder=whose, refuse_removed=refuse_removed, meanwhile=meanwhile)

    return current.settled(done)
