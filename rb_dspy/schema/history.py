"""What was done to a bank, and the states it has had."""

from __future__ import annotations

from typing import Literal

from rb_dspy.schema.frozen import Frozen
from rb_dspy.signatures.draft import MemoryDraft


class Snapshot(Frozen):
    """A name for the state of one scope; ``MemoryBank.open(..., at=name)`` gives that state for good.

    ``digest`` is the head of the journal's hash chain at that state: equal digests are equal histories.
    """

    name: str
    scope: str
    seq: int
    digest: str
    created_at: str = ""


ChangeKind = Literal["append", "edit", "delete", "rollback"]


class Change(Frozen):
    """An entry of a bank's journal. ``before`` and ``after`` are an edited item's texts; None where there is none."""

    seq: int
    kind: ChangeKind
    id: str
    """The experience or item that was changed."""
    note: str = ""
    """Why, in the words of whoever did it."""
    before: MemoryDraft | None = None
    after: MemoryDraft | None = None
    created_at: str = ""


class Removal(Frozen):
    """What a delete or a rollback took away, or would take away: ids, in the order they had come."""

    experiences: tuple[str, ...] = ()
    items: tuple[str, ...] = ()
    ingestions: tuple[str, ...] = ()
    """Rollouts that waited to be learned from."""
