"""What an item is worth, from what came of its uses: each is a pure function of them, oldest first."""

from __future__ import annotations

import math
from dataclasses import dataclass

from rb_dspy.schema import Uses


@dataclass(frozen=True)
class Q:
    """A running value, which each use moves towards its reward by ``rate``.

    MemRL's constants: MemTensor/MemRL, q <- q + 0.3 (r - q), from 0, with rewards 1 and -1.
    """

    rate: float = 0.3
    initial: float = 0.0
    failure: float = -1.0

    def __call__(self, uses: Uses) -> float:
        q = self.initial
        for use in uses:
            if use.succeeded is not None:
                q += self.rate * ((1.0 if use.succeeded else self.failure) - q)
        return q


@dataclass(frozen=True)
class WinRate:
    """The share of uses that were followed by a success, as if it had begun with ``won`` of ``of``."""

    won: float = 1.0
    of: float = 2.0

    def __call__(self, uses: Uses) -> float:
        return (self.won + uses.succeeded) / (self.of + uses.succeeded + uses.failed)


def helped(uses: Uses) -> float:
    """How often the system said that the item helped, less how often it said that it harmed (ACE's counters)."""
    return float(sum((use.mark == "helpful") - (use.mark == "harmful") for use in uses))


def upper_bound(uses: Uses, z: float = 0.84) -> float:
    """The upper end of the 80 % Wilson interval of the success rate: what an item may be worth at best.

    ``z`` 0.84 is the normal quantile that one in five exceeds. 1.0 without uses.
    """
    n = uses.succeeded + uses.failed
    if not n:
        return 1.0
    rate = uses.succeeded / n
    centre = rate + z * z / (2 * n)
    return (centre + z * math.sqrt(rate * (1 - rate) / n + z * z / (4 * n * n))) / (1 + z * z / n)
