"""From experiences that were admitted to experiences that are stored, one or many."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count, islice

from rb_dspy.bank.ahead import Ahead
from rb_dspy.bank.collecting import uncollected
from rb_dspy.bank.current import Current
from rb_dspy.bank.embedding import with_vectors
from rb_dspy.bank.interface import BankStore
from rb_dspy.bank.parts import NewExperience, Placed
from rb_dspy.bank.sources import of_task
from rb_dspy.bank.stored import Stored, stored
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
        (where,) = _placed(store, scope, current, [_made(store, [new], current.embedder)], refuse_removed=True)
    except Exception:  # what an embedder raises can be anything, and what is known needs none
        if new.id not in store.have(scope, [new.id]):
            raise
        known = _made(store, [replace(new, items=())], current.embedder)
        (where,) = _placed(store, scope, current, [known], refuse_removed=True)
    return of_task(stored(new, scope, where), new.task, store.location)


def append_all(store: BankStore, scope: str, current: Current, admitted: Iterable[NewExperience]) -> Stored:
    """See ``MemoryBank.append_many``."""
    size = _PAGE // _PART
    those = Stored(scope)
    with uncollected() as look_through:
        pages = Ahead(_parts(store, scope, current, iter(admitted), look_through), size, _AHEAD * size)
        while page := pages.next():
            placed = iter(_placed(store, scope, current, page, meanwhile=pages.look))
            for part in page:
                those.add(part.plain, islice(placed, len(part.plain)))
            del page, part  # before it is looked for garbage
    return those


def _parts(
    store: BankStore, scope: str, current: Current, admitted: Iterator[NewExperience], look_through: Callable[[], None]
) -> Iterator[_Part]:
    # What is not stored yet when a part is made, but will be when it is written.
    before = deque[list[str]](maxlen=(_AHEAD + 1) * _PAGE // _PART)
    for number in count(1):
        part = list(islice(admitted, _PART))
        if not part:
            return
        ids = [new.id for new in part]
        known = store.have(scope, ids).union(*before)
        before.append(ids)
        # What is stored already stays as it is, so nothing is embedded for it.
        part = [replace(new, items=()) if new.id in known else new for new in part]
        yield _made(store, part, current.embedder)
        if number % (_PAGE // _PART) == 0:
            look_through()


def _made(store: BankStore, part: list[NewExperience], embedder: Embedder) -> _Part:
    return _Part(part, embedder, store.ready(with_vectors(part, embedder)))


def _placed(
    store: BankStore,
    scope: str,
    current: Current,
    page: list[_Part],
    *,
    refuse_removed: bool = False,
    meanwhile: Callable[[Callable[[], bool]], None] | None = None,
) -> Sequence[Placed | Experience]:
    def done(embedder: Embedder) -> Sequence[Placed | Experience]:
        made = [part if part.embedder is embedder else _made(store, part.plain, embedder) for part in page]
        ready = store.ready(*[part.ready for part in made])
        whose = embedder.id, embedder.dimension
        return store.place(scope, ready, embedder=whose, refuse_removed=refuse_removed, meanwhile=meanwhile)

    return current.settled(done)
