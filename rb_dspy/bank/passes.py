"""When a re-index gives up: a store embeds what is there, then what came meanwhile, then what came during that."""

from __future__ import annotations

from rb_dspy.errors import StorageError

PASSES = 100
"""Passes over what is missing when each begins; the change to the new embedder has to find nothing missing.

A pass goes no further, so each of them ends. The first is the long one; a later one is as long as the embedder takes
for what came during the one before, and one that nothing comes in is the last. After so many, whoever appends all the
time has to stop. The last of them may not hold up who writes until it is done instead: the embedder may be slow, may
hang, or may wait for one who writes.
"""


def outrun(location: str) -> StorageError:
    """Something came during each of them."""
    return StorageError(
        f"{location}: not reindexed, since others appended to it during each of {PASSES} passes; the bank is as it was,"
        " of the embedder before: end what appends to it, and reindex it again"
    )
