"""Which ids the items of another bank have here, where these are not the ones that they had there."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from itertools import islice

from rb_dspy.bank.admission import free_item_id
from rb_dspy.bank.counterparts import counterparts
from rb_dspy.bank.interface import BankStore
from rb_dspy.bank.parts import NewExperience

_ASKED = 500
"""Digests, or experiences, that a bank is asked for at once."""


def ids_here(
    store: BankStore,
    scope: str,
    texts: Mapping[str, str],
    givers: Mapping[str, str],
    experiences: Callable[[], Iterable[NewExperience]],
    taken: Container[str],
) -> dict[str, str]:
    """The ids that items of ``experiences`` are to have in ``scope``, by those that they have, where these are others.

    ``texts``: the digests of the items in question, by id; ``givers``: the first experience with each. One whose text
    is there already becomes that item. One whose id is that of an item with another text gets an id of its own, made of
    the first experience that is stored with it, and none of those that are ``taken``. Of several with one text the
    first that is stored gives its id to all. One that only experiences give that are here already is the item that it
    became with them, whatever that says now: see ``counterparts``.
    """
    known, same = dict[str, str](), dict[str, list[str]]()
    for id, digest in texts.items():
        same.setdefault(digest, []).append(id)
    for digests in _pages(same):
        known |= store.items_with(scope, digests)
    here = {id for page in _pages(set(givers.values())) for id in store.have(scope, page)}
    ids = {id: known[digest] for id, digest in texts.items() if digest in known}

    def lives(id: str) -> bool:
        return bool(store.item_rows(scope, "item", id))

    def gives(experience: str, id: str) -> bool:
        return any(row.item.id == id for row in store.item_rows(scope, "experience", experience))

    def is_unclear(digest: str, these: list[str]) -> bool:
        came = {givers[id] for id in these} & here
        if digest in known:
            return not all(gives(experience, known[digest]) for experience in came)
        return bool(came) or len(these) > 1 or lives(these[0])

    def free(experience: str, digest: str) -> str:
        return free_item_id(experience, digest, lambda id: id in taken or lives(id))

    became: dict[str, str] = {}
    unclear = {digest: these for digest, these in same.items() if is_unclear(digest, these)}
    for experience in experiences() if unclear else ():
        given = [item for item in experience.items if item.digest in unclear]
        if given and store.have(scope, [experience.id]):  # one that is there is not stored again
            if not all(item.id in became for item in given):
                became = counterparts(store, scope, experience, known) | became
            continue
        for item in given:
            these = unclear.pop(item.digest, [])
            if item.digest not in known:
                ids |= dict.fromkeys(these, free(experience.id, item.digest) if lives(item.id) else item.id)
    for digest, these in unclear.items():
        for id in these:
            if id in became:
                ids[id] = became[id]
            elif digest not in known and lives(id):  # which is another item
                ids[id] = free(givers[id], digest)
    return {before: id for before, id in ids.items() if id != before}


def _pages(asked: Iterable[str]) -> Iterator[list[str]]:
    left = iter(asked)
    while page := list(islice(left, _ASKED)):
        yield page
