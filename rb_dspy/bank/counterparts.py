"""Which items an experience gave here, of those that a file says it gave: it was here before the file came."""

from __future__ import annotations

from collections.abc import Container

from rb_dspy.bank.interface import BankStore
from rb_dspy.bank.parts import NewExperience


def counterparts(store: BankStore, scope: str, told: NewExperience, known: Container[str]) -> dict[str, str]:
    """Ids here by ids there, of the items of ``told``, which was stored in ``scope`` and may have ended.

    What was stored then tells, not what is there now: lessons are edited and deleted. Id and text say it together, then
    the id (the text was edited there), unless its text is that of another item there; then the text (the id was taken
    here). Where one item is left on either side, it was taken here and edited there; one whose text is among the
    ``known`` digests is not left.
    """
    rows = _as_stored(store, scope, told.id)
    texts = {item.id: item.digest for item in told.items}
    said = {digest: id for id, digest in reversed(rows)}
    found: dict[str, str] = {}
    for id, digest in rows:
        if id in texts and (texts[id] == digest or digest not in texts.values()):
            found[id] = id
    for id, digest in texts.items():
        if id not in found and digest in said:
            found[id] = said[digest]
    there = [id for id, digest in texts.items() if id not in found and digest not in known]
    here = list(dict.fromkeys(id for id, _ in rows if id not in found.values()))
    return found | dict(zip(there, here, strict=True)) if len(there) == len(here) == 1 else found


def _as_stored(store: BankStore, scope: str, experience_id: str) -> list[tuple[str, str]]:
    """Ids and digests of an experience's items right after it was appended, in order."""
    for change in store.history(scope, experience_id):
        if change.kind == "append":
            then = store.settled(scope, change.seq)
            return [(row.item.id, row.item.digest) for row in store.item_rows(scope, "experience", experience_id, then)]
    return []
