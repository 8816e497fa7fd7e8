"""Which ids the items of another bank have here, where these are not the ones that they had there."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Container, Iterable, Mapping

from rb_dspy.bank.interface import BankStore
from rb_dspy.bank.parts import NewExperience

_ASKED = 500
"""Digests that a bank is asked for at once."""


def own_id(experience_id: str, digest: str) -> str:
    """The id of an item whose text's own id is taken by an item that was edited."""
    parts = json.dumps(["item", experience_id, digest], separators=(",", ":"))
    return f"m{hashlib.sha256(parts.encode('ascii')).hexdigest()[:20]}"


def ids_here(
    store: BankStore,
    scope: str,
    texts: Mapping[str, str],
    experiences: Callable[[], Iterable[NewExperience]],
    taken: Container[str],
) -> dict[str, str]:
    """The ids that items of ``experiences`` are to have in ``scope``, by those that they have, where these are others.

    ``texts``: the digests of the items in question, by id. One whose text is there already becomes that item. One whose
    id is that of an item with another text gets an id of its own, made of the first experience that is stored with it,
    and none of those that are ``taken``. Of several with one text the first that is stored gives its id to all.
    """
    known, digests = dict[str, str](), list(dict.fromkeys(texts.values()))
    for start in range(0, len(digests), _ASKED):
        known |= store.items_with(scope, digests[start : start + _ASKED])
    ids = {id: known[digest] for id, digest in texts.items() if digest in known}
    new: dict[str, list[str]] = {}
    for id, digest in texts.items():
        if digest not in known:
            new.setdefault(digest, []).append(id)

    def lives(id: str) -> bool:
        return bool(store.item_rows(scope, "item", id))

    unclear = {digest: same for digest, same in new.items() if len(same) > 1 or lives(same[0])}
    for experience in experiences() if unclear else ():
        given = [item for item in experience.items if item.digest in unclear]
        if given and not store.have(scope, [experience.id]):  # one that is there is not stored again
            for item in given:
                id = item.id
                if lives(id):
                    id = own_id(experience.id, item.digest)
                    while id in taken or lives(id):
                        id = own_id(id, item.digest)
                ids |= dict.fromkeys(unclear.pop(item.digest, ()), id)
    return {before: id for before, id in ids.items() if id != before}
