"""Where an item stands among the others, for people who read them one after the other."""

from __future__ import annotations

from typing import Literal, get_args

from rb_dspy.bank.interface import BankStore
from rb_dspy.errors import InputError
from rb_dspy.schema import MemoryItem

Order = Literal["number", "learned"]


def ordered(store: BankStore, scope: str, order: Order) -> list[MemoryItem]:
    """See ``MemoryBank.items``. Asks about single items only where they were edited."""
    if order not in get_args(Order):
        raise InputError(f"order {str(order)[:40]!r}: expected {' or '.join(map(repr, get_args(Order)))}")
    items = store.items(scope)
    if order == "number":
        return items
    edited = store.edited(scope)
    places = {item.id: _learned(store, scope, item) for item in items if item.id in edited}
    return sorted(items, key=lambda item: places.get(item.id, item.seq))


def _learned(store: BankStore, scope: str, item: MemoryItem) -> int:
    """The number of the first row that the experience gave which ``item.provenance`` names: edits only add to it."""
    rows = store.rows(scope, item.id)
    giver = next((row.giver.number for row in rows if row.seq == item.seq), None)
    return min((row.seq for row in rows if row.giver.number == giver), default=item.seq)
