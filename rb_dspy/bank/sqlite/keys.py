"""One integer for a scope and a number in it: what the rows of a file are keyed by.

A row's key is its scope's number shifted by 40 bits, plus its own number, so that the rows of a scope lie together in
the order in which they came, and a range of keys is a range of numbers.
"""

from __future__ import annotations

BITS = 40

LAST = (1 << BITS) - 1
"""Higher than any number: as ``at``, the present."""


def base(scope_id: int) -> int:
    """The key of number 0, which no row has."""
    return scope_id << BITS


def number(key: int) -> int:
    """A row's number in its scope."""
    return key & LAST
