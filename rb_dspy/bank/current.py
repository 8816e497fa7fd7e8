"""The embedder that a bank works with, while it may be re-indexed for another one."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from rb_dspy.errors import EmbedderMismatch
from rb_dspy.protocols import Embedder

T = TypeVar("T")


class Current:
    """``embedder`` is changed with ``moving`` held, by whoever changes the bank with it."""

    def __init__(self, embedder: Embedder) -> None:
        self.embedder = embedder
        self.moving = threading.RLock()

    def settled(self, work: Callable[[Embedder], T]) -> T:
        """What ``work`` gives with the embedder; once more with the other one where that changed meanwhile."""
        used = self.embedder
        try:
            return work(used)
        except EmbedderMismatch:
            with self.moving:  # until it has
                now = self.embedder
            if now is used:
                raise
            return work(now)
