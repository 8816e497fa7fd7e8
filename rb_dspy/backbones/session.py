"""What one call of a program runs in: its language models, and a ledger."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

from rb_dspy.backbones.ledger import Ledger, metered
from rb_dspy.backbones.roles import Backbones


@contextmanager
def session(backbones: Backbones | None) -> Iterator[Ledger]:
    """``backbones``, where there are any, else those of the caller; and a ledger for what is used inside the block."""
    with backbones.use() if backbones else nullcontext(), metered() as ledger:
        yield ledger
