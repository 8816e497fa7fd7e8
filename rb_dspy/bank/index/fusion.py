"""Reciprocal rank fusion (Cormack, Clarke and Buettcher, SIGIR 2009): rankings that need not share a scale as one."""

from __future__ import annotations

from collections.abc import Sequence

from rb_dspy.bank.index.view import Hit

RANK_CONSTANT = 60
"""The paper's ``k``: how much less a first place counts than twice a second."""


def fused(rankings: Sequence[Sequence[Hit]], k: int, *, rank_constant: int = RANK_CONSTANT) -> list[Hit]:
    """The ``k`` best rows by the sum of ``1 / (rank_constant + rank)`` over ``rankings``, each best first.

    Ranks count from 1; a ranking gives nothing to rows that it does not hold, and what a row was ranked by is not
    looked at. Best first, the newest first among equals. Deterministic; the order of ``rankings`` does not matter.
    """
    ranks: dict[int, list[int]] = {}
    for ranking in rankings:
        for rank, hit in enumerate(ranking, 1):
            ranks.setdefault(hit.seq, []).append(rank)
    hits = [Hit(seq, sum(1 / (rank_constant + rank) for rank in sorted(places))) for seq, places in ranks.items()]
    return sorted(hits, key=lambda hit: (-hit.score, -hit.seq))[:k]
