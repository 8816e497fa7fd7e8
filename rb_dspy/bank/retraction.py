"""Lessons that somebody took away from a bank, word for word: nobody learns them again unasked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rb_dspy.bank.admission import new_item
from rb_dspy.bank.interface import BankStore
from rb_dspy.schema import Change, MemoryDraft

_HOW = {"edit": "said before it was edited", "delete": "said when it was deleted"}


def retracted(store: BankStore, scope: str, drafts: Sequence[MemoryDraft]) -> dict[MemoryDraft, Change]:
    """Those of ``drafts`` that were taken away, and what took each of them."""
    digests = {draft: new_item(scope, draft).digest for draft in drafts}
    changes = store.retracted(scope, list(digests.values())) if digests else {}
    return {draft: changes[digest] for draft, digest in digests.items() if digest in changes}


def note_of(dropped: Mapping[MemoryDraft, Change]) -> str:
    """When each was taken away, and by what; empty where there is none."""
    said = [
        f"{draft.title!r} is what {change.id} {_HOW.get(change.kind, 'said when it was rolled back')}"
        f" at {change.created_at}"
        for draft, change in dropped.items()
    ]
    return f"dropped: {'; '.join(said)}" if said else ""
